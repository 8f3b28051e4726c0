"""Attention's action on gradients from queries and keys: no weight leaves a kernel.

    lse_i = log Σ_j exp(s_ij)        spread_j = Σ_i exp(s_ij − lse_i) g_i

Two products for each pair of tokens, where the backward pass of flash attention takes five.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlens.gpu.matmul import is_rounded_once
from normlens.gpu.pieces import dot, launch
from normlens.gpu.sizes import power_of_two

if TYPE_CHECKING:
    from normlens.frozen.attention import QueryKey


def spread(given: QueryKey, g: Tensor) -> Tensor:
    """``Σ_h Σ_i α^h_ij g^h_i`` of g (b, h, i, w) over each group's heads, (b, group, j, w)."""
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (given.query, given.key))
    b, heads, n, width = query.shape
    groups, m = key.shape[1:3]
    # Wide heads leave less of the shared memory to each block of tokens.
    rows, columns = (64, 128) if width <= 128 else (32, 64)
    mask = query if given.mask is None else given.mask.expand(b, heads, n, m)
    shared = (
        *(query, key, mask, query if given.sinks is None else given.sinks),
        *query.stride()[:3],
        *key.stride()[:3],
        *mask.stride(),
        *(n, m, given.scale, given.soft_cap or 0.0),
    )
    options: dict[str, Any] = {
        "HEADS": heads,
        "OF_GROUP": heads // groups,
        "E": width,
        "E_BLOCK": max(16, power_of_two(width)),
        "CAUSAL": given.causal,
        "MASKED": given.mask is not None,
        "CAPPED": given.soft_cap is not None,
        "operand": query.dtype,
        "num_warps": 8,
    }
    if given.log_sums is None:
        sums = torch.empty(b, heads, n, dtype=torch.float32, device=g.device)
        grid = -(-n // columns), b * heads
        has_sinks = given.sinks is not None
        launch(
            sum_rows, grid, sums, *shared, SINKS=has_sinks, ROWS=columns, COLUMNS=rows, **options
        )
    else:
        sums = given.log_sums[..., :n] * LOG2_E.value
        sums = sums.nan_to_num(nan=INFINITE, posinf=INFINITE, neginf=INFINITE).contiguous()
    out = torch.empty(b, groups, m, g.shape[-1], dtype=torch.float32, device=g.device)
    size = torch.ones((), device=g.device)
    if query.dtype == torch.float16:  # which has a small range
        size = g.abs().amax().clamp_min(torch.finfo(g.dtype).tiny)
        g = g / size
    high = g.to(query.dtype).contiguous()
    low = high if is_rounded_once() else (g - high).to(query.dtype).contiguous()
    launch(
        spread_columns,
        (-(-m // columns), b * groups),
        out,
        sums,
        high,
        low,
        *shared,
        W=g.shape[-1],
        W_BLOCK=max(16, power_of_two(g.shape[-1])),
        SPLIT=low is not high,
        ROWS=rows,
        COLUMNS=columns,
        **options,
    )
    return out.mul_(size)


LOG2_E = tl.constexpr(1.4426950408889634)
INFINITE = float("inf")  # of a row that sees nothing, and so gives nothing


@triton.jit
def logits(
    products, i, j, n, m, mask, mask_i, mask_j, scale, cap,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Logits to base 2 of targets i and sources j from ``q · k``; −∞ where i does not look at j."""
    s = products * scale
    if CAPPED:
        s = cap * (2 * tl.sigmoid(2 * s / cap) - 1)
    seen = (i < n) & (j < m)
    if CAUSAL:
        seen = seen & (j <= i)
    if MASKED:
        place = mask + i.to(tl.int64) * mask_i + j.to(tl.int64) * mask_j
        seen = seen & (tl.load(place, mask=seen, other=0) != 0)
    return tl.where(seen, s * LOG2_E, float("-inf"))


@triton.jit
def sum_rows(
    sums,  # (b, h, i): log2 Σ_j 2^logit
    query,  # (b, h, i, E)
    key,  # (b, group, j, E)
    mask,  # (b, h, i, j), where a target may look; anything if not MASKED
    sinks,  # (h,), a logit of no token; anything if not SINKS
    query_b, query_h, query_i, key_b, key_g, key_j, mask_b, mask_h, mask_i, mask_j,  # strides
    n,
    m,
    scale,
    cap,
    HEADS: tl.constexpr,
    OF_GROUP: tl.constexpr,
    E: tl.constexpr,
    E_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of each row of one head's logits, for a block of targets."""
    h = tl.program_id(1) % HEADS
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS  # the longest rows come first
    i = start + tl.arange(0, ROWS)
    e = tl.arange(0, E_BLOCK)
    q = tl.load(
        query + b * query_b + h * query_h + i[:, None] * query_i + e[None, :],
        mask=(i < n)[:, None] & (e < E)[None, :],
        other=0.0,
    )
    keys = key + b * key_b + h // OF_GROUP * key_g
    masks = mask + b * mask_b + h * mask_h
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    stop = tl.minimum(m, start + ROWS) if CAUSAL else m
    for first in range(0, stop, COLUMNS):
        j = first + tl.arange(0, COLUMNS)
        k = tl.load(
            keys + j[None, :] * key_j + e[:, None],
            mask=(j < m)[None, :] & (e < E)[:, None],
            other=0.0,
        )
        s = dot(q, k, tl.zeros((ROWS, COLUMNS), tl.float32), PLAIN)
        s = logits(
            s, i[:, None], j[None, :], n, m, masks, mask_i, mask_j, scale, cap,
            CAUSAL, MASKED, CAPPED,
        )  # fmt: skip
        larger = tl.maximum(largest, tl.max(s, 1))
        finite = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp2(largest - finite) + tl.sum(tl.exp2(s - finite[:, None]), 1)
        largest = larger
    if SINKS:
        sink = tl.load(sinks + h).to(tl.float32) * LOG2_E
        larger = tl.maximum(largest, sink)
        total = total * tl.exp2(largest - larger) + tl.exp2(sink - larger)
        largest = larger
    # A row that sees nothing is padding, and gives nothing.
    seen = total > 0
    row = tl.where(seen, largest + tl.log2(tl.where(seen, total, 1.0)), float("inf"))
    tl.store(sums + (b * HEADS + h) * n + i, row, mask=i < n)


@triton.jit
def spread_columns(
    out,  # (b, group, j, W)
    sums,  # (b, h, i)
    high,  # g (b, h, i, W)
    low,  # what `high` misses of g; the same tensor if not SPLIT
    query, key, mask, sinks,  # as in sum_rows
    query_b, query_h, query_i, key_b, key_g, key_j, mask_b, mask_h, mask_i, mask_j,  # strides
    n,
    m,
    scale,
    cap,
    HEADS: tl.constexpr,
    OF_GROUP: tl.constexpr,
    E: tl.constexpr,
    E_BLOCK: tl.constexpr,
    W: tl.constexpr,
    W_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
):  # fmt: skip
    """What a block of sources is given by all targets, over the heads of their group."""
    groups = HEADS // OF_GROUP
    group = tl.program_id(1) % groups
    b = (tl.program_id(1) // groups).to(tl.int64)
    first = tl.program_id(0) * COLUMNS
    j = first + tl.arange(0, COLUMNS)
    e = tl.arange(0, E_BLOCK)
    w = tl.arange(0, W_BLOCK)
    k = tl.load(
        key + b * key_b + group * key_g + j[:, None] * key_j + e[None, :],
        mask=(j < m)[:, None] & (e < E)[None, :],
        other=0.0,
    )
    total = tl.zeros((COLUMNS, W_BLOCK), tl.float32)
    begin = first // ROWS * ROWS if CAUSAL else 0
    for h in range(group * OF_GROUP, (group + 1) * OF_GROUP):
        head = (b * HEADS + h) * n
        queries = query + b * query_b + h * query_h
        masks = mask + b * mask_b + h * mask_h
        for start in range(begin, n, ROWS):
            i = start + tl.arange(0, ROWS)
            q = tl.load(
                queries + i[None, :] * query_i + e[:, None],
                mask=(i < n)[None, :] & (e < E)[:, None],
                other=0.0,
            )
            s = dot(k, q, tl.zeros((COLUMNS, ROWS), tl.float32), PLAIN)
            s = logits(
                s, i[None, :], j[:, None], n, m, masks, mask_i, mask_j, scale, cap,
                CAUSAL, MASKED, CAPPED,
            )  # fmt: skip
            row = tl.load(sums + head + i, mask=i < n, other=float("inf"))
            alpha = tl.exp2(s - row[None, :]).to(OPERAND)
            places = (head + i)[:, None] * W + w[None, :]
            inside = (i < n)[:, None] & (w < W)[None, :]
            total = dot(alpha, tl.load(high + places, mask=inside, other=0.0), total, PLAIN)
            if SPLIT:
                total = dot(alpha, tl.load(low + places, mask=inside, other=0.0), total, PLAIN)
    tl.store(
        out + ((b * groups + group) * m + j)[:, None] * W + w[None, :],
        total,
        mask=(j < m)[:, None] & (w < W)[None, :],
    )

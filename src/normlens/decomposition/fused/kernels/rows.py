"""Steps of the algebra that take one pass over rows of vectors, where PyTorch takes several."""

from __future__ import annotations

import triton
import triton.language as tl

#: The smallest size that an error is divided by: the least normal number of float32.
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def normalise_rows(
    out,  # (rows, D)
    v,  # (rows, D)
    inverse_deviation,  # (targets,); row r belongs to target r % targets
    gamma,  # (D,), or anything if not STRETCHED
    beta,  # (D,), or anything if not SHIFTED
    targets,
    D: tl.constexpr,
    CENTRED: tl.constexpr,
    STRETCHED: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``(v − mean v)/σ ⊙ γ + β`` of one row."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < D
    x = tl.load(v + row * D + k, mask=inside, other=0.0)
    if CENTRED:
        x -= tl.sum(x, 0) / D
    if STRETCHED:
        x *= tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(inverse_deviation + row % targets)
    if SHIFTED:
        x += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + k, x, mask=inside)


@triton.jit
def measure_rows(
    own_norms,  # (b·i,) each
    mixed_norms,
    errors,
    own,  # (b·i, D), and mixed, rest and real alike
    mixed,
    coefficients,  # (b·i, K)
    bias_rows,  # (K, D)
    rest,  # anything if not RESTED
    real,  # anything if not COMPARED
    lengths,  # (b,) int32
    n,
    D: tl.constexpr,
    K: tl.constexpr,
    RESTED: tl.constexpr,
    COMPARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The norms of a target's own part and of the others' sum, and the error of completeness."""
    row = tl.program_id(0).to(tl.int64)
    own_square = tl.zeros((BLOCK,), tl.float32)
    mixed_square = tl.zeros((BLOCK,), tl.float32)
    real_square = tl.zeros((BLOCK,), tl.float32)
    missed_square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, D, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < D
        x = tl.load(own + row * D + k, mask=inside, other=0.0)
        m = tl.load(mixed + row * D + k, mask=inside, other=0.0)
        own_square += x * x
        mixed_square += m * m
        if COMPARED:
            bias = tl.zeros((BLOCK,), tl.float32)
            for place in range(K):
                c = tl.load(coefficients + row * K + place)
                bias += c * tl.load(bias_rows + place * D + k, mask=inside, other=0.0)
            if RESTED:
                bias += tl.load(rest + row * D + k, mask=inside, other=0.0)
            y = tl.load(real + row * D + k, mask=inside, other=0.0).to(tl.float32)
            missed = x + bias + m - y
            real_square += y * y
            missed_square += missed * missed
    tl.store(own_norms + row, tl.sqrt(tl.sum(own_square, 0)))
    tl.store(mixed_norms + row, tl.sqrt(tl.sum(mixed_square, 0)))
    if COMPARED:
        is_token = row % n < tl.load(lengths + row // n)
        size = tl.maximum(tl.sqrt(tl.sum(real_square, 0)), TINY)
        error = tl.sqrt(tl.sum(missed_square, 0)) / size
        tl.store(errors + row, tl.where(is_token, error, 0.0))

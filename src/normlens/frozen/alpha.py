"""The weights α of an attention: as the model returned them, or formed from queries and keys.

    α^h_ij = exp(s^h_ij − lse^h_i),    s^h_ij = cap(scale · q^h_i · k^h_j) + bias_ij

Scores need of α only how it acts on values and on gradients. Where queries and keys are kept
instead, tiles of α exist for a moment, and no tensor of size n² per head ever does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.gpu.matmul import is_rounded_once, weighted

#: Weights in a tile, on a CPU and on a GPU; larger tiles are not faster.
_TILE = {"cpu": 1 << 21, "cuda": 1 << 27}


class Alpha(ABC):
    """The weights (b, h, i, j) of an attention, a row for each target."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """(b, h, i, j)."""

    @property
    @abstractmethod
    def dense(self) -> Tensor:
        """All weights as a tensor (b, h, i, j)."""

    @abstractmethod
    def of_heads(self, heads: slice) -> Tensor:
        """The weights of some heads."""

    @abstractmethod
    def mix(self, values: Tensor) -> Tensor:
        """``Σ_j α_ij v_j`` of values (b, h, j, e)."""

    @abstractmethod
    def spread(self, g: Tensor, groups: int) -> Tensor:
        """``Σ_h Σ_i α^h_ij g^h_i`` over the heads of each group, (…, b, group, j, e)."""

    @abstractmethod
    def row_sums(self, dtype: torch.dtype) -> Tensor:
        """``Σ_j α_ij`` (b, h, i): 1, unless something takes what is no token's."""

    @property
    def mixed(self) -> Tensor | None:
        """What the model itself mixed from its values (b, h, i, e), if that is known."""
        return None

    def first(self, tokens: int) -> Tensor:
        """The weights of the first tokens of the first sequence."""
        return self.dense[:1, :, :tokens, :tokens]

    def from_token(self, target: int, source: int) -> Alpha:
        """The weights of targets and sources from these on."""
        return Dense(self.dense[:, :, target:, source:])


@dataclass(frozen=True)
class Dense(Alpha):
    """Weights as the model returned them."""

    alpha: Tensor  # (b, h, i, j)

    @property
    def shape(self) -> torch.Size:
        return self.alpha.shape

    @property
    def dense(self) -> Tensor:
        return self.alpha

    def of_heads(self, heads: slice) -> Tensor:
        return self.alpha[:, heads]

    def mix(self, values: Tensor) -> Tensor:
        return weighted(self.alpha, values)

    def spread(self, g: Tensor, groups: int) -> Tensor:
        sources = weighted(self.alpha.transpose(-1, -2), g)  # (…, b, h, j, e)
        return sources.unflatten(-3, (groups, -1)).sum(-3)

    def row_sums(self, dtype: torch.dtype) -> Tensor:
        return self.alpha.sum(-1, dtype=dtype)


def alpha_of(given: Tensor | Alpha) -> Alpha:
    """Weights as a model returned them, or what stands for them."""
    return Dense(given) if isinstance(given, Tensor) else given


@dataclass(frozen=True)
class QueryKey(Alpha):
    """Queries and keys in the place of weights, with all that the model does to their products."""

    query: Tensor  # (b, h, i, e)
    key: Tensor  # (b, group, j, e)
    scale: float
    dtype: torch.dtype  # of the tiles
    mask: Tensor | None = None  # added, or where a target may look; broadcasts to (b, h, i, j)
    bias: Tensor | None = None  # added, too; broadcasts to (b, h, i, j)
    causal: bool = False  # instead of a mask: no target looks ahead
    soft_cap: float | None = None
    sinks: Tensor | None = None  # (h,), a logit that takes its share of each row
    output: Tensor | None = None  # (b, i, h, e), what the model mixed from its values

    def to(self, dtype: torch.dtype | torch.device) -> QueryKey:
        """The same with tiles of this type; q and k stay as they are."""
        return replace(self, dtype=dtype) if isinstance(dtype, torch.dtype) else self

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def nbytes(self) -> int:
        kept = self.query, self.key, self.output
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.query.shape[:3], self.key.shape[2]))

    @property
    def dense(self) -> Tensor:
        return self.of_heads(slice(None))

    def of_heads(self, heads: slice) -> Tensor:
        chosen = range(self.shape[1])[heads]
        of_group = self.shape[1] // self.key.shape[1]
        one_by_one = [self._with(slice(h, h + 1), h // of_group) for h in chosen]
        return torch.cat([each._tile(slice(0, self.shape[2])) for each in one_by_one], dim=1)

    def _with(self, heads: slice, group: int) -> QueryKey:
        """Heads of one group alone."""
        return replace(
            self,
            query=self.query[:, heads],
            key=self.key[:, group : group + 1],
            mask=_of_heads(self.mask, heads),
            bias=_of_heads(self.bias, heads),
            sinks=None if self.sinks is None else self.sinks[heads],
        )

    def first(self, tokens: int) -> Tensor:
        one = replace(
            self,
            query=self.query[:1, :, :tokens],
            key=self.key[:1, :, :tokens],
            mask=_of_first(self.mask, tokens),
            bias=_of_first(self.bias, tokens),
        )
        return one.dense  # among themselves, so that no weight of another source is formed

    @property
    def mixed(self) -> Tensor | None:
        return None if self.output is None else self.output.transpose(1, 2).to(self.dtype)

    def mix(self, values: Tensor) -> Tensor:
        b, h, n, _ = self.shape
        mixed = values.new_empty(b, h, n, values.shape[-1])
        for rows, tile in self._tiles():
            torch.matmul(tile, values[:, :, : tile.shape[-1]], out=mixed[:, :, rows])
        return mixed

    def spread(self, g: Tensor, groups: int) -> Tensor:
        lead = g.shape[:-4]
        b, j = self.shape[0], self.shape[3]
        together = g.reshape(-1, *g.shape[-4:]).permute(1, 2, 3, 0, 4).flatten(3)  # (b, h, i, …·e)
        if self._has_flash:
            sources = torch.cat([*map(self._flash_spread, together.split(g.shape[-1], -1))], -1)
            sources = sources.unflatten(1, (groups, -1)).sum(2)
        else:
            sources = g.new_zeros(b, groups, j, together.shape[-1])
            for rows, tile in self._tiles():
                # The rows of a group's heads are added up by the product.
                by_group = tile.unflatten(1, (groups, -1)).flatten(2, 3)
                arrived = together[:, :, rows].unflatten(1, (groups, -1)).flatten(2, 3)
                seen = sources[:, :, : tile.shape[-1]]
                seen += by_group.transpose(-1, -2) @ arrived
        shape = b, groups, j, -1, g.shape[-1]
        return sources.view(shape).permute(3, 0, 1, 2, 4).reshape(*lead, b, groups, j, g.shape[-1])

    def row_sums(self, dtype: torch.dtype) -> Tensor:
        if self.sinks is None:
            return self.query.new_ones(self.shape[:3], dtype=dtype)
        ones = self.query.new_ones(*self.shape[:2], self.shape[3], 1, dtype=self.dtype)
        return self.mix(ones)[..., 0].to(dtype)

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """The weights of some targets at a time (b, h, i, j); causal ones of the sources so far."""
        b, h, n, j = self.shape
        count = max(1, _TILE.get(self.device.type, _TILE["cpu"]) // (b * h * j))
        for first in range(0, n, count):
            rows = slice(first, min(first + count, n))
            yield rows, self._tile(rows)

    def _tile(self, rows: slice) -> Tensor:
        b, h, _, n = self.shape
        last = rows.stop if self.causal else n  # no source ahead of all targets is looked at
        query = self.query[:, :, rows].to(self.dtype) * self.scale
        key = self.key[:, :, :last].to(self.dtype)
        grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # (b, group, h/g · i, e)
        scores = (grouped @ key.transpose(-1, -2)).view(b, h, -1, last)
        if self.soft_cap is not None:
            scores = scores.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        if self.bias is not None:
            scores += self.bias[..., rows if self.bias.shape[-2] > 1 else slice(None), :last]
        # The least number, and not −∞: a row that sees nothing is padding, and must not be NaN.
        least = torch.finfo(self.dtype).min
        if self.causal:
            ahead = scores.new_ones(scores.shape[2], scores.shape[2], dtype=torch.bool).triu_(1)
            scores[..., rows.start :].masked_fill_(ahead, least)
        elif self.mask is not None:
            mask = self.mask[..., rows if self.mask.shape[-2] > 1 else slice(None), :]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, least)
            else:
                scores = (scores + mask).clamp_min_(least)
        if self.sinks is not None:
            taken = self.sinks.to(self.dtype).view(1, -1, 1, 1).expand(b, -1, scores.shape[2], 1)
            return torch.cat([scores, taken], dim=-1).softmax(-1)[..., :-1]
        return scores.softmax(-1)

    @property
    def _has_flash(self) -> bool:
        """Whether PyTorch's own kernels give the gradient at the values without any weight."""
        is_plain = self.soft_cap is None and self.sinks is None and self.bias is None
        is_half = self.query.dtype in (torch.float16, torch.bfloat16)
        return is_plain and is_half and self.device.type == "cuda"

    def _flash_spread(self, g: Tensor) -> Tensor:
        """``Σ_i α_ij g_i`` (b, h, j, e): the gradient at the values, of g or its two halves."""
        of_group = self.shape[1] // self.key.shape[1]
        key = self.key.repeat_interleave(of_group, dim=1)
        width = g.shape[-1]
        values = key.new_zeros(*key.shape[:3], width)
        with torch.enable_grad():
            values.requires_grad_()
            out = F.scaled_dot_product_attention(
                self.query, key, values, self.mask, is_causal=self.causal, scale=self.scale
            )
            total = g.new_zeros(values.shape)
            size = g.abs().amax().clamp_min(torch.finfo(g.dtype).tiny)  # half a number has a range
            rest = g / size
            for _ in range(1 if is_rounded_once() else 2):
                half = rest.to(self.query.dtype)
                (arrived,) = torch.autograd.grad(out, values, half, retain_graph=True)
                total, rest = total + arrived, rest - half
        return total * size


def _of_first(given: Tensor | None, tokens: int) -> Tensor | None:
    """What belongs to the first targets and sources of the first sequence."""
    return given if given is None else given[:1, :, :tokens, :tokens]


def _of_heads(given: Tensor | None, heads: slice) -> Tensor | None:
    """What is the same for all heads, or that of some."""
    return given if given is None or given.shape[1] == 1 else given[:, heads]

"""Whether a traced layer is what its adapter says: what it attends to, and its linear maps.

Parts and bias add up to the real vectors (completeness) even where the adapter is wrong about what
a target may see, and in half precision a wrong matrix can hide behind the tolerance of a whole
layer. Both are compared here with what the model did. As with completeness, numbers stay on their
device until a batch is through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.components import Layer, Linear, Reach
from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.models.reading import class_name
from normlens.rows import Rows
from normlens.trace import LayerTrace

#: A weight up to this size outside the reach is a mask that leaks, and shows nowhere.
NEGLIGIBLE = 1e-8
#: An empty part of the reach is a mask, and no accident, from so many weights on.
EVIDENCE = 8
#: The share of pairs at the edge of a mask that has weight; small weights fade out instead.
SHARP = 0.9

#: Largest error of a module's output against x W + b. In half precision it is four units of
#: rounding: an output's own rounding is about half a unit of its norm, and the rest is room for
#: devices that form their sums in less than float32.
LINEAR_TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 4 * 2.0**-11,
    torch.bfloat16: 4 * 2.0**-8,
}


@dataclass
class Checks:
    """What one batch showed of each layer, to be judged when all layers are through."""

    adapter: Adapter
    dtype: torch.dtype  # of the model
    lengths: Sequence[int]
    _layers: list[tuple[int, Layer]] = field(default_factory=list)
    _outside: list[Tensor] = field(default_factory=list)
    _offsets: list[Tensor] = field(default_factory=list)
    _linear: list[tuple[int, Linear, Tensor]] = field(default_factory=list)

    def add(self, traced: LayerTrace, layer: Layer) -> None:
        """Measure one layer; `layer` is the traced one in the algebra's precision."""
        outside, offsets = attention_support(traced.alpha, layer.reach, self.lengths)
        self._layers.append((traced.index, layer))
        self._outside.append(outside)
        self._offsets.append(offsets)
        for linear in layer.linear_maps:
            rows = traced.rows.get(linear.module) if linear.module is not None else None
            if rows is not None:
                self._linear.append((traced.index, linear, linear_error(linear, rows)))

    def judge(self) -> None:
        """Raise where a layer is not what its adapter says."""
        if not self._layers:
            return
        errors = [error for *_, error in self._linear]
        tolerance = LINEAR_TOLERANCE[self.dtype]
        for (index, linear, _), error in zip(self._linear, _numbers(errors), strict=True):
            if error > tolerance:
                raise self._not_linear(index, linear, error, tolerance)
        everywhere = _numbers(self._outside), torch.stack(self._offsets).cpu()
        for (index, layer), outside, offsets in zip(self._layers, *everywhere, strict=True):
            if outside > NEGLIGIBLE:
                raise UnsupportedModelError(
                    f"layer {index + 1} attends to tokens that {self._name} says it cannot see "
                    f"(weights up to {outside:.2g} lie outside {_in_words(layer.reach)}); its "
                    "`causal`, `window` or `reach` must say what the model does (docs/adapters.md)"
                )
            self._check_edges(index, layer, offsets)

    @property
    def _name(self) -> str:
        return f"the adapter {type(self.adapter).__name__}"

    def _check_edges(self, index: int, layer: Layer, offsets: Tensor) -> None:
        n = (len(offsets) + 1) // 2
        sides = (
            ("ahead", offsets[n - 1 :], layer.reach.ahead),
            (
                "back",
                offsets[:n].flip(0),
                layer.reach.back,
            ),
        )
        for side, counts, limit in sides:
            edge = masked_beyond(counts.tolist(), limit, layer.attention.heads)
            if edge is None:
                continue
            cure = (
                "set `causal = True`" if (side, edge) == ("ahead", 0) else "say so in its `window`"
            )
            raise UnsupportedModelError(
                f"no token of layer {index + 1} looks further {side} than {edge} tokens, in any "
                f"head, where {self._name} allows {_in_words(layer.reach)}; {cure} or `reach` "
                "(docs/adapters.md)"
            )

    def _not_linear(
        self, index: int, linear: Linear, error: float, tolerance: float
    ) -> UnsupportedModelError:
        assert linear.module is not None
        name = self.adapter.name_of(linear.module)
        return UnsupportedModelError(
            f"{name} ({class_name(linear.module)}) of layer {index + 1} does not compute x W + b "
            f"with the weight that it holds (relative error {error:.1e}, tolerance "
            f"{tolerance:.0e}): an adapter, a hook or another precision acts inside it; merge "
            "adapters (model.merge_and_unload()) or load the plain model"
        )


def attention_support(alpha: Tensor, reach: Reach, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest weight outside the reach, and how many pairs have weight at each j − i.

    `alpha` is (b, h, i, j); a pair counts if any head of any sequence gives it weight. The counts
    run from j − i = 1 − n to n − 1.
    """
    n, device = alpha.shape[-1], alpha.device
    position = torch.arange(n, device=device)
    real = position < torch.tensor(list(lengths)).to(device, non_blocking=True)[:, None]  # (b, i)
    peak = alpha.amax(1).masked_fill(~(real[:, :, None] & real[:, None, :]), 0).amax(0)  # (i, j)
    # Rows of a wider matrix read one element short each: equal offsets fall into one column.
    skewed = F.pad((peak > 0).flip(0), (0, n)).flatten()[: n * (2 * n - 1)].view(n, 2 * n - 1)
    return peak.masked_fill(reach.mask(n, device), 0).amax().float(), skewed.sum(0)


def masked_beyond(counts: Sequence[int], limit: int | None, heads: int) -> int | None:
    """The distance at which a mask ends what a reach of `limit` tokens allows, or None.

    `counts` holds the pairs with weight at distance 0, 1, …. A mask has a sharp edge, with all
    pairs on one side of it and none on the other, while small weights that are rounded to zero fade
    out. Too few pairs beyond it are no evidence.
    """
    n = len(counts)
    furthest = n - 1 if limit is None else min(limit, n - 1)
    edge = max((distance for distance in range(n) if counts[distance]), default=furthest)
    empty = sum(n - distance for distance in range(edge + 1, furthest + 1))
    sharp = counts[edge] >= SHARP * (n - edge)
    return edge if sharp and empty >= n and empty * heads >= EVIDENCE else None


def linear_error(linear: Linear, rows: Rows) -> Tensor:
    """Worst error of a module's output rows against x W + b, relative to the size of a row."""
    dtype = linear.weight.dtype
    x, y = rows.input.to(dtype), linear.part(rows.output).to(dtype)
    expected = linear(x)
    product = expected if linear.bias is None else expected - linear.bias
    norm = torch.linalg.vector_norm
    # Where an output is small because large terms cancel, their rounding is still that of a row of
    # ordinary size.
    typical = (norm(product, dim=-1) / norm(x, dim=-1)).nan_to_num(0).median() * norm(x, dim=-1)
    size = torch.maximum(torch.maximum(norm(y, dim=-1), norm(product, dim=-1)), typical)
    error = norm(y - expected, dim=-1) / size.clamp_min(torch.finfo(dtype).tiny)
    # Values that overflow are left to completeness, which says so.
    return error.nan_to_num(0, posinf=0).max().float()


def _numbers(found: Sequence[Tensor]) -> list[float]:
    return torch.stack(list(found)).tolist() if found else []


def _in_words(reach: Reach) -> str:
    back, ahead = ("all" if side is None else side for side in (reach.back, reach.ahead))
    return f"{back} earlier and {ahead} later tokens"

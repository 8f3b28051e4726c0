"""The frozen network: every layer of a traced model, frozen when it is asked for.

What freezing needs is kept from the forward pass where it is small. Where it is not, only each
layer's input is, and the model runs the layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Layer, Reach
from normlens.decomposition import FrozenLayer, freeze
from normlens.decomposition.completeness import relative_error
from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.trace import Call, LayerTrace, run_again, run_traced
from normlens.verdicts import check_completeness

#: The share of the memory limit that attention weights may take; the rest is for the way back.
KEPT_SHARE = 8


@dataclass(frozen=True)
class _Visited:
    """A layer that the model has run: enough to run it again."""

    block: nn.Module
    call: Call
    x: Tensor  # (b, i, d)
    trace: LayerTrace | None  # all of it, where that is small


@dataclass
class FrozenNetwork:
    """A model's layers, frozen at one batch."""

    adapter: Adapter
    lengths: list[int]
    rule: str
    dtype: torch.dtype  # of the algebra
    kept_bytes: int  # that attention weights may take
    visited: list[_Visited] = field(default_factory=list)
    last: Tensor | None = None  # (b, i, d), behind the last layer
    errors: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # by layer and scope
    reaches: list[Reach] = field(default_factory=list)  # of every layer
    watch: Callable[[LayerTrace], None] | None = None  # is shown every layer as the model ran it

    def run(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Run `model`, the adapter's or the one that holds it, and return its output."""
        count = len(self.adapter.blocks())
        return run_traced(self.adapter, model, inputs, range(count), self._visit)

    def _visit(self, trace: LayerTrace) -> None:
        if self.last is not None and not _same(trace.x, self.last):
            raise_between(self.adapter, trace.index)
        if self.watch is not None:
            self.watch(trace)
        self.reaches.append(trace.layer.reach)
        self.kept_bytes -= sum(alpha.nbytes for alpha in trace.alphas)
        kept = replace(trace, rows={}) if self.kept_bytes >= 0 else None
        self.visited.append(_Visited(trace.block, trace.call, trace.x, kept))
        self.last = trace.output.detach()

    def __len__(self) -> int:
        return len(self.visited)

    def x(self, index: int) -> Tensor:
        """The input (b, i, d) of one layer, in the algebra's precision."""
        return self.visited[index].x.detach().to(self.dtype)

    @property
    def causal(self) -> bool:
        """Whether no layer lets a token see a later one."""
        return all(reach.ahead == 0 for reach in self.reaches)

    def layer(self, index: int) -> FrozenLayer:
        """One layer, frozen, and compared with what the model computed."""
        return self.layer_beside_model(index)[0]

    def layer_beside_model(self, index: int) -> tuple[FrozenLayer, dict[int, Tensor]]:
        """The same, and the model's own vectors (b, i, d) behind its steps."""
        visited = self.visited[index]
        trace = visited.trace
        if trace is None:
            trace = run_again(self.adapter, index, visited.block, visited.call)
        layer = trace.layer.to(self.dtype)
        frozen = freeze(
            layer,
            trace.x.to(self.dtype),
            [alpha.to(self.dtype) for alpha in trace.alphas],
            self.lengths,
            self.rule,
            parts=False,
            observe=lambda step, y: self._compare(index, layer, step, y, trace.real),
        )
        return frozen, trace.real

    def _compare(
        self, index: int, layer: Layer, step: int, y: Tensor, real: dict[int, Tensor]
    ) -> None:
        if step in real:
            error = relative_error(y, real[step], self.lengths)
            self.errors[index, layer.scope_of_step[step]] = error

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""
        if self.errors:
            values = torch.stack(list(self.errors.values())).tolist()
            named = [(*key, value) for key, value in zip(self.errors, values, strict=True)]
            check_completeness(named, dtype)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def raise_between(adapter: Adapter, index: int) -> None:
    """Refuse a model that does more between two layers than its adapter describes."""
    outside = adapter.outside_scopes()
    raise UnsupportedModelError(
        f"the model changes its vectors between layers {index - 1} and {index}, which no layer "
        f"describes{f' ({outside})' if outside else ''}; scores cannot be carried through that"
    )


def token_mask(lengths: Sequence[int], n: int, device: torch.device) -> Tensor:
    """Which places of a batch hold tokens, (b, n)."""
    ends = torch.tensor(list(lengths), device=device)
    return torch.arange(n, device=device) < ends[:, None]

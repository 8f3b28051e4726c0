"""The frozen network: every layer of a traced model, frozen when it is asked for.

What freezing needs is kept from the forward pass where it is small. Where it is not, only each
layer's input is, and the model runs the layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.analysing.guard import Guard, Seen
from normlens.analysing.verdicts import check_completeness
from normlens.components import Layer, Reach
from normlens.decomposition import FrozenLayer, freeze
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.scores import LayerScores
from normlens.errors import UnsupportedModelError
from normlens.matmul import splits
from normlens.models.base import Adapter
from normlens.tracing.checks import check_tokens
from normlens.tracing.recorder import Call, LayerTrace
from normlens.tracing.trace import run_again, run_traced

#: The share of the memory limit that attention weights may take; the rest is for the way back.
KEPT_SHARE = 8


@dataclass(frozen=True)
class _Visited:
    """A layer that the model has run: enough to run it again."""

    block: nn.Module
    call: Call
    x: Tensor  # (b, i, d)
    trace: LayerTrace | None  # all of it, where that is small
    outputs: int  # that the block returned in a tuple; 0: a vector alone


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
    real: dict[int, Tensor] = field(default_factory=dict)  # of the layer that was frozen last
    errors: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # by layer and scope
    reaches: list[Reach] = field(default_factory=list)  # of every layer
    watch: Callable[[LayerTrace], object] | None = None  # is shown every layer as the model ran it
    sources: dict[str, Tensor] = field(default_factory=dict)  # other sequences (b, k, d), by name
    source_lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)  # their real tokens
    layer_in_words: str = "layer"
    first: int = 0  # the place of its first layer among all that the model runs
    guard: Guard | None = None

    def run(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Run `model`, the adapter's or the one that holds it, and return its output."""
        count = len(self.adapter.blocks())
        output = run_traced(self.adapter, model, inputs, range(count), self.visit)
        self.compare()
        return output

    def compare(self) -> None:
        """Compare layers that the model has run with float32, where that is due."""
        if self.guard is None:
            return
        kept: dict[Hashable, Seen] = {}
        for index, visited in enumerate(self.visited):
            name = f"{self.layer_in_words} {index}"
            place = self.first + index
            seen = Seen(place, name, visited.block, visited.call, self.lengths)
            self.guard.keep(kept, self.rule, seen)
        self.guard.layers(self.rule, kept)

    def visit(self, trace: LayerTrace) -> None:
        """Keep what the way back needs of a layer that the model has run."""
        if self.last is not None and not _same(trace.x, self.last):
            raise_between(self.adapter, trace.index)
        check_tokens(self.adapter, trace, self.lengths)
        if self.watch is not None:
            self.watch(trace)
        self.reaches.append(trace.layer.reach)
        for name, vectors in trace.sources.items():
            if name not in self.sources:  # all layers read the same
                self.sources[name] = vectors.detach().to(self.dtype)
        self.kept_bytes -= sum(alpha.nbytes for alpha in trace.alphas)
        kept = replace(trace, rows={}) if self.kept_bytes >= 0 else None
        self.visited.append(_Visited(trace.block, trace.call, trace.x, kept, trace.outputs))
        self.last = trace.output.detach()

    @property
    def returned(self) -> dict[nn.Module, Any]:
        """For every block, the last one's vector in the form in which that block returned its."""
        return {
            one.block: (self.last, *[None] * (one.outputs - 1)) if one.outputs else self.last
            for one in self.visited
        }

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
        visited = self.visited[index]
        trace = visited.trace
        if trace is None:
            trace = run_again(self.adapter, index, visited.block, visited.call)
        layer = trace.layer.to(self.dtype, split=True)
        self.real = trace.real
        split = splits(trace.alphas[0])
        return freeze(
            layer,
            trace.x.to(self.dtype),
            [alpha if split else alpha.to(self.dtype) for alpha in trace.alphas],
            self.lengths,
            self.rule,
            sources=self.sources,
            parts=False,
            real=trace.real,
            source_lengths=self.source_lengths,
            observe=lambda step, y: self._compare(index, layer, step, y, trace.real),
        )

    def _compare(
        self, index: int, layer: Layer, step: int, y: Tensor, real: dict[int, Tensor]
    ) -> None:
        """Note how far a vector that was computed here misses the model's."""
        if step in real:
            error = relative_error(y, real[step], self.lengths)
            self._note(index, layer.scope_of_step[step], error)

    def compare_scores(self, index: int, frozen: FrozenLayer, scores: LayerScores) -> None:
        """Note how far blocks, whose output was taken from the model, miss it where scores read it.

        An error e of the output y_i, in no special direction, moves a score by ``g_i · e``, about
        ``‖g_i‖ ‖e‖ / √d``: so the root mean square of ``√d (g_i · e) / (‖g_i‖ ‖y_i‖)`` is about
        ``‖e‖ / ‖y_i‖``.
        """
        for step, passed in scores.passed.items():
            real = self.real.get(step)
            if real is None:
                continue
            g, y = scores.gradients[step], real.to(self.dtype)
            total = passed if step not in scores.unowned else passed + scores.unowned[step]
            sizes = torch.linalg.vector_norm(g, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
            missed = (g * y).sum(-1) - total
            read = sizes > 0
            relative = torch.where(read, missed / sizes.where(read, torch.ones_like(sizes)), 0)
            mean = relative.square().sum() / read.sum().clamp_min(1)
            error = (y.shape[-1] * mean).sqrt().nan_to_num(nan=float("inf"))
            self._note(index, frozen.layer.scope_of_step[step], error)

    def _note(self, index: int, scope: str, error: Tensor) -> None:
        worst = self.errors.get((index, scope))
        self.errors[index, scope] = error if worst is None else torch.maximum(worst, error)

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""
        if self.errors:
            values = torch.stack(list(self.errors.values())).tolist()
            named = [(*key, value) for key, value in zip(self.errors, values, strict=True)]
            check_completeness(named, dtype, self.layer_in_words)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def raise_between(adapter: Adapter, index: int) -> None:
    """Refuse a model that does more between two layers than its adapter describes."""
    outside = adapter.outside_scopes()
    raise UnsupportedModelError(
        f"the model changes its vectors between layers {index - 1} and {index}, which no layer "
        f"describes{f' ({outside})' if outside else ''}; scores cannot be carried through that"
    )

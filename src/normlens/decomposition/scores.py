"""A score's way back through a frozen layer: what each component adds, and what flows where.

A score s is linear in the vectors behind the layer, with ``g_i = ∂s/∂y_i``. One walk from the last
step to the first gives the gradient at the layer's input, and on the way

    Σ_j g_j · x_j + Σ_components unowned = Σ_i g_i · y_i                     (completeness)

The flow map ``L_ij = g_i · F_i(x_j)`` says how much of s goes from source j to target i: its column
sums are ``g_j · x_j``, its row sums and biases ``g_i · y_i``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normlens.decomposition.attention import FrozenAttention
from normlens.decomposition.feedforward import (
    NOT_LINEAR,
    FrozenParallelFeedForward,
    SampledFeedForward,
)
from normlens.decomposition.frozen import FrozenLayer
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.residual import FrozenBranch, FrozenResidual
from normlens.errors import InputError


@dataclass(frozen=True)
class LayerScores:
    """What one layer does to scores; `…` are scores side by side."""

    arriving: Tensor  # ∂s/∂x_j (…, b, j, d)
    passed: Mapping[int, Tensor]  # step → (…, b, i), what its output owes to its input
    unowned: Mapping[int, Tensor]  # step → (…, b, i), what its output owes to biases
    heads: Mapping[int, Tensor]  # attention step → (…, b, h, i), `passed` by head
    gradients: Mapping[int, Tensor] = field(default_factory=dict)  # step → ∂s/∂(its output)


def layer_scores(frozen: FrozenLayer, g: Tensor, keep: Sequence[int] = ()) -> LayerScores:
    """Carry g (…, b, i, d) behind a layer to its input; `keep` the gradient behind these steps."""
    _check(frozen)
    passed: dict[int, Tensor] = {}
    unowned: dict[int, Tensor] = {}
    heads: dict[int, Tensor] = {}
    kept: dict[int, Tensor] = {}
    saved: list[Tensor] = []
    at_start: Tensor | None = None
    for index in reversed(range(len(frozen.steps))):
        step = frozen.steps[index]
        if index in keep:
            kept[index] = g
        if isinstance(step, FrozenBranch):
            g = g + saved.pop()
            continue
        if isinstance(step, FrozenResidual):
            saved.append(g)
            continue
        assert not isinstance(step, SampledFeedForward)
        scored = step.score(g)
        if scored.passed is not None:
            passed[index] = scored.passed
        if scored.unowned is not None:
            unowned[index] = scored.unowned
        if scored.heads is not None:
            heads[index] = scored.heads
        if isinstance(step, FrozenParallelFeedForward):
            at_start = scored.arriving if at_start is None else at_start + scored.arriving
        else:
            g = scored.arriving
    arriving = g if at_start is None else g + at_start
    return LayerScores(arriving, passed, unowned, heads, kept)


def flow(frozen: FrozenLayer, g: Tensor, until: int | None = None) -> tuple[Tensor, Tensor]:
    """The flow map by head (…, b, h, i, j), and what passes beside the attention (…, b, i).

    `g` (…, b, i, d) is the gradient behind step `until`; without it, behind the layer. What passes
    beside is the diagonal's: each token's way through residuals and blocks that see it alone.
    """
    _check(frozen)
    last = len(frozen.steps) - 1 if until is None else until
    inside = _matched(frozen, last)
    saved: list[Tensor] = []
    by_head: Tensor | None = None
    at_start: Tensor | None = None
    # Behind the attention all of g may still pass it; in front of it, g is what came beside it.
    for index in reversed(range(last + 1)):
        step = frozen.steps[index]
        if isinstance(step, FrozenBranch):
            if index in inside:
                g = g + saved.pop()
        elif isinstance(step, FrozenResidual):
            saved.append(g)
        elif isinstance(step, FrozenParallelFeedForward):
            beside = step.adjoint(g)
            at_start = beside if at_start is None else at_start + beside
        elif isinstance(step, FrozenAttention):
            by_head = step.head_flow(g, _unowned_before(frozen, index))
            g = torch.zeros_like(g)
        else:
            assert not isinstance(step, (SampledFeedForward, FrozenResidual))
            g = step.adjoint(g)
    assert by_head is not None
    g = g if at_start is None else g + at_start
    return by_head, (g * frozen.x).sum(-1)


def _unowned_before(frozen: FrozenLayer, attention: int) -> Tensor | None:
    """The β (d,) of a norm in front of the attention."""
    norms = [step for step in frozen.steps[:attention] if isinstance(step, FrozenNorm)]
    if len(norms) > 1:
        raise InputError("a flow map needs at most one norm in front of the attention")
    return norms[0].unowned if norms else None


def _matched(frozen: FrozenLayer, last: int) -> set[int]:
    """The branches whose residual stands at or before step `last`."""
    inside: set[int] = set()
    waiting: list[int] = []
    for index, step in enumerate(frozen.steps[: last + 1]):
        if isinstance(step, FrozenBranch):
            waiting.append(index)
        elif isinstance(step, FrozenResidual):
            inside.add(waiting.pop())
    return inside


def _check(frozen: FrozenLayer) -> None:
    if any(isinstance(step, SampledFeedForward) for step in frozen.steps):
        raise InputError(NOT_LINEAR)
    attentions = [step for step in frozen.steps if isinstance(step, FrozenAttention)]
    if any(step.attention.source is not None for step in attentions):
        raise InputError("scores of layers that read another sequence are not carried back yet")

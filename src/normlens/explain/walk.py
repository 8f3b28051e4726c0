"""The way back: scores carried from where they are read to the model's input tokens.

    Σ_k c_k + Σ_{ℓ, component} bias = s                    (completeness, at every layer)

with ``c_k = g_k · e_k`` of the vectors e_k that enter the first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normlens.advancing import Progress
from normlens.decomposition.frozen import FrozenLayer
from normlens.decomposition.scores import (
    LayerScores,
    cross_attentions,
    cross_flow,
    cross_flow_by_head,
    flow,
    flow_by_head,
    layer_scores,
    scores_behind,
)
from normlens.explain.network import FrozenNetwork
from normlens.explain.readings import Start
from normlens.pinned import pinned_copy
from normlens.results.explanation_words import RES


@dataclass(frozen=True)
class Wanted:
    """What to keep on the way."""

    flow: bool = True  # the map of every layer
    heads: bool = False  # the same by head
    scopes: frozenset[str] = frozenset()  # the same behind these scopes


@dataclass
class FromOther:
    """What a stack's layers gave to the other sequence that they read, and by which way.

    The first two axes are (t, b); k are the other sequence's tokens.
    """

    gradient: Tensor | None = None  # (t, b, k, d), of all layers that were passed
    nodes: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, k), of this and later
    heads: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i)
    flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, i, k)
    head_flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i, k)
    scope_flows: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i, k)


@dataclass
class Carried:
    """What the way back of several scores of a batch left behind; the first two axes are (t, b)."""

    nodes: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, j), c of its input
    components: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i)
    unowned: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i)
    heads: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i)
    flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, i, j)
    head_flows: dict[int, Tensor] = field(default_factory=dict)  # layer → (t, b, h, i, j)
    scope_flows: dict[tuple[int, str], Tensor] = field(default_factory=dict)  # (t, b, i, j)
    other: FromOther = field(default_factory=FromOther)


def bring_home(carried: Carried) -> None:
    """Copy what the way back leaves on a GPU to the CPU; it is there after `wait_for`."""
    kept: list[dict[Any, Tensor]] = [
        value
        for part in (carried, carried.other)
        for value in vars(part).values()
        if isinstance(value, dict)
    ]
    for tensors in kept:
        tensors.update({key: pinned_copy(tensor) for key, tensor in tensors.items()})


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def carry(
    network: FrozenNetwork,
    starts: Sequence[Sequence[Start]],
    wanted: Wanted,
    progress: Progress | None = None,
) -> Carried:
    """Carry the scores `starts`[t][b] back through the network's layers."""
    carried = Carried()
    last = max(start.layer for row in starts for start in row)
    g: Tensor | None = None
    for index in reversed(range(last + 1)):
        entering = _entering(starts, index)
        if entering is not None:
            g = entering if g is None else g + entering
        assert g is not None
        g = carry_through(network, index, g, wanted, carried)
        if progress is not None:
            progress(last + 1 - index, last + 1)
    return carried


def _entering(starts: Sequence[Sequence[Start]], index: int) -> Tensor | None:
    """The gradients that begin behind one layer, zeros for the others, (t, b, n, d)."""
    if all(start.layer != index for row in starts for start in row):
        return None
    rows = [
        torch.stack([s.gradient if s.layer == index else torch.zeros_like(s.gradient) for s in row])
        for row in starts
    ]
    return torch.stack(rows)


def carry_through(
    network: FrozenNetwork, index: int, g: Tensor, wanted: Wanted, carried: Carried
) -> Tensor:
    """Carry g (t, b, i, d) behind one layer to its input, and keep what is wanted on the way."""
    frozen = network.layer(index)
    names, scopes = frozen.layer.step_names, frozen.layer.scope_of_step
    steps = {step: scope for step, scope in scopes.items() if scope in wanted.scopes}
    scores = layer_scores(frozen, g, keep={*steps, *network.real})
    network.compare_scores(index, frozen, scores)
    arriving = scores.arriving
    for step, share in scores.ways.items():
        carried.components[index, names[step]] = share
    if scores.residual is not None:
        carried.components[index, RES] = scores.residual
    for step, share in scores.unowned.items():
        carried.unowned[index, names[step]] = share
    crossing = dict(cross_attentions(frozen))
    for step, share in scores.heads.items():
        (carried.other.heads if step in crossing else carried.heads)[index] = share
    carried.nodes[index] = (arriving * frozen.x).sum(-1)
    if wanted.flow:
        carried.flows[index] = flow(frozen, scores)
    if wanted.heads:
        carried.head_flows[index] = flow_by_head(frozen, scores)
    behind = {
        scope: scores_behind(frozen, scores.gradients[step], step) for step, scope in steps.items()
    }
    for scope, part in behind.items():
        carried.scope_flows[index, scope] = flow(frozen, part)
    if crossing:
        _keep_other(network, index, frozen, scores, behind, wanted, carried.other)
    return arriving


def _keep_other(
    network: FrozenNetwork,
    index: int,
    frozen: FrozenLayer,
    scores: LayerScores,
    behind: dict[str, LayerScores],
    wanted: Wanted,
    other: FromOther,
) -> None:
    """Keep what a layer gives to the other sequence that it reads."""
    ((name, gradient),) = scores.others.items()
    other.gradient = gradient if other.gradient is None else other.gradient + gradient
    other.nodes[index] = (other.gradient * network.sources[name]).sum(-1)
    if wanted.flow and (whole := cross_flow(frozen, scores)) is not None:
        other.flows[index] = whole
    if wanted.heads and (by_head := cross_flow_by_head(frozen, scores)) is not None:
        other.head_flows[index] = by_head
    for scope, part in behind.items():
        if (passing := cross_flow(frozen, part)) is not None:
            other.scope_flows[index, scope] = passing

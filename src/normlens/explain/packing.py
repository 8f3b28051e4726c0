"""From what the way back left behind to the arrays of one explanation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.explain.readings import Start
from normlens.explain.walk import Carried
from normlens.heads import OF_CLASSES, OF_TOKENS, Head

#: The layer of what stands behind the last one.
HEAD = "head"

Array = NDArray[Any]


@dataclass(frozen=True)
class Said:
    """What the model itself says: the score that is explained, and what it consists of."""

    value: float
    columns: tuple[int, ...] = ()  # the target's column, and the contrast's
    scores: tuple[float, ...] = ()
    probabilities: tuple[float, ...] | None = None

    @classmethod
    def of(cls, scores: Tensor, columns: Sequence[tuple[int, float]], head: Head) -> Said:
        """Read from all scores (columns,) of the head."""
        places = [column for column, _ in columns]
        chosen = [float(scores[place]) for place in places]
        value = sum(sign * score for (_, sign), score in zip(columns, chosen, strict=True))
        probabilities = _probabilities(scores, places, head)
        return cls(value, tuple(places), tuple(chosen), probabilities)


def _probabilities(scores: Tensor, places: list[int], head: Head) -> tuple[float, ...] | None:
    """Probabilities where the scores are compared with each other; a regression has none."""
    exclusive = head.task in (*OF_TOKENS, *OF_CLASSES) and head.exclusive
    if len(scores) < 2 or not exclusive:
        return None
    total = torch.logsumexp(scores, 0)
    return tuple(float((scores[place] - total).exp()) for place in places)


@dataclass(frozen=True)
class Packed:
    """The numbers of one explanation."""

    nodes: Array  # (layer, position)
    component_names: list[str]
    components: Array  # (layer, component, position), NaN where a layer has no such component
    heads: Array  # (layer, head, position)
    bias: list[tuple[int | str, str, float]]  # layer, component, value
    flows: dict[str, Array]  # scope, or "" for the whole layer → (layer, target, source)
    head_flow: Array | None  # (layer, head, target, source)
    errors: list[float]  # of completeness behind the embeddings, each layer, and at the end
    cross_heads: Array | None = None  # (layer, head, position), of CROSS


def pack(carried: Carried, t: int, b: int, n: int, began: Start, value: float) -> Packed:
    """The numbers of score t of sequence b, which has n tokens; the model says it is `value`."""
    layers = sorted(layer for layer in carried.nodes if layer <= began.layer)
    nodes = np.stack([numbers(carried.nodes[layer][t, b, :n]) for layer in layers])
    names = list(dict.fromkeys(name for _, name in sorted(carried.components)))
    components = np.full((len(layers), len(names), n), np.nan)
    bias: list[tuple[int | str, str, float]] = []
    for layer in layers:
        for place, name in enumerate(names):
            if (layer, name) in carried.components:
                components[layer, place] = numbers(carried.components[layer, name][t, b, :n])
        for (owner, name), share in carried.unowned.items():
            if owner == layer:
                bias.append((layer, name, float(share[t, b, :n].double().sum())))
    bias += [(HEAD, name, share) for name, share in began.unowned.items()]
    return Packed(
        nodes=nodes,
        component_names=names,
        components=components,
        heads=np.stack([numbers(carried.heads[layer][t, b, :, :n]) for layer in layers]),
        bias=bias,
        flows=_flows(carried, t, b, n, layers),
        head_flow=_stack([carried.head_flows.get(layer) for layer in layers], t, b, n),
        errors=errors_of(nodes, bias, layers, began, value),
    )


def _flows(carried: Carried, t: int, b: int, n: int, layers: list[int]) -> dict[str, Array]:
    whole = _stack([carried.flows.get(layer) for layer in layers], t, b, n)
    flows = {} if whole is None else {"": whole}
    for scope in dict.fromkeys(scope for _, scope in carried.scope_flows):
        stacked = _stack([carried.scope_flows.get((layer, scope)) for layer in layers], t, b, n)
        if stacked is not None:
            flows[scope] = stacked
    return flows


def _stack(maps: Sequence[Tensor | None], t: int, b: int, n: int) -> Array | None:
    """Maps of all layers; NaN where a layer has none, None where no layer has one."""
    first = next((each for each in maps if each is not None), None)
    if first is None:
        return None
    empty = first.new_full((*first.shape[2:-2], n, n), math.nan)
    # By torch, whose threads share the work: most of it is the system's, fresh pages for the array.
    return numbers(torch.stack([empty if m is None else m[t, b, ..., :n, :n] for m in maps]))


def errors_of(
    nodes: Array,
    bias: Sequence[tuple[int | str, str, float]],
    layers: list[int],
    began: Start,
    value: float,
) -> list[float]:
    """How far contributions and biases miss the score at every layer.

    Relative to the largest of the score and its summands: no sum is more exact than its largest
    summand.
    """
    scale = max(
        [abs(value), *map(abs, began.columns), *(abs(share) for _, _, share in bias)],
        default=0.0,
    )
    scale = max(scale, float(np.abs(nodes).max(initial=0.0)), np.finfo(float).tiny)
    behind = sum(share for layer, _, share in bias if layer == HEAD)
    errors = [abs(began.value - value) / scale]
    for layer in reversed(layers):
        behind += sum(share for owner, _, share in bias if owner == layer)
        errors.append(abs(float(nodes[layer].sum(dtype=np.float64)) + behind - value) / scale)
    return errors[::-1]


def numbers(tensor: Tensor) -> Array:
    """A tensor's numbers on the host."""
    array: Array = tensor.detach().cpu().numpy()
    return array

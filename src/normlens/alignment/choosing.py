"""What an alignment is read from: scopes of the decoder that the source has reached, and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.alignment.options import ALL, EXPLAIN, OUTPUT
from normlens.errors import InputError
from normlens.models.base import read_head
from normlens.models.parts import DECODER, TwoStacks
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import scopes_of
from normlens.pipeline.call import layers_by_stack
from normlens.scopes import components_of, resolve

if TYPE_CHECKING:
    from normlens.layers import Layer
    from normlens.lens import Lens

#: The cross-attention alone: its weights, and the norms of what it adds.
WEIGHTS, NORMS = "CROSS-W", "CROSS-N"


@dataclass(frozen=True)
class Chosen:
    """Scopes by the names that tables use, each with its full name; layers and heads from 0."""

    scopes: dict[str, str]
    layers: list[int]
    heads: list[int]  # none: all heads together
    together: bool  # whether maps of all heads together are read
    explains: bool = False  # whether contributions to logits are read


def choose(
    lens: Lens,
    scopes: Sequence[str],
    layers: Sequence[int] | None,
    ways: Sequence[str],
    head: int | str | None,
) -> Chosen:
    """What these options mean for a model, or an error that says what it has."""
    if not isinstance(lens.adapter, TwoStacks):
        raise InputError(
            f"{lens.name} reads one sequence; words are aligned with an encoder–decoder (T5, BART, "
            "Marian, NLLB, …)"
        )
    decoder = layers_by_stack(lens.adapter, lens.layers)[DECODER]
    available = scopes_of(decoder)
    reached = {_name(scope): scope for scope in available if "CROSS" in components_of(scope)}
    of_maps = [scope for scope in scopes if scope.upper() != EXPLAIN]
    explains = len(of_maps) < len(scopes)
    if explains:
        _check_explains(lens, ways, head)
    named: dict[str, str] = {}
    for scope in of_maps:
        named |= reached if scope == ALL else _one(scope, available, reached)
    wanted = AnalysisOptions(layers=layers).layers_of(len(decoder), f"the decoder of {lens.name}")
    heads = _heads(head, min(_cross_heads(decoder[layer]) for layer in wanted), lens.name)
    if head not in (None, ALL) and (deeper := [n for n in named if n not in (WEIGHTS, NORMS)]):
        raise InputError(
            f"single heads have maps of {WEIGHTS} and {NORMS}, not of {deeper[0]}; leave --head "
            "out, or choose these scopes"
        )
    ordered = {name: full for name, full in reached.items() if name in named}
    return Chosen(ordered, wanted, heads, together=head in (None, ALL), explains=explains)


def _check_explains(lens: Lens, ways: Sequence[str], head: int | str | None) -> None:
    read_head(lens.adapter)  # raises for a model without one
    if OUTPUT not in ways:
        raise InputError(
            "contributions to a logit are of the row that predicts a word; choose --way output, or "
            "leave explain out of --scope"
        )
    if head not in (None, ALL):
        raise InputError("contributions to a logit are of the whole model; leave --head out")


def _one(scope: str, available: Sequence[str], reached: dict[str, str]) -> dict[str, str]:
    full = resolve(scope, available)
    if full not in reached.values():
        raise InputError(
            f"nothing of the source has reached {full}, so that no word can be aligned by it; "
            f"choose some of: {', '.join(reached)}, explain"
        )
    return {_name(full): full}


def _name(scope: str) -> str:
    """CROSS-N for the scope that ends with the cross-attention, whatever stands before it."""
    if scope.endswith("-N") and components_of(scope)[-1] == "CROSS":
        return NORMS
    return scope


def _heads(head: int | str | None, count: int, name: str) -> list[int]:
    if head is None:
        return []
    if head == ALL:
        return list(range(count))
    if isinstance(head, str) or not 0 <= head < count:
        raise InputError(
            f"head {head!r} is out of range; the cross-attention of {name} has heads 0 to "
            f"{count - 1}"
        )
    return [int(head)]


def _cross_heads(layer: Layer) -> int:
    return next(step.heads for step in layer.attentions if step.source is not None)

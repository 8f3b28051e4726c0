"""What one call asks of each stack of layers: all of a model's, or its encoder's and decoder's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from normlens.analysing.unlike_layers import chosen_scopes, scopes_of
from normlens.components import Layer
from normlens.errors import InputError
from normlens.models.two_stacks import DECODER, ENCODER, TwoStacks
from normlens.options import AnalysisOptions, Request
from normlens.scopes import is_among, resolve

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another, and what is asked of them."""

    layers: Sequence[Layer]
    request: Request  # its layers count from this stack's first
    first: int = 0  # the place of the stack's first layer among all that the model runs
    name: str = ""  # `ENCODER` or `DECODER`; empty: the model has no other

    @property
    def layer_in_words(self) -> str:
        """How errors call a layer of this stack."""
        return f"{self.name} layer" if self.name else "layer"


def stacks_of(
    lens: Lens, options: AnalysisOptions, arrays: bool, correlations: bool
) -> tuple[Stack, ...]:
    """What `options` ask of a lens's stacks; an encoder of which nothing is asked is left out."""

    def request(scopes: list[str], layers: list[int]) -> Request:
        settings = options.settings
        return Request(
            scopes, layers, settings, arrays, correlations, options.origin, options.map_dtype
        )

    if not isinstance(lens.adapter, TwoStacks):
        layers = options.layers_of(lens.n_layers, lens.name)
        scopes = chosen_scopes(options, lens.layers, layers, lens.name)
        return (Stack(lens.layers, request(scopes, layers)),)
    both = layers_by_stack(lens.adapter, lens.layers)
    asked = []
    for name, layers_of_stack in both.items():
        chosen = _layers(options, layers_of_stack, both)
        here = [layers_of_stack[index] for index in chosen]
        asked.append((name, chosen, _scopes(options, here, lens.layers)))
    stacks, first = [], 0
    for (name, layers, scopes), all_layers in zip(asked, both.values(), strict=True):
        if layers and scopes:
            stacks.append(Stack(all_layers, request(scopes, layers), first, name))
        first += len(all_layers)
    if not stacks or stacks[-1].name != DECODER:
        raise InputError(
            "only layers or scopes of the encoder are asked for; ask for some of the decoder's, "
            f"too: {', '.join(scopes_of(both[DECODER]))} in its {len(both[DECODER])} layers"
        )
    return tuple(stacks)


def layers_by_stack(adapter: TwoStacks, layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """The layers of an encoder–decoder, which it runs one stack after the other, by stack."""
    count = len(adapter.encoder_blocks())
    return {ENCODER: list(layers[:count]), DECODER: list(layers[count:])}


def _layers(
    options: AnalysisOptions, here: Sequence[Layer], both: dict[str, list[Layer]]
) -> list[int]:
    """The chosen layers that this stack has; one that no stack has is an error."""
    longest = max(both, key=lambda name: len(both[name]))
    options.layers_of(len(both[longest]), f"its {longest}")
    if options.layers is None or isinstance(options.layers, str):
        return list(range(len(here)))
    listed = options.layers if isinstance(options.layers, Iterable) else [options.layers]
    inside = [int(layer) for layer in listed if -len(here) <= layer < len(here)]
    return replace(options, layers=inside).layers_of(len(here), "") if inside else []


def _scopes(
    options: AnalysisOptions, here: Sequence[Layer], everywhere: Sequence[Layer]
) -> list[str]:
    """The chosen scopes that these layers have; short names mean scopes of this stack."""
    available = scopes_of(here)
    if options.scopes is None or options.scopes == "all":
        return options.scopes_of(available)
    names = [options.scopes] if isinstance(options.scopes, str) else list(options.scopes)
    meant = [name for name in names if is_among(name, available)]
    for name in names:
        if not any(is_among(name, layer.scopes) for layer in everywhere):
            resolve(name, scopes_of(everywhere))  # raises, and lists them all
    return replace(options, scopes=meant).scopes_of(available) if meant else []

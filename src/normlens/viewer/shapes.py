"""Maps as the viewer's items: layers that are alike, a decoder's with its encoder's."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from normlens.layers import layers_in_words

if TYPE_CHECKING:
    from normlens.results.maps import Maps


def items_of(maps: Maps) -> list[Maps]:
    """The same maps, or one for each kind of layer where layers have different scopes.

    An encoder's maps stay beside the decoder's; kinds of its layers that the decoder has no
    counterpart for stand alone.
    """
    if maps.encoder is None:
        return of_like_layers(maps)
    both = zip_longest(of_like_layers(maps.decoder), of_like_layers(maps.encoder))
    return [other if own is None else replace(own, encoder=other) for own, other in both]


def of_like_layers(maps: Maps) -> list[Maps]:
    """The same maps, or one for each kind of layer where layers have different scopes."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for layer in maps.layers:
        scopes = tuple(scope for scope in maps.scopes if layer in maps.covered("arrays", scope))
        if scopes:  # a layer may have head-level maps alone
            kinds.setdefault(scopes, []).append(layer)
    if set(kinds) == {tuple(maps.scopes)}:
        return [maps]
    return [_named(maps.choose(layers, scopes)) for scopes, layers in kinds.items()]


def _named(maps: Maps) -> Maps:
    """The same maps with their layers in the name of their model."""
    model = f"{maps.provenance.get('model', 'model')} ({layers_in_words(maps.layers)})"
    return replace(maps, provenance={**maps.provenance, "model": model})

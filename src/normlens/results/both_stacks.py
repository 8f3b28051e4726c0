"""The two stacks of an encoder–decoder's maps: one by one, or cut down alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from normlens.errors import InputError, check_choice
from normlens.scopes import resolve

if TYPE_CHECKING:
    from normlens.results.maps import Maps

#: The names of the stacks, in the order in which the model runs them.
STACKS = ("encoder", "decoder")


def by_stack(maps: Maps, stack: str | None = None) -> list[Maps]:
    """The maps of each stack, the encoder's first; `stack` ("encoder", "decoder") takes one."""
    both = [maps] if maps.encoder is None else [maps.encoder, maps.decoder]
    if stack is None:
        return both
    check_choice(stack, STACKS, "stack")
    found = [one for one in both if one.stack == stack]
    if not found:
        what = f"the {maps.stack}'s alone" if maps.stack else "of a model with one stack"
        raise InputError(f"these maps are {what}; there is no {stack} to choose")
    return found


def choose_in_stacks(
    maps: Maps,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    stack: str | None = None,
) -> Maps:
    """Some of the layers and scopes of each stack that has them, as `Lens.maps` would give them.

    Layers count from 0 in each stack, and a short name means a scope of each. A stack that has none
    of them is left out.
    """
    both = by_stack(maps, stack)
    if len(both) == 1:
        return both[0].choose(layers, scopes)
    wanted = None
    if layers is not None:
        wanted = list(layers) if isinstance(layers, Iterable) else [layers]
    names = [scopes] if isinstance(scopes, str) else scopes
    names = None if names is None or scopes == "all" else list(names)
    _check_somewhere(both, wanted, names)
    chosen = []
    for one in both:
        of_layers = None if wanted is None else [k for k in wanted if _has_layer(one, k)]
        of_scopes = None if names is None else [name for name in names if name in one]
        if of_layers != [] and of_scopes != []:
            chosen.append(one.choose(of_layers, of_scopes))
    if not chosen:
        raise InputError(
            "no stack has both the chosen layers and the chosen scopes; the encoder has "
            f"{', '.join(both[0].scopes)}, the decoder {', '.join(both[1].scopes)}"
        )
    *encoder, last = chosen
    return replace(last, encoder=encoder[0]) if encoder else last


def _has_layer(maps: Maps, layer: int) -> bool:
    try:
        maps.wanted_layers([layer])
    except InputError:
        return False
    return True


def _check_somewhere(both: list[Maps], layers: list[int] | None, names: list[str] | None) -> None:
    """Raise for a layer or a scope that neither stack has, and where nothing is chosen."""
    longest = max(both, key=lambda one: len(one.layers))
    lacking = [layer for layer in layers or () if not any(_has_layer(one, layer) for one in both)]
    if lacking or layers == []:
        longest.wanted_layers(lacking)  # raises, and lists them all
    if names == []:
        raise InputError("no scope is chosen; leave `scopes` out to take all")
    for name in names or ():
        if not any(name in one for one in both):
            everything = dict.fromkeys(scope for one in both for scope in one.scopes)
            resolve(name, list(everything))  # raises, and lists them all

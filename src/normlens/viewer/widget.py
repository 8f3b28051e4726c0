"""Maps in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError, check_choice
from normlens.results.both_stacks import STACKS
from normlens.results.labelled import LabelledMaps
from normlens.results.sequences import OTHER_SEQUENCE, OWN_SEQUENCE
from normlens.viewer import payload
from normlens.viewer.html import fitted, title_of
from normlens.viewer.notebook import Notebook
from normlens.viewer.shapes import items_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


SOURCES = ("both", *STACKS)
DIRECTIONS = ("row", "column")
_WHOLE_LAYER = 64  # tokens up to which a still picture has all scopes of a layer


def show(maps: Maps | Sequence[Maps], **state: Any) -> Any:
    """Make the widget of one or several maps, or a frame that says how to get the widget.

    `state` says what it shows first, in the words of the page's address: ``layer=3`` (from 0),
    ``scope="FF"``, ``view="compare"``.
    """
    return _notebook(maps, state).show()


def mimebundle(maps: Maps, **options: Any) -> Any:
    """Build what a notebook shows for maps that are the last expression of a cell."""
    return _notebook(maps, {}).mimebundle(repr(maps), **options)


def _notebook(maps: Maps | Sequence[Maps], state: Mapping[str, Any]) -> Notebook:
    listed = payload.as_list(maps)
    words = _words(maps, state)
    first = maps if isinstance(maps, LabelledMaps) else maps[0]
    return Notebook(
        lambda largest: fitted(listed, None, largest),
        title_of(listed),
        "maps.to_html('maps.html')",
        words,
        lambda: _figure(first, words),
    )


def _figure(maps: Maps, words: Mapping[str, str]) -> Figure:
    """Draw the layer that the viewer opens at; of a long text one of its scopes."""
    whole = _of_stack(maps, words.get("stack", OWN_SEQUENCE)) or maps
    layer = int(words.get("layer", whole.layers[0]))
    if len(whole.tokens) <= _WHOLE_LAYER:
        return whole.plot(layer)
    norms = [s for s in whole.scopes if s.endswith("-N") and layer in whole.layers_of(s)]
    return whole.plot(layer, words.get("scope", norms[0] if norms else None))


def _words(maps: Maps | Sequence[Maps], state: Mapping[str, Any]) -> dict[str, str]:
    """Write the state as the page reads it; a layer or stack that is not there is an error.

    The page itself shows the first layer instead, which is right for an address that was made for
    other maps, but not for an argument. Maps whose layers differ are several items there; the one
    that has the layer is opened.
    """
    words = {name: str(value) for name, value in state.items()}
    if "sources" in words:
        check_choice(words["sources"], SOURCES, "sources")
    stack = words.get("stack", OWN_SEQUENCE)
    check_choice(stack, STACKS, "stack")
    first = maps if isinstance(maps, LabelledMaps) else maps[0]
    if "item" in words:
        listed = payload.as_list(maps)
        items = {str(number): shown for number, shown in enumerate(listed)}
        first = items.get(words["item"], listed[0])
    whole = _of_stack(first, stack)
    if whole is None:
        raise InputError("there is no encoder beside these maps; leave stack=… out")
    if words.get("view") == "picture" and whole.grid is None:
        raise InputError("these maps are of no picture, or not of all of its patches; view='map'")
    if "head" in words:
        _check_head(whole, words["head"])
    if "direction" in words:
        check_choice(words["direction"], DIRECTIONS, "direction")
    if "layer" not in state:
        return words
    layer = state["layer"]
    if isinstance(layer, str) and layer.isdecimal():
        layer = int(layer)
    (wanted,) = whole.wanted_layers([layer])
    kinds = [_of_stack(kind, stack) for kind in items_of(first)]
    if "item" not in words and len(kinds) > 1:
        places = [place for place, kind in enumerate(kinds) if kind and wanted in kind.layers]
        words["item"] = str(places[0])
    words["layer"] = str(wanted)
    return words


def _check_head(maps: Maps, head: str) -> None:
    """Raise unless maps have single heads, and this one among them."""
    if not maps.heads:
        raise InputError("these maps have no heads; ask for them with lens.maps(text, heads=True)")
    most = max(array.shape[1] for array in maps.heads.values())
    if not head.isdecimal() or int(head) >= most:
        raise InputError(f"there is no head {head}; heads count from 0 to {most - 1}")


def _of_stack(maps: Maps, stack: str) -> Maps | None:
    """The maps of a stack: these themselves, or the encoder's beside them."""
    return maps.encoder if stack == OTHER_SEQUENCE else maps

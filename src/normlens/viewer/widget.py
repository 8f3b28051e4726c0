"""Maps in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normlens.results.labelled import LabelledMaps
from normlens.viewer import payload
from normlens.viewer.html import fitted, title_of
from normlens.viewer.notebook import Notebook
from normlens.viewer.shapes import of_like_layers

if TYPE_CHECKING:
    from normlens.results.maps import Maps


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
    return Notebook(
        lambda largest: fitted(listed, None, largest),
        title_of(listed),
        "maps.to_html('maps.html')",
        _words(maps, state),
    )


def _words(maps: Maps | Sequence[Maps], state: Mapping[str, Any]) -> dict[str, str]:
    """Write the state as the page reads it; a layer that is not in the maps is an error.

    The page itself shows the first layer instead, which is right for an address that was made for
    other maps, but not for an argument. Maps whose layers differ are several items there; the one
    that has the layer is opened.
    """
    words = {name: str(value) for name, value in state.items()}
    if "layer" not in state:
        return words
    layer = state["layer"]
    if isinstance(layer, str) and layer.isdecimal():
        layer = int(layer)
    listed = payload.as_list(maps)
    if "item" in words:
        items = {str(number): shown for number, shown in enumerate(listed)}
        (wanted,) = items.get(words["item"], listed[0]).wanted_layers([layer])
    else:
        first = maps if isinstance(maps, LabelledMaps) else maps[0]
        (wanted,) = first.wanted_layers([layer])
        kinds = of_like_layers(first)
        if len(kinds) > 1:
            places = [place for place, kind in enumerate(kinds) if wanted in kind.layers]
            words["item"] = str(places[0])
    words["layer"] = str(wanted)
    return words

"""Maps in a notebook: an anywidget where it is installed, else the HTML page in a frame."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from normlens.errors import MissingDependencyError
from normlens.labelled import LabelledMaps
from normlens.viewer import page, payload
from normlens.viewer.html import LARGEST, fitted, title_of
from normlens.viewer.shapes import of_like_layers

if TYPE_CHECKING:
    from normlens.maps import Maps

_HINT = "pip install 'normlens[widget]'"
_FRAME = 8.0  # MB; larger frames make notebooks slow to save and to open


def widget(maps: Maps | Sequence[Maps], **state: Any) -> Any:
    """Make an interactive widget of one or several maps.

    `state` says what it shows first, in the words of the page's address: ``layer=3`` (from 0),
    ``scope="FF"``, ``view="compare"``. What the reader does is in the widget's ``state``.
    """
    listed = payload.as_list(maps)
    words = _words(maps, state)
    make = widget_class()
    return make(payload=fitted(listed, None, LARGEST), state=words)


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


@cache
def widget_class() -> type[Any]:
    """Define the widget's class, or raise an error that names what to install."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"the widget needs anywidget: {_HINT}") from error

    class MapsWidget(anywidget.AnyWidget):
        """The viewer; `state` follows what is looked at."""

        _esm = page.script()
        payload = traitlets.Bytes(b"").tag(sync=True)
        state = traitlets.Dict({}).tag(sync=True)

    return MapsWidget


def frame(maps: Maps | Sequence[Maps], height: int = 760, **state: Any) -> str:
    """Put the self-contained page into a frame, for notebooks without anywidget."""
    listed = payload.as_list(maps)
    words = urlencode(_words(maps, state))
    document = page.standalone(fitted(listed, None, _FRAME), title_of(listed), words)
    return (
        f'<iframe title="NormLens" sandbox="allow-scripts allow-downloads" width="100%" '
        f'height="{height}" style="border:0" srcdoc="{html.escape(document)}"></iframe>'
    )


def mimebundle(maps: Maps, **options: Any) -> Any:
    """Build what a notebook shows for maps that are the last expression of a cell."""
    try:
        shown = widget(maps)
    except MissingDependencyError as error:
        note = f"<p>{html.escape(str(error))}; shown in a frame instead.</p>"
        return {"text/plain": repr(maps), "text/html": frame(maps) + note}
    bundle = shown._repr_mimebundle_(**options)
    data, *rest = bundle if isinstance(bundle, tuple) else (bundle,)
    return ({**data, "text/plain": repr(maps)}, *rest) if rest else data


def show(maps: Maps | Sequence[Maps], **state: Any) -> Any:
    """Make the widget, or a frame with a line that says how to get the widget."""
    try:
        return widget(maps, **state)
    except MissingDependencyError as error:
        return _Frame(frame(maps, **state), str(error))


class _Frame:
    """HTML that a notebook displays."""

    def __init__(self, document: str, reason: str) -> None:
        self._document = document
        self._reason = reason

    def __repr__(self) -> str:
        return (
            f"{self._reason}; in a notebook without it the viewer is a frame, and anywhere "
            "maps.to_html('maps.html') writes it to a file"
        )

    def _repr_html_(self) -> str:
        return f"{self._document}<p>{html.escape(self._reason)}; shown in a frame instead.</p>"

"""What the viewer shows first, in the words of the page's address (``viewer/src/state.ts``)."""

from __future__ import annotations

from typing import Literal, TypedDict


class ViewerState(TypedDict, total=False):
    """Keywords of `Maps.show`; what is left out is as usual."""

    item: int | str  # which of several maps, from 0
    layer: int | str  # from 0; negative from the end
    scope: str
    view: Literal["map", "compare", "overview"]
    form: Literal["heat", "arcs"]
    scale: Literal["linear", "sqrt", "rank"]
    norm: Literal["none", "source", "target"]
    range: Literal["map", "layer", "all"]
    palette: Literal["viridis", "cividis", "magma", "greys"]
    special: Literal[0, 1]  # 0 leaves special tokens out
    level: Literal["subwords", "words"]
    pin: str
    pair: str
    zoom: str
    a: str  # the two maps of a comparison
    b: str
    cnorm: Literal["source", "target", "none"]

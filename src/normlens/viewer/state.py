"""What the viewer shows first, in the words of the page's address (``viewer/src/state.ts``)."""

from __future__ import annotations

from typing import Literal, TypedDict


class ViewerState(TypedDict, total=False):
    """Keywords of `Maps.show`; what is left out is as usual."""

    item: int | str  # which of several maps, from 0
    stack: Literal["decoder", "encoder"]  # of an encoder–decoder
    sources: Literal["both", "encoder", "decoder"]  # whose columns are shown
    layer: int | str  # from 0; negative from the end
    scope: str
    view: Literal["map", "heads", "picture", "compare", "overview"]  # images show "picture" first
    direction: Literal["row", "column"]  # of the token over a picture, unless `pin` says it
    form: Literal["heat", "arcs"]
    scale: Literal["clipped", "sqrt", "linear", "rank"]
    diagonal: Literal[0, 1]  # 0 leaves the pairs i = j out
    head: int | str  # one head instead of all together, from 0
    layers: Literal["one", "all"]  # whose heads the view "heads" shows
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


class ExplanationState(TypedDict, total=False):
    """Keywords of `Explanation.show`; what is left out is as usual."""

    item: int | str  # which of several explanations, from 0
    view: Literal["flow", "components", "shares"]
    level: Literal["subwords", "words"]
    token: int | str  # whose way through the layers is shown, from 0
    share: Literal[50, 80, 95]  # of the flow that is drawn, in per cent
    heads: Literal[0, 1]


class CosineState(TypedDict, total=False):
    """Keywords of `Cosine.show`; what is left out is as usual."""

    item: int | str  # which of several cosines, from 0
    view: Literal["lines", "matrix"]
    level: Literal["subwords", "words"]
    token: str  # "a:3" or "b:0"

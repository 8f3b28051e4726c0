"""Maps as pictures: which figure a file shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from normlens import figures
from normlens.errors import InputError
from normlens.exports.printing import save_figure, save_pages
from normlens.results.both_stacks import by_stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


def write_picture(maps: Maps, path: str, **drawing: Any) -> None:
    """Write one layer large, or several as rows; of an image its patches, or single heads."""
    if "heads_of" in drawing:
        save_figure(_heads(maps, None, drawing), path)
        return
    if is_over_picture(maps, drawing):
        save_figure(_over_picture(maps, maps.scopes[-1], drawing), path)
        return
    both = by_stack(maps)
    if len(both) == len(maps.layers) == 1:
        figure = figures.plot_layer(maps, maps.layers[0], **drawing)
    else:
        figure = figures.plot_overview(maps, **drawing)
    save_figure(figure, path)


def is_over_picture(maps: Maps, drawing: Mapping[str, Any]) -> bool:
    """Whether rows or columns of maps are laid over the image that they are of."""
    if maps.grid is None and {"row", "column"} & set(drawing):
        raise InputError("row and column are laid over an image, and these maps are of none")
    return maps.grid is not None and "normalise" not in drawing


def _over_picture(maps: Maps, scope: str, drawing: Mapping[str, Any]) -> Figure:
    colour = {name: drawing[name] for name in ("colour", "diagonal") if name in drawing}
    row, column = drawing.get("row"), drawing.get("column")
    return figures.plot_patches(maps, None, scope, target=row, source=column, **colour)


def _heads(maps: Maps, layer: int | None, drawing: Mapping[str, Any]) -> Figure:
    """The heads of a layer, or of all."""
    if {"row", "column"} & set(drawing):
        raise InputError("row and column are laid over an image, heads are not; choose one of them")
    options = {name: value for name, value in drawing.items() if name != "heads_of"}
    return figures.plot_heads(maps, layer, drawing["heads_of"], **options)


def write_pages(maps: Maps, path: str, **drawing: Any) -> None:
    """Write a page for each layer; of an image one for each scope."""
    title = f"NormLens maps of {maps.provenance.get('model')}"
    save_pages(_pages(maps, drawing), path, title)


def _pages(maps: Maps, drawing: dict[str, Any]) -> Iterator[Figure]:
    """A picture of each layer, the encoder's first; of an image one of each scope."""
    if "heads_of" in drawing:
        layers = maps.covered("heads", figures.head_scope(maps, drawing["heads_of"]))
        yield from (_heads(maps, layer, drawing) for layer in layers)
        return
    if is_over_picture(maps, drawing):
        yield from (_over_picture(maps, scope, drawing) for scope in maps.scopes)
        return
    for one in by_stack(maps):
        # An encoder's sources are one sequence, of which nothing can be hidden.
        options = {**drawing, "sources": None} if maps.encoder is one else drawing
        yield from (figures.plot_layer(one, layer, **options) for layer in one.layers)

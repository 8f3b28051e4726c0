"""Export of maps to files for other programs; the file name's ending chooses the format.

Layers, heads and positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens import figures
from normlens.errors import InputError
from normlens.exports import spreadsheet
from normlens.plain_json import plain
from normlens.results import store
from normlens.results.both_stacks import by_stack, choose_in_stacks
from normlens.results.patches_file import saved_grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

JSON_FORMAT = "normlens-maps-json"
JSON_VERSION = 1
_RESOLUTION = 200  # pixels per inch


def write(
    maps: Maps,
    path: str | Path,
    *,
    overwrite: bool = False,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    **drawing: Any,
) -> Path:
    """Write maps in the format that the ending of `path` names, whole or not at all.

    ``.safetensors`` holds everything and can be opened again; ``.csv`` and ``.json`` hold every
    number; ``.html`` is the interactive viewer; ``.png`` and ``.svg`` show one layer large or
    several as rows; ``.pdf`` has one page per layer. `layers` (from 0) and `scopes` choose, in each
    stack of an encoder–decoder; `drawing` goes to `figures.plot_layer` or `figures.plot_overview`.
    With `heads_of` a scope, such as "ATTN-N", pictures show its single heads (`plot_heads`).

    Maps of an image are laid over it (`figures.plot_patches`): the `row` or the `column` of a
    token, in all layers of the last scope; ``.pdf`` has a page for each scope. With `normalise`
    they are drawn as those of a text.
    """
    suffix = check_format(path, drawing)
    store.check_output(path, overwrite=overwrite)
    chosen = choose_in_stacks(maps, layers, scopes)
    if suffix == ".safetensors":
        return store.save(chosen, path, overwrite=overwrite)
    if suffix == ".html":
        return chosen.to_html(path, overwrite=overwrite)
    with store.writing(path, overwrite=overwrite) as temporary:
        _WRITERS[suffix](chosen, temporary, **drawing)
    return Path(path)


def check_format(path: str | Path, drawing: Iterable[str] = ()) -> str:
    """The format that the ending of `path` names, or an error before any work is done.

    `drawing` names options that only pictures have.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        given = f"the ending {suffix!r}" if suffix else "no ending"
        raise InputError(
            f"{str(path)!r} has {given}; the ending chooses the format: {', '.join(FORMATS)}"
        )
    if suffix in PICTURES:
        figures.require_matplotlib()
    elif names := ", ".join(map(repr, drawing)):
        raise InputError(f"{names} is for pictures ({', '.join(PICTURES)}), not for {suffix} files")
    return suffix


# Tables ------------------------------------------------------------------------------------------


def to_table(maps: Maps) -> pd.DataFrame:
    """A table with one row per scope, layer, head, target and source, all counted from 0.

    Whole maps have no head. Of an encoder–decoder the columns `stack` and `source_sequence` say
    which stack a row is of, and whose token its source is.
    """
    import pandas as pd

    frames = [frame for one in by_stack(maps) for frame in _frames(one)]
    return pd.concat(frames, ignore_index=True)


def _frames(maps: Maps) -> Iterator[pd.DataFrame]:
    """The table of whole maps, and one of each head."""
    yield _with_head(maps, None)
    for scope, array in maps.heads.items():  # (layer, head, i, j)
        coverage = {f"arrays/{scope}": maps.covered("heads", scope)}
        alone = replace(maps, heads={}, mixing={}, standard_error={}, statistics={})
        for head in range(array.shape[1]):
            one = replace(alone, arrays={scope: array[:, head]}, coverage=coverage)
            yield _with_head(one, head)


def _with_head(maps: Maps, head: int | None) -> pd.DataFrame:
    import pandas as pd

    frame = maps.to_pandas()
    column = pd.Series([head] * len(frame), dtype="Int64")
    frame.insert(list(frame.columns).index("layer") + 1, "head", column)
    return frame


def write_routing(maps: Maps, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the experts that tokens used, and their weights, as a CSV table."""
    check_routing(path)
    if maps.routing is None:
        raise InputError(
            f"the layers of {maps.provenance.get('model', 'this model')} have no experts, or these "
            "maps are of words; there is no routing to write"
        )
    with store.writing(path, overwrite=overwrite) as temporary:
        spreadsheet.write_csv(maps.routing.to_pandas(), temporary)
    return Path(path)


def check_routing(path: str | Path) -> None:
    """Raise unless a routing can be written to this file."""
    if Path(path).suffix.lower() != ".csv":
        raise InputError(f"{str(path)!r} does not end in .csv; a routing is a CSV table")


def to_document(maps: Maps) -> dict[str, Any]:
    """Everything about the maps as plain values for strict JSON: NaN and infinity become None.

    An encoder's maps beside these are a document inside it, ``encoder``.
    """
    document: dict[str, Any] = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "model": maps.provenance.get("model"),
        "text": maps.text,
        "tokens": maps.tokens,
        "raw_tokens": maps.raw_tokens,
        "token_ids": maps.token_ids,
        "special": maps.special,
        "layers": maps.layers,
        "layers_counted_from": 0,
        "heads_counted_from": 0,
        "positions_counted_from": 0,
        "scopes": maps.scopes,
        "completeness": maps.completeness,
        "provenance": maps.provenance,
        "axes": {
            "maps": ["layer", "target", "source"],
            "allowed": ["layer", "target", "source"],
            "mixing_ratio": ["layer", "target"],
            "heads": ["layer", "head", "target", "source"],
            "standard_error": ["layer", "target", "source"],
        },
        "maps": maps.arrays,
        "allowed": maps.allowed,
        "mixing_ratio": maps.mixing,
        "heads": maps.heads,
        "standard_error": maps.standard_error,
    }
    if maps.coverage:  # the layers of arrays that cover only some, by "arrays/SCOPE"
        document["coverage"] = maps.coverage
    if maps.grid is not None:
        document |= saved_grid(maps.grid)
    if maps.source_axis is not None:
        document["source_tokens"] = maps.source_tokens
        document["sources"] = asdict(maps.source_axis)
        document["same_token"] = maps.is_same_token
        document["axes"]["same_token"] = ["target", "source"]
    if maps.routing is not None:  # one row per layer, token and expert, layers and tokens from 0
        document["routing"] = maps.routing.to_pandas().to_dict("records")
    if maps.stack:
        document["stack"] = maps.stack
        document["source_sequences"] = maps.table_sequences
    written = {key: plain(value) for key, value in document.items()}
    if maps.encoder is not None:
        written["encoder"] = to_document(maps.encoder)
    return written


def _write_csv(maps: Maps, path: str) -> None:
    spreadsheet.write_csv(to_table(maps), path)


def _write_json(maps: Maps, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(to_document(maps), file, ensure_ascii=False, allow_nan=False)
        file.write("\n")


# Pictures ----------------------------------------------------------------------------------------


def _write_picture(maps: Maps, path: str, **drawing: Any) -> None:
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


def _write_pages(maps: Maps, path: str, **drawing: Any) -> None:
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


def save_pages(drawn: Iterable[Figure], path: str | Path, title: str) -> None:
    """Write figures as the pages of one PDF; the same figures give the same bytes."""
    from matplotlib.backends.backend_pdf import PdfPages

    with _for_print(), PdfPages(path, metadata={"Title": title, "CreationDate": None}) as pages:
        for figure in drawn:
            pages.savefig(figure, dpi=_RESOLUTION)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in a form that prints well; the same figure gives the same bytes."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with _for_print():
        figure.savefig(path, dpi=_RESOLUTION, metadata=undated.get(Path(path).suffix.lower()))


@contextmanager
def _for_print() -> Iterator[None]:
    """Use fonts that publishers accept (TrueType, not Type 3) and reproducible names."""
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "normlens"}):
        yield


_WRITERS: dict[str, Callable[..., None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".png": _write_picture,
    ".svg": _write_picture,
    ".pdf": _write_pages,
}
PICTURES = (".png", ".svg", ".pdf")
#: Endings of file names that `write` accepts.
FORMATS = (".safetensors", ".html", *_WRITERS)

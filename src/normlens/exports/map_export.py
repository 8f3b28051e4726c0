"""Export of maps to files for other programs; the file name's ending chooses the format.

Layers, heads and positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens import figures
from normlens.errors import InputError
from normlens.exports import spreadsheet
from normlens.exports.map_pictures import write_pages, write_picture
from normlens.plain_json import plain
from normlens.results import store
from normlens.results.both_stacks import by_stack, choose_in_stacks
from normlens.results.patches_file import saved_grid

if TYPE_CHECKING:
    import pandas as pd

    from normlens.results.maps import Maps

JSON_FORMAT = "normlens-maps-json"
JSON_VERSION = 1


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


_WRITERS: dict[str, Callable[..., None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".png": write_picture,
    ".svg": write_picture,
    ".pdf": write_pages,
}
PICTURES = (".png", ".svg", ".pdf")
#: Endings of file names that `write` accepts.
FORMATS = (".safetensors", ".html", *_WRITERS)

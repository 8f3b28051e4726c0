"""Maps as one HTML file that needs no network and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.layers import thinned
from normlens.results import store
from normlens.results.both_stacks import by_stack
from normlens.viewer import page, payload

if TYPE_CHECKING:
    from normlens.results.maps import Maps

#: The size that a file stays below unless told otherwise, in MB (10⁶ bytes).
LARGEST = 60.0
#: Bytes of float32 up to which values are kept as they are.
EXACT = 1_600_000


def to_html(
    maps: Maps | Sequence[Maps],
    path: str | Path,
    *,
    precision: int | None = None,
    largest: float | None = LARGEST,
    overwrite: bool | None = None,
) -> Path:
    """Write one self-contained HTML file; several maps can be compared in it.

    `precision` is 32 (float32), 16 or 8 bits per value (see `normlens.viewer.payload`); by default
    32 for small maps and 16 for others. A file that would be larger than `largest` MB leaves out
    layers, evenly, and says so; None keeps everything.
    """
    check_page(path, overwrite=overwrite)
    listed = payload.as_list(maps)
    document = page.standalone(fitted(listed, precision, largest), title_of(listed))
    return write_page(document, path, overwrite=overwrite)


def check_page(path: str | Path, *, overwrite: bool | None) -> None:
    """Raise now what would keep a page from being written."""
    store.check_ending(path, (".html", ".htm"), "save(…) and the command line write others")
    store.check_output(path, overwrite=overwrite)


def write_page(document: str, path: str | Path, *, overwrite: bool | None) -> Path:
    """Write a page to a file, whole or not at all."""
    with (
        store.writing(path, overwrite=overwrite) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(document)
    return Path(path)


def room_of(largest: float) -> float:
    """How many bytes a payload may have in a page of so many MB."""
    return (largest * 1e6 - len(page.script()) - 10_000) * 3 / 4


def fitted(listed: Sequence[Maps], precision: int | None, largest: float | None) -> bytes:
    """Encode all layers, or as many as fit into a file of `largest` MB; heads in what room is left.

    Without a `precision` small maps are kept as float32, of others single heads in 8 bits.
    """
    head_precision = precision
    if precision is None:
        small = _float_bytes(listed) <= EXACT
        precision, head_precision = (32, 32) if small else (16, 8)
    if largest is None:
        return payload.encode(listed, precision=precision, head_precision=head_precision)
    budget = room_of(largest)
    bare = [_of_heads(maps, 0) for maps in listed]
    data = payload.encode(bare, precision=precision)
    layers = max(len(maps.layers) for one in listed for maps in by_stack(one))
    notes: list[str] = []
    count = layers
    while len(data) > budget:
        if count == 1:
            raise InputError(
                f"one layer of these maps is larger than {largest:g} MB; choose fewer scopes with "
                "maps.choose(scopes=…), precision=8, or largest=None"
            )
        count = min(count - 1, max(1, int(layers * budget / len(data)) if count == layers else 1))
        listed = [_of_layers(maps, count) for maps in listed]
        bare = [_of_heads(maps, 0) for maps in listed]
        notes = [
            f"Only {count} of {layers} layers are in this file, which would otherwise be larger "
            f"than {largest:g} MB; averages over layers are over these."
        ]
        data = payload.encode(bare, precision=precision, left_out=notes)
    if not any(maps.heads for one in listed for maps in by_stack(one)):
        return data
    return _with_heads(
        listed, data, payload.Bits(precision, head_precision or precision), largest, notes
    )


def _with_heads(
    listed: Sequence[Maps], bare: bytes, bits: payload.Bits, largest: float, notes: list[str]
) -> bytes:
    """Add the heads of all layers, or of as many as fit; `bare` has none."""
    layers = max(len(maps.layers) for one in listed for maps in by_stack(one))
    budget, count = room_of(largest), layers
    while count > 0:
        chosen = [_of_heads(maps, count) for maps in listed]
        fewer = (
            f"Single heads of {count} of {layers} layers are in this file, which would otherwise "
            f"be larger than {largest:g} MB; the maps file has all."
        )
        data = payload.encode(
            chosen,
            precision=bits.maps,
            head_precision=bits.heads,
            left_out=notes if count == layers else [*notes, fewer],
        )
        if len(data) <= budget:
            return data
        share = (budget - len(bare)) / (len(data) - len(bare))
        count = min(count - 1, int(count * share))
    none = (
        f"Single heads are left out of this file, which would otherwise be larger than "
        f"{largest:g} MB; the maps file has them."
    )
    return payload.encode(
        [_of_heads(maps, 0) for maps in listed], precision=bits.maps, left_out=[*notes, none]
    )


def _of_heads(maps: Maps, count: int) -> Maps:
    """The same maps with the single heads of at most so many layers, of either stack."""
    encoder = None if maps.encoder is None else _of_heads(maps.encoder, count)
    layers = thinned(maps.layers, count)
    heads, coverage = {}, dict(maps.coverage)
    for scope, array in maps.heads.items():
        covered = maps.covered("heads", scope)
        kept = [layer for layer in covered if layer in layers]
        coverage.pop(f"heads/{scope}", None)
        if kept:
            heads[scope] = array[[covered.index(layer) for layer in kept]]
            coverage[f"heads/{scope}"] = kept
    return replace(maps, heads=heads, coverage=coverage, encoder=encoder)


def _of_layers(maps: Maps, count: int) -> Maps:
    """The same maps with at most so many layers, evenly spaced, of either stack."""
    encoder = None if maps.encoder is None else _of_layers(maps.encoder, count)
    return replace(maps.choose(layers=thinned(maps.layers, count)), encoder=encoder)


def title_of(listed: Sequence[Maps]) -> str:
    """Write the browser tab's title: the first text and the models."""
    text = listed[0].text
    first = text if isinstance(text, str) else " / ".join(text or ())
    models = [str(maps.provenance.get("model", "")) for maps in listed]
    return title(first, models, [maps.origin_in_words or "" for maps in listed])


def title(first: str, models: Sequence[str], more: Sequence[str] = ()) -> str:
    """Write a browser tab's title: what is shown, shortened, the models, and more to know."""
    line = " ".join(first.split())
    words = [line[:60] + "…" * (len(line) > 60), ", ".join(filter(None, dict.fromkeys(models)))]
    return " · ".join(filter(None, [*words, *dict.fromkeys(more), "NormLens"]))


def _float_bytes(listed: Sequence[Maps]) -> int:
    """The size of all maps and single heads as float32."""
    return sum(
        4 * int(maps.allowed.sum()) * len(maps.scopes) + _head_bytes(maps)
        for one in listed
        for maps in by_stack(one)
    )


def _head_bytes(maps: Maps) -> int:
    share = float(maps.allowed.mean())  # of all pairs, those that are stored
    return sum(round(4 * array.size * share) for array in maps.heads.values())

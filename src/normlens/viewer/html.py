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
    """Encode all layers, or as many as fit into a file of `largest` MB."""
    if precision is None:
        precision = 32 if _float_bytes(listed) <= EXACT else 16
    data = payload.encode(listed, precision=precision)
    if largest is None:
        return data
    budget = room_of(largest)
    layers = max(len(maps.layers) for one in listed for maps in by_stack(one))
    count = layers
    while len(data) > budget:
        if count == 1:
            raise InputError(
                f"one layer of these maps is larger than {largest:g} MB; choose fewer scopes with "
                "maps.choose(scopes=…), precision=8, or largest=None"
            )
        count = min(count - 1, max(1, int(layers * budget / len(data)) if count == layers else 1))
        chosen = [_of_layers(maps, count) for maps in listed]
        note = (
            f"Only {count} of {layers} layers are in this file, which would otherwise be larger "
            f"than {largest:g} MB; averages over layers are over these."
        )
        data = payload.encode(chosen, precision=precision, left_out=[note])
    return data


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
    return sum(
        4 * int(maps.allowed.sum()) * len(maps.scopes) for one in listed for maps in by_stack(one)
    )

"""Maps as one HTML file that needs no network and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from normlens import store
from normlens.errors import InputError
from normlens.layers import thinned
from normlens.viewer import page, payload

if TYPE_CHECKING:
    from normlens.maps import Maps

#: The size that a file stays below unless told otherwise, in MB (10⁶ bytes).
LARGEST = 60.0
_EXACT = 1_600_000  # bytes of float32 up to which values are kept as they are


def to_html(
    maps: Maps | Sequence[Maps],
    path: str | Path,
    *,
    precision: int | None = None,
    largest: float | None = LARGEST,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML file; several maps can be compared in it.

    `precision` is 32 (float32), 16 or 8 bits per value (see `normlens.viewer.payload`); by default
    32 for small maps and 16 for others. A file that would be larger than `largest` MB leaves out
    layers, evenly, and says so; None keeps everything.
    """
    store.check_output(path, overwrite=overwrite)
    listed = payload.as_list(maps)
    document = page.standalone(fitted(listed, precision, largest), title_of(listed))
    with (
        store.writing(path, overwrite=overwrite) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(document)
    return Path(path)


def fitted(listed: Sequence[Maps], precision: int | None, largest: float | None) -> bytes:
    """Encode all layers, or as many as fit into a file of `largest` MB."""
    if precision is None:
        precision = 32 if _float_bytes(listed) <= _EXACT else 16
    data = payload.encode(listed, precision=precision)
    if largest is None:
        return data
    budget = (largest * 1e6 - len(page.script()) - 10_000) * 3 / 4
    layers = max(len(maps.layers) for maps in listed)
    count = layers
    while len(data) > budget:
        if count == 1:
            raise InputError(
                f"one layer of these maps is larger than {largest:g} MB; choose fewer scopes with "
                "maps.choose(scopes=…), precision=8, or largest=None"
            )
        count = min(count - 1, max(1, int(layers * budget / len(data)) if count == layers else 1))
        chosen = [maps.choose(layers=thinned(maps.layers, count)) for maps in listed]
        note = (
            f"Only {count} of {layers} layers are in this file, which would otherwise be larger "
            f"than {largest:g} MB; averages over layers are over these."
        )
        data = payload.encode(chosen, precision=precision, left_out=[note])
    return data


def title_of(listed: Sequence[Maps]) -> str:
    """Write the browser tab's title: the first text and the models."""
    text = listed[0].text
    first = " ".join((text if isinstance(text, str) else " / ".join(text or ())).split())
    models = list(dict.fromkeys(str(maps.provenance.get("model", "")) for maps in listed))
    origins = list(dict.fromkeys(maps.origin_in_words for maps in listed))
    words = [
        first[:60] + "…" * (len(first) > 60),
        ", ".join(filter(None, models)),
        *origins,
        "NormLens",
    ]
    return " · ".join(filter(None, words))


def _float_bytes(listed: Sequence[Maps]) -> int:
    return sum(4 * int(maps.allowed.sum()) * len(maps.scopes) for maps in listed)

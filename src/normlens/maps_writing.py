"""Maps of one long text that go to a file layer by layer, so that memory never holds them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from normlens.analysing.analyser import Analyser
from normlens.errors import InputError
from normlens.origins import INPUT
from normlens.pairs import Item, sequences_of
from normlens.results import maps_file, store
from normlens.results.checksums import sealed
from normlens.results.growing_file import GrowingFile
from normlens.results.maps import Maps

ENDING = ".safetensors"
#: Bytes of a header that are kept for the provenance, the names of arrays and their checksums; for
#: the layers that an array covers; and how often a token's label may stand in it, in JSON within
#: JSON.
ROOM, ROOM_OF_LAYER, LABELS = 1 << 17, 1 << 10, 8


def check_request(items: Sequence[Item], origin: str, out: str | PathLike[str]) -> None:
    """Raise unless these maps can be written to this file one layer after the other."""
    path = Path(out)
    if path.suffix.lower() != ENDING:
        raise InputError(
            f"`out` names a {ENDING} file, which maps are written to while they are computed, not "
            f"{str(path)!r}; leave it out and export the maps for other formats"
        )
    if len(items) != 1:
        raise InputError(
            f"`out` takes the maps of one text, and {len(items)} are given; call it for each"
        )
    if origin == INPUT:
        raise InputError(
            f"with origin={INPUT!r} the maps of all layers are finished together, so that `out` "
            "cannot take one after the other; leave it out and save the maps"
        )


def write_maps(
    analyser: Analyser, item: Item, out: str | PathLike[str], *, overwrite: bool
) -> Maps:
    """Write the maps of one text to a new file and return them; they stay there until used."""
    path = fspath(out)
    with store.writing(path, overwrite=overwrite) as temporary:
        file = GrowingFile(temporary, _header_room(analyser, item))
        (maps,) = replace(analyser, file=file).maps([item], 1)
        tensors, header = maps_file.saved(maps)
        file.finish(tensors, sealed(tensors, header))
        del maps, tensors  # their arrays are in the file that gets its name now
    return store.open_as(Maps, path, mapped=True)


def _header_room(analyser: Analyser, item: Item) -> int:
    """Bytes that the header of a text's maps takes at most."""
    labels = [
        (each.tokens, each.ids, each.special, each.words, each.word_labels, each.text)
        for each in sequences_of(item)
    ]
    layers = sum(len(stack.request.layers) for stack in analyser.stacks)
    return ROOM + ROOM_OF_LAYER * layers + LABELS * len(json.dumps(labels, default=str))

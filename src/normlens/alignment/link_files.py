"""Alignments as text: a file in Pharaoh's format for each layer, scope, way and head of a run."""

from __future__ import annotations

from pathlib import Path

from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.results import Run

FOLDER = "links"
_LINKS = """SELECT "index", scope, way, coalesce(layer, -1) AS layer,
  coalesce(head, -1) AS head, alignment
FROM alignment ORDER BY "index" """


def write_links(run: Run) -> list[Path]:
    """Write the links of a finished run into its folder, one line per pair of the data.

    The line of a pair that failed is empty. A run behind a URL has no such files.
    """
    if not isinstance(run.folder, LocalFolder) or not run.status().complete:
        return []
    count, paths = run.manifest.sequences, []
    rows = run.sql(_LINKS)
    for labels, some in rows.groupby(["scope", "way", "layer", "head"], observed=True):
        scope, way, layer, head = map(str, labels)
        lines = dict(zip(some["index"], some["alignment"], strict=True))
        text = "".join(f"{lines.get(index, '')}\n" for index in range(count))
        name = f"{FOLDER}/{link_file(scope, int(layer), way, int(head))}"
        run.folder.write(name, text.encode())
        paths.append(run.folder.path / name)
    return paths


def link_file(scope: str, layer: int, way: str, head: int = -1) -> str:
    """The name of the file with one map's links; layers and heads from 0, −1: all of them."""
    of_layer = "" if layer < 0 else f".layer{layer}"
    of_head = "" if head < 0 else f".head{head}"
    return f"{scope}{of_layer}.{way}{of_head}.txt"

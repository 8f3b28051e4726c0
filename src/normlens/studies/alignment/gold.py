"""Gold links, the tables and files of an alignment, and its error rates."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from normlens.corpus.measures.base import LABEL, WHOSE
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, system_reason
from normlens.measures.alignment import Link, Rates, Resampled, resampled_rates
from normlens.measures.bootstrap import Means
from normlens.studies.alignment.options import FIRST_WORDS, WAYS

# The tables of an alignment: links and counts of every sentence pair, and its texts.
#
# `layer` is from 0, null for the whole model (EXPLAIN); `head` is from 0, null for all heads
# together. Alignments are in Pharaoh's format, words from 0; `sure_hits`, `possible_hits`, `links`
# and `sure` are |A∩S|, |A∩P|, |A| and |S|; without gold links only |A|.


_INT, _TEXT = pa.int32(), pa.string()
COUNTS = ("sure_hits", "possible_hits", "links", "sure")
_MAP = {"layer": _INT, "scope": LABEL, "way": LABEL, "head": _INT, "alignment": _TEXT}
ALIGNMENT = pa.schema([*WHOSE, *pa.schema({**_MAP, **dict.fromkeys(COUNTS, _INT)})])
_PAIR = {"source": _TEXT, "target": _TEXT, "generated": pa.bool_()}  # words with spaces between
_GOLD = {"gold_sure": _TEXT, "gold_possible": _TEXT, "completeness": pa.float64()}
TEXTS = pa.schema([*WHOSE, *pa.schema({**_PAIR, **_GOLD})])
SCHEMAS: Mapping[str, pa.Schema] = {"alignment": ALIGNMENT, "alignment_texts": TEXTS}
ORDER: Mapping[str, tuple[str, ...]] = {
    "alignment": ("index", "layer", "scope", "way", "head"),
    "alignment_texts": ("index",),
}


# Gold alignments: one line per sentence pair, ``i-j`` for a sure and ``ipj`` for a possible link.
#
# The Hansards count words from 1, Pharaoh's format from 0 (where a possible link is also
# ``i?j``). Nothing in a file says which, so the first word's number is worked out from the
# sentences' lengths.


_LINK = re.compile(r"(\d+)([-p?])(\d+)")


@dataclass(frozen=True)
class GoldLinks:
    """The links of one sentence pair, numbered as the file numbers them."""

    sure: frozenset[Link]
    possible: frozenset[Link]  # the sure ones among them

    def counted_from(self, first: int) -> GoldLinks:
        """Renumber the links from 0, where the file counts from `first`."""
        both = ({(i - first, j - first) for i, j in links} for links in (self.sure, self.possible))
        return GoldLinks(*map(frozenset, both))

    def fits(self, first: int, lengths: tuple[int, int]) -> bool:
        """Whether every link joins words of a pair of so many words, counted from `first`."""
        return all(
            first <= word < first + length
            for link in self.possible
            for word, length in zip(link, lengths, strict=True)
        )


@dataclass(frozen=True)
class Gold:
    """A gold file."""

    path: str
    digest: str  # of its bytes
    lines: tuple[GoldLinks, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def first_word(self, lengths: Sequence[tuple[int, int]], given: int | None = None) -> int:
        """The number of a sentence's first word, given the words of every sentence pair.

        Raises unless the file has a line for each pair, and links to its words only.
        """
        if len(lengths) != len(self):
            raise InputError(
                f"{self.path!r} has {len(self)} lines for {len(lengths)} sentence pairs"
            )
        wrong: list[int] = []  # the first line that does not fit, for each way to count
        fitting = []
        for first in FIRST_WORDS if given is None else (given,):
            pairs = enumerate(zip(self.lines, lengths, strict=True))
            line = next((n for n, (links, pair) in pairs if not links.fits(first, pair)), None)
            if line is None:
                fitting.append(first)
            else:
                wrong.append(line)
        if not fitting:
            raise InputError(f"{self.path!r}, line {max(wrong) + 1}: its sentences lack such words")
        if len(fitting) > 1:
            raise InputError(f"{self.path!r} may count from 0 or from 1; give gold_first=")
        return fitting[0]


def read_gold(path: str | os.PathLike[str]) -> Gold:
    """Read a gold file; a line may be empty."""
    try:
        contents = Path(path).expanduser().read_bytes()
        text = contents.decode("utf-8")
    except OSError as error:
        raise InputError(
            f"cannot read gold links in {str(path)!r}: {system_reason(error)}"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} holds no gold links; it is not UTF-8 text") from error
    written = enumerate(text.removesuffix("\n").split("\n"), 1)
    lines = [_links(line, f"{str(path)!r}, line {number}") for number, line in written]
    if not any(line.possible for line in lines):
        raise InputError(f"{str(path)!r} holds no gold link; give lines such as '1-1 2p3'")
    return Gold(str(path), f"sha256:{hashlib.sha256(contents).hexdigest()}", tuple(lines))


def _links(line: str, where: str) -> GoldLinks:
    sure, possible = set(), set()
    for written in line.split():
        match = _LINK.fullmatch(written)
        if match is None:
            raise InputError(f"{where}: {written[:40]!r} is no link; write i-j, ipj or i?j")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return GoldLinks(frozenset(sure), frozenset(possible))


# Alignments as text: a file in Pharaoh's format for each layer, scope, way and head of a run.


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


RESAMPLES = 10_000
#: What tells one map's links from another's.
KEYS = ["scope", "way", "layer", "head"]
SUMS = """SELECT scope, way, layer, head, count(*) AS pairs,
  1 - (sum(sure_hits) + sum(possible_hits)) / (sum(links) + sum(sure)) AS aer,
  sum(possible_hits) / sum(links) AS precision, sum(sure_hits) / sum(sure) AS recall
FROM alignment WHERE sure IS NOT NULL GROUP BY ALL ORDER BY aer"""
_COUNTS = f"""SELECT "index", scope, way, coalesce(layer, -1) AS layer, coalesce(head, -1) AS head,
  {", ".join(COUNTS)}
FROM alignment WHERE sure IS NOT NULL"""


@dataclass(frozen=True)
class ErrorRates:
    """Rates of every map's links, the columns of `resampled` in the order of the table's rows."""

    table: pd.DataFrame  # scope, way, layer, head, pairs, then each rate with its interval, best
    resampled: Resampled

    def difference(self, first: int, second: int) -> Means:
        """How much AER rises from the map of one row to another's, on the same pairs."""
        return self.resampled.difference("aer", second, first)


def error_rates(run: Run, resamples: int = RESAMPLES, seed: int = 0) -> ErrorRates:
    """AER, precision and recall of every layer, scope, way and head, with 95 % intervals.

    Rows are in the order of the scopes in a layer; `head` is −1 for all heads together, `layer`
    −1 for the whole model (EXPLAIN), and `best` marks the lowest AER.
    """
    if "alignment" not in run.tables:
        raise InputError(f"{str(run.folder)!r} aligns no words; normlens reproduce align does")
    counts = run.sql(_COUNTS)
    if counts.empty:
        raise InputError(f"{str(run.folder)!r} has no gold links; align again with --gold FILE")
    # The scopes as a layer has them: CROSS-W, CROSS-N, and what follows.
    known = dict.fromkeys(["CROSS-W", "CROSS-N", *run.manifest.model["scopes"]])
    for name, order in (("way", WAYS), ("scope", dict.fromkeys([*known, *counts["scope"]]))):
        counts[name] = pd.Categorical(counts[name], list(order))
    wide = counts.pivot(
        index="index", columns=["way", "scope", "head", "layer"], values=list(COUNTS)
    )
    table = (
        wide[COUNTS[0]].columns.to_frame(index=False).sort_values(["way", "scope", "head", "layer"])
    )
    maps = pd.MultiIndex.from_frame(table)
    cells = np.stack([wide[name][maps].to_numpy(np.float64) for name in COUNTS], axis=-1)
    resampled = resampled_rates(cells, resamples, seed)
    table = table.astype({"way": str, "scope": str}).reset_index(drop=True)
    table = table[KEYS].assign(pairs=len(cells))
    for name in Rates._fields:
        value, low, high = resampled.interval(name)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = value, low, high
    table["best"] = table["aer"] == table["aer"].min()
    return ErrorRates(table, resampled)


def of_maps(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps of all heads together, without contributions to logits."""
    return table[(table["head"] < 0) & (table["layer"] >= 0)]

"""Data sets of the papers by name, from the Hugging Face hub."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from normlens.corpus.data import conll
from normlens.corpus.data.prose import paragraph_pairs
from normlens.corpus.data.read_options import REVISIONS
from normlens.corpus.data.reading import START, Mark, Reading
from normlens.corpus.data.records import Data, Record
from normlens.errors import InputError, MissingDependencyError, reason_of


@dataclass(frozen=True)
class Named:
    """Where a data set lies on the hub, and how its local files are read."""

    hub: str
    config: str | None
    example: str  # a local file of it
    format: str | None  # of local files; None: as their suffix says
    revision: str | None = None
    split: str = "validation"


NAMED = {
    "sst2": Named("stanfordnlp/sst2", None, "dev.tsv", None),
    "conll2003": Named(
        "eriktks/conll2003",
        None,
        "eng.testa",
        "conll",
        # The data set's main branch is a loading script, which datasets 4 no longer runs.
        revision="refs/convert/parquet",
    ),
    "wikitext": Named("Salesforce/wikitext", "wikitext-2-raw-v1", "wiki.valid.raw", "wikitext"),
    "stsb": Named("mteb/stsbenchmark-sts", None, "sts-dev.csv", "stsb"),
}


class HubData(Data):
    """A split that the `datasets` library has loaded; its rows stay in their files until read."""

    seeks = True

    def __init__(self, name: str, rows: Any, limit: int | None = None, extra: tuple[str, ...] = ()):
        super().__init__(name, limit)
        self.rows = rows
        self.extra = extra

    def reading(self, start: Mark = START, *, fingerprint: bool = False) -> Reading:
        return _RowReading(self, start)

    def quick_fingerprint(self) -> str:
        return self.fingerprint

    def _fingerprint(self) -> str:
        fingerprint = str(self.rows._fingerprint)
        parts = [fingerprint, *([] if self.limit is None else [str(self.limit)]), *self.extra]
        if self.name in REVISIONS:
            parts.append(f"reader {REVISIONS[self.name]}")
        return "-".join(parts)


class _RowReading(Reading):
    """Records of a split from one of its rows on."""

    def __init__(self, data: HubData, start: Mark):
        self.rows = _Rows(data.rows, start.number)
        super().__init__(self._made(data, start.record))
        self.count = start.record

    def _made(self, data: HubData, first: int) -> Iterator[Record]:
        readers = {"sst2": _sst2, "conll2003": _conll2003, "wikitext": _wikitext, "stsb": _stsb}
        for index, fields in enumerate(readers[data.name](self.rows), first):
            kept = fields.pop("extra", {})
            extra = {name: kept[name] for name in data.extra}
            yield Record(id=f"{data.name}:{index}", extra=extra, **fields)

    @property
    def mark(self) -> Mark:
        return Mark(number=self.rows.number, record=self.count)


class _Rows:
    """Rows from one of them on, counted as they pass."""

    def __init__(self, rows: Any, first: int):
        self._rows, self._first = rows, first
        self.features = rows.features
        self.number = first

    def __iter__(self) -> Iterator[Any]:
        for row in rows_from(self._rows, self._first):
            self.number += 1
            yield row


def rows_from(rows: Any, first: int) -> Iterable[Any]:
    """The rows of a table of `datasets` from one of them on."""
    return rows.select(range(first, len(rows))) if first else rows


#: Columns of the data sets that a record may keep beside its text.
_EXTRA = {"sst2": ("label",), "stsb": ("score",)}


def open_named(name: str, limit: int | None = None, extra: tuple[str, ...] = ()) -> HubData:
    """Load the validation split of a named data set."""
    dataset = NAMED[name]
    for column in extra:
        if column not in _EXTRA.get(name, ()):
            offered = ", ".join(_EXTRA.get(name, ())) or "none"
            raise InputError(f"{name} has no column {column!r} beside its text; it has: {offered}")
    local = f"--data {name}:path/{dataset.example}"
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(
            f"loading {name!r} from the hub needs the datasets package; run: "
            f"pip install 'normlens[data]' (or give a local file: {local})"
        ) from error
    options = {} if dataset.revision is None else {"revision": dataset.revision}
    try:
        rows = datasets.load_dataset(
            dataset.hub, dataset.config, split=dataset.split, streaming=False, **options
        )
    except Exception as error:  # the hub, the network and the cache fail in many ways
        raise InputError(
            f"cannot load {name!r} ({dataset.hub}) from the Hugging Face hub: {reason_of(error)}; "
            f"give a local file instead: {local}"
        ) from error
    return HubData(name, rows, limit, extra)


def _sst2(rows: Any) -> Iterator[dict[str, Any]]:
    for row in rows:
        if text := row["sentence"].strip():
            yield {"text": text, "extra": {"label": str(row.get("label"))}}


def _stsb(rows: Any) -> Iterator[dict[str, Any]]:
    for row in rows:
        pair = (row["sentence1"].strip(), row["sentence2"].strip())
        if all(pair):
            yield {"text": pair, "extra": {"score": str(row["score"])}}


def _conll2003(rows: Any) -> Iterator[dict[str, Any]]:
    names = rows.features["ner_tags"].feature.names
    for row in rows:
        if row["tokens"]:
            tags = [names[tag] for tag in row["ner_tags"]]
            yield {"words": tuple(row["tokens"]), "entities": conll.entities(tags)}


def _wikitext(rows: Any) -> Iterator[dict[str, Any]]:
    for first, between, second in paragraph_pairs(row["text"] for row in rows):
        yield {"text": (first, second), "between": between}

"""One reading of a data set: its fingerprint, its number of sequences, and where its blocks lie."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_readers
from counted_reading import Counter
from test_readers import Table

from normlens.corpus import Record, open_data
from normlens.corpus.data.readers import NAMED, MemoryData
from normlens.corpus.data.records import Data, Mark, ReadOptions
from normlens.corpus.runs.data_index import Index, checksum, index_data

LINES = b"\n\none\r\n \r\ncaf\xe9\n\ntwo\n\xff\nthree"
WIKI = (
    b"\n = A = \none\n\ntwo\n = = S = = \nthree\nfour\nfive\n = B = \nsix\ncaf\xe9\n"
    b" = C = \nseven\neight\n"
)
QUOTED = (
    b'\xef\xbb\xbfid,"a\nname",text\r\n1,x,"a, ""b""\r\n\r\nc"\r\n\r\n2,x,d\r\n3,x," "\r\n'
    b'4,"y\nz",e'
)

#: Files by their names, how they are opened, and how many sequences they hold, beside those of
#: `test_readers`.
FILES: list[tuple[dict[str, str | bytes], str, dict[str, Any], int]] = [
    ({"a.txt": LINES}, "a.txt", {}, 5),
    ({"a.csv": QUOTED}, "a.csv", {}, 3),
    ({"wiki.raw": WIKI}, "wikitext:wiki.raw", {}, 4),
    (
        {"d/a.txt": b"1\n2\n\n", "d/e/b.jsonl": b'{"text": "3"}\n', "d/e/c.txt": b"4"},
        "d/**/*.*", {}, 4,
    ),
    (
        {"d/a.txt": b"1\n2\n", "d/b.txt": b"3\n4\n", "d/c.jsonl": b"{broken"}, "d", {"limit": 3}, 3
    ),
    ({"d/a.txt": b"1\n2\n", "d/b.txt": b"3\n4\n"}, "d", {"limit": 2}, 2),
    *(
        ({name.rpartition(":")[-1]: contents}, name, options, len(records))
        for name, contents, options, records in test_readers.FILES
    ),
    *(
        ({name.rpartition(":")[-1]: contents}, name, options, 3)
        for name, (contents, options, _) in test_readers.SPOILT.items()
    ),
]  # fmt: skip


def parquet(folder: Path) -> Data:
    texts = [f"text {n}" if n % 7 else "" for n in range(2000)]
    pq.write_table(
        pa.table({"n": range(2000), "text": texts}), folder / "a.parquet", row_group_size=700
    )
    return open_data(folder / "a.parquet", extra=("n",))


class Stream:
    """A table of `datasets` that is streamed: no length, no selection."""

    column_names = ("sentence",)

    def select_columns(self, names: list[str]) -> Table:
        return Table({"sentence": text} for text in ("a", "b", " ", "c"))


ROWS = Table({"sentence": text, "label": n} for n, text in enumerate(["a ", "", "b", "c"]))
PARAGRAPHS = ["", " = T = ", "one", "two", " = = S = = ", "three", "four", " = U = ", "five", "six"]


TAGGED = Table({"tokens": words, "ner_tags": [1] * len(words)} for words in (["a"], [], ["b", "c"]))


def named(name: str, rows: Table, extra: tuple[str, ...] = ()) -> Data:
    return MemoryData(rows, ReadOptions(extra=extra), None, name, NAMED[name].read)


TABLES: dict[str, Callable[[], Data]] = {
    "sst2 of the hub": lambda: named("sst2", ROWS, ("label",)),
    "wikitext of the hub": lambda: named("wikitext", Table({"text": line} for line in PARAGRAPHS)),
    "conll2003 of the hub": lambda: named("conll2003", TAGGED),
    "a list": lambda: MemoryData(["a", " ", "b", ("c", "d")]),
    "pandas": lambda: MemoryData(pd.DataFrame({"text": ["a", None, "b"] * 180})),
    "pyarrow": lambda: MemoryData(pa.table({"n": range(540), "text": ["a", None, "b"] * 180})),
    "datasets": lambda: MemoryData(ROWS, ReadOptions(extra=("label",))),
    "datasets, streamed": lambda: MemoryData(Stream()),
    "with a limit": lambda: MemoryData(["a", "b", "c"], limit=2),
}


def rest_of(data: Data, index: Index, block: int) -> Iterator[Record]:
    return data.reading(Mark(*map(int, index.marks[block])))


def check(data: Data, size: int) -> None:
    """From each mark on, the rest of what reading from the start gives; and what else is told."""
    whole = list(data)
    indexed = index_data(data, size)
    index = indexed.index
    assert index.sequences == len(whole)
    assert index.fingerprint == data.fingerprint
    blocks = [whole[begin : begin + size] for begin in range(0, len(whole), size)]
    assert len(index.marks) == len(index.checksums) == len(blocks)
    for number in range(0, len(blocks), 1 + len(blocks) // 12):
        rest = list(itertools.islice(rest_of(data, index, number), len(whole) - number * size))
        assert rest == whole[number * size :]
        assert list(indexed.block(number)) == blocks[number]
        other = [replace(blocks[number][0], id="another"), *blocks[number][1:]]
        assert checksum(blocks[number]) == index.checksums[number] != checksum(other)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("files", "spec", "options", "count"), FILES)
def test_every_mark_leads_to_its_record(
    files: dict[str, str | bytes],
    spec: str,
    options: dict[str, Any],
    count: int,
    size: int,
    tmp_path: Path,
) -> None:
    for name, contents in files.items():
        test_readers.write(tmp_path, name, contents)
    kind, colon, rest = spec.rpartition(":")
    data = open_data(f"{kind}{colon}{tmp_path / rest}", **options)
    assert len(list(data)) == count
    check(data, size)


@pytest.mark.parametrize("size", [64, 301])
def test_rows_of_parquet_are_sought_by_row_group(size: int, tmp_path: Path) -> None:
    data = parquet(tmp_path)
    check(data, size)
    numbers = [record.extra["n"] for record in data]
    assert numbers == [str(n) for n in range(2000) if n % 7]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", TABLES)
def test_rows_of_tables_are_sought(name: str, size: int) -> None:
    data = TABLES[name]()
    assert data.seeks == (name != "datasets, streamed")
    check(data, size)


# How much is read ---------------------------------------------------------------------------------


LARGE = {
    "a.txt": b"".join(b"line %06d of the file\n" % n for n in range(100_000)),
    "a.jsonl": b"".join(b'{"text": "line %06d of the file"}\n' % n for n in range(60_000)),
    "a.csv": b"n,text\n" + b"".join(b'%d,"line %06d\nof it"\n' % (n, n) for n in range(60_000)),
    "a.conll": b"".join(b"Line O\n%06d O\nEU B-ORG\n\n" % n for n in range(60_000)),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_block_is_read_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(LARGE[name])
    data = open_data(tmp_path / name)
    index = index_data(data, 64).index
    last = len(index.marks) - 1
    counter = Counter(monkeypatch)
    assert checksum(rest_of(data, index, last)) == index.checksums[last]
    # A buffer of the file, and of a table with a header one at its top.
    assert counter.bytes < 2 * (1 << 18) + 64 * 100 < len(LARGE[name]) / 2


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    line = json.dumps({"text": "word " * 200}) + "\n"
    path = tmp_path / "big.jsonl"
    path.write_text(line * 16_000)  # 16 MB
    data = open_data(path)
    tracemalloc.start()
    try:
        index = index_data(data, 64).index
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert index.sequences == 16_000
    assert peak < 4_000_000


def test_a_large_row_group_passes_page_by_page(tmp_path: Path) -> None:
    texts = [f"{n:06d} " * 60 for n in range(60_000)]
    path = tmp_path / "big.parquet"
    pq.write_table(
        pa.table({"text": texts}), path, compression="none", use_dictionary=False,
        row_group_size=len(texts),
    )  # fmt: skip
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    del texts
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), 0
    for place, _ in enumerate(open_data(path)):
        if place % 500 == 0:
            peak = max(peak, pool.bytes_allocated() - before)
    assert path.stat().st_size > 25_000_000
    assert peak < 8_000_000

"""STS-B's own files, and further columns of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normlens.corpus.data.readers import open_data

LINES = [
    'main-captions\tMSRvid\t2012test\t0000\t5.000\tA "man" dances.\tA man, dancing.',
    "main-news\tMSRpar\t2012train\t0001\t0.5\tOne.\tTwo.\thttp://x\thttp://y",
]


def stsb(folder: Path) -> Path:
    path = folder / "sts-dev.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.mark.parametrize("prefix", ["", "stsb:"])
def test_pairs_with_their_scores(tmp_path: Path, prefix: str) -> None:
    records = list(open_data(f"{prefix}{stsb(tmp_path)}", extra=("score", "genre")))
    assert [record.text for record in records] == [
        ('A "man" dances.', "A man, dancing."),
        ("One.", "Two."),
    ]
    assert records[0].extra == {"score": "5.000", "genre": "main-captions"}
    assert records[1].extra == {"score": "0.5", "genre": "main-news"}


def test_nothing_is_kept_unless_asked_for(tmp_path: Path) -> None:
    assert [record.extra for record in open_data(stsb(tmp_path))] == [{}, {}]


def test_a_table_with_a_header_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("sentence\tlabel\nGood.\t1\nBad.\t0\n")
    records = list(open_data(path, extra=("label",)))
    assert [(record.text, record.extra["label"]) for record in records] == [
        ("Good.", "1"),
        ("Bad.", "0"),
    ]


def test_numbers_and_nothing_become_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"text": "a", "label": 1, "share": 0.25}, {"text": "b", "label": None, "share": 1}]
    path.write_text("\n".join(map(json.dumps, rows)))
    records = list(open_data(path, extra=("label", "share")))
    assert [dict(record.extra) for record in records] == [
        {"label": "1", "share": "0.25"},
        {"label": "", "share": "1"},
    ]


def test_parquet_reads_the_further_columns(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    path = tmp_path / "x.parquet"
    pd.DataFrame({"words": [["a", "b"]], "label": [3], "other": [0]}).to_parquet(path)
    [record] = open_data(path, extra=("label",))
    assert record.words == ("a", "b")
    assert record.extra == {"label": "3"}


def test_the_fingerprint_tells_columns_apart_but_not_from_before(tmp_path: Path) -> None:
    path = stsb(tmp_path)
    plain, score, genre = (
        open_data(path, extra=extra).fingerprint for extra in ((), ("score",), ("genre",))
    )
    assert len({plain, score, genre}) == 3
    assert open_data(path).fingerprint == plain

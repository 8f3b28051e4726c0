"""Every file format, in order, lazily, and with one line for what is wrong."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from normlens.corpus import Entity, Record, open_data
from normlens.errors import InputError


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(spec: Any, **options: Any) -> list[Any]:
    return [record.text for record in open_data(spec, **options)]


def message(spec: Any, **options: Any) -> str:
    """The error of opening and reading a data set, which is one line."""
    with pytest.raises(InputError) as caught:
        list(open_data(spec, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Prose ------------------------------------------------------------------------------------------


def test_a_line_is_a_sequence(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "\ufeff one two \r\n\n\nthree\n  \nGdańsk\u2028four")
    records = list(open_data(path))
    assert [record.text for record in records] == ["one two", "three", "Gdańsk\u2028four"]
    assert [record.id for record in records] == ["a.txt:0", "a.txt:1", "a.txt:2"]


def test_a_paragraph_is_a_sequence(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "\n\none\ntwo\n\n \nthree\n\nfour\nfive\n")
    assert texts(path, paragraphs=True) == ["one two", "three", "four five"]


def test_limit_takes_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "a\nb\nc\n")
    data = open_data(path, limit=2)
    assert [record.text for record in data] == ["a", "b"]
    assert [record.text for record in data] == ["a", "b"]
    assert "limit must be at least 1" in message(path, limit=0)


def test_reading_is_lazy(tmp_path: Path) -> None:
    line = "word " * 200 + "\n"
    path = write(tmp_path, "big.txt", line * 8000)  # 8 MB
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_data(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 8000
    assert peak < 1_000_000


def test_what_lies_behind_the_limit_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "good"}\n{"text": "fine"}\n{broken\n')
    assert texts(path, limit=2) == ["good", "fine"]
    assert "line 3: broken JSON" in message(path)


# Rows -------------------------------------------------------------------------------------------


def test_jsonl_texts_pairs_words_and_tokens(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": " a b "},
        {"text": ["a", "b"]},
        {"sentence": "c"},
        {"text": ""},
        {"text": None},
        {"words": ["New", "York", "!"], "entities": [[0, 2, "LOC"]]},
        {"words": ["a"], "entities": [{"start": 0, "stop": 1, "label": "X"}], "text": "unused"},
        {"tokens": ["[CLS]", "a", "[SEP]"]},
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert list(open_data(path)) == [
        Record("a.jsonl:0", text="a b"),
        Record("a.jsonl:1", text=("a", "b")),
        Record("a.jsonl:2", text="c"),
        Record("a.jsonl:3", words=("New", "York", "!"), entities=(Entity(0, 2, "LOC"),)),
        Record("a.jsonl:4", words=("a",), entities=(Entity(0, 1, "X"),)),
        Record("a.jsonl:5", tokens=("[CLS]", "a", "[SEP]")),
    ]


def test_named_columns(tmp_path: Path) -> None:
    row = '{"words": ["a"], "premise": "p", "hypothesis": "h", "both": ["x", "y"]}'
    path = write(tmp_path, "a.jsonl", row)
    assert texts(path, column="premise") == ["p"]
    assert texts(path, column="premise", pair_column="hypothesis") == [("p", "h")]
    assert texts(path, column="both") == [("x", "y")]


def test_tables_with_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'id,sentence\n1,"a, ""b""\nc"\n\n2,d\n3,  \n')
    assert texts(path) == ['a, "b"\nc', "d"]
    path = write(tmp_path, "a.tsv", "text\tlabel\r\nit 's , fine \t1\r\n")
    assert texts(path) == ["it 's , fine"]
    path = write(tmp_path, "b.tsv", "premise\thypothesis\np\th\n")
    assert texts(path, column="premise", pair_column="hypothesis") == [("p", "h")]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    table = pa.table({"n": range(1500), "text": [f"text {n}" for n in range(1499)] + [None]})
    pq.write_table(table, path)
    assert texts(path) == [f"text {n}" for n in range(1499)]
    assert "there is no column 'body'; choose one of: 'n', 'text'" in message(path, column="body")
    assert "row 1: 'n' holds a number" in message(path, column="n")
    spans = [[{"start": 0, "stop": 2, "label": "LOC"}]]
    pq.write_table(pa.table({"words": [["New", "York"]], "entities": spans}), path)
    assert list(open_data(path)) == [
        Record("a.parquet:0", words=("New", "York"), entities=(Entity(0, 2, "LOC"),))
    ]
    write(tmp_path, "b.parquet", "PAR1 no")
    assert "is not a Parquet file" in message(tmp_path / "b.parquet")


# What is wrong, in one line ---------------------------------------------------------------------

CSV, JSONL, CONLL, STSB = "a.csv", "a.jsonl", "a.conll", "sts-dev.csv"
PAIR = "main-news\tMSRpar\t2012train\t0001\t0.5\tOne.\tTwo.\n"

#: A file (with the name of its format, where one is needed), its contents, options, the message.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        (JSONL, f'{{"text": "good"}}\n{line}\n', {}, f"a.jsonl', line 2: {expected}")
        for line, expected in (
            ("{", "broken JSON"),
            ("[" * 100_000, "broken JSON"),
            ('"text"', "a text instead of an object"),
            ('{"text": 3}', "'text' holds a number where a text should be"),
            ('{"text": ["a", "b", "c"]}', "'text' is a list of 3"),
            ('{"text": "\\ud800"}', "'text' holds half of a surrogate pair"),
            ('{"body": "a", "n": 1}', "there is no column 'sentence' or 'text'; name one of"),
            ('{"words": "a b"}', "'words' holds a text where a list"),
            ('{"words": ["a", ""]}', "word 1 is ''"),
            ('{"words": ["a"], "entities": [[0, 2, "X"]]}', "entity 0–2 (X) is not a span"),
            ('{"words": ["a"], "entities": [[0, "1", "X"]]}', "an entity is [start, stop,"),
            ('{"words": ["a"], "entities": 7}', "'entities' holds a number where a list"),
            ('{"words": ["a"], "entities": [7]}', "an entity is [start, stop, label], not 7"),
            (
                '{"words": ["a", "b"], "entities": [[0, 2, "X"], [1, 2, "Y"]]}',
                "entity 1–2 (Y) is not a span",
            ),
        )
    ),
    (CSV, "a,b\n1,2\n", {}, "there is no column 'sentence' or 'text'; name one of these"),
    (CSV, "text,b\n1,2\n3\n", {}, "line 3: 1 fields where the header has 2"),
    (CSV, "text,b\n1,2,3\n", {}, "line 2: 3 fields where the header has 2"),
    (CSV, 'text,b\n"never closed,2\n', {}, "unexpected end of data"),
    (CSV, "text,b\n", {}, "holds no sequence"),
    (CSV, "\n\n", {}, "holds no sequence"),
    (CONLL, "a NN O\nb O\n", {}, "line 2: 2 columns where the lines before have 3"),
    (CONLL, "a\nb\n", {}, "line 1: 1 columns where two are needed"),
    (CONLL, "a NN O\nb NN NP\n", {}, "line 2: the last column is 'NP', not an entity tag"),
    (CONLL, "-DOCSTART- O\n\n", {}, "holds no sequence"),
    *(
        ("parallel:a.txt", f"a ||| b\n{line}\n", {}, "a.txt', line 2: not a line of parallel text")
        for line in ("the house la maison", "a ||| b ||| c", "a || b")
    ),
    (STSB, PAIR + "main\tx\t2012\t3\tfive\tA\tB\n", {}, "line 2: not a line of STS-B"),
    (STSB, PAIR + "main\tx\t2012\t3\t4.0\tA\n", {}, "line 2: not a line of STS-B"),
    # Columns that are not there, and options that do not apply.
    (CSV, "text,n\na,1\n", {"column": "body"}, "no column 'body'; choose one of: 'text', 'n'"),
    (JSONL, '{"text": "a"}', {"pair_column": "b"}, "line 1: there is no column 'b'; choose one of"),
    ("a.tsv", "sentence\tlabel\na\t1\n", {"extra": ("gold",)}, "no column 'gold'"),
    (CSV, "sentence,label\na,1\n", {"extra": ("gold",)}, "no column 'gold'"),
    (JSONL, '{"text": "a", "label": 1}\n', {"extra": ("gold",)}, "no column 'gold'"),
    (STSB, PAIR, {"extra": ("gold",)}, "no column 'gold'"),
    ("a.txt", "a\n", {"extra": ("gold",)}, "no column 'gold'"),
    ("a.txt", "a\n", {"column": "text"}, "has no columns to choose"),
    ("parallel:a.txt", "a ||| b\n", {"column": "en"}, "has no columns to choose"),
    (JSONL, '{"text": "a"}', {"paragraphs": True}, "paragraphs are for .txt files"),
]


@pytest.mark.parametrize(("name", "contents", "options", "expected"), REFUSED)
def test_what_is_wrong_is_said_in_one_line(
    name: str, contents: str, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    kind, colon, file = name.rpartition(":")
    path = write(tmp_path, file, contents)
    assert expected in message(f"{kind}{colon}{path}", **options)


# Several files ----------------------------------------------------------------------------------


def test_a_folder_and_a_pattern_are_sorted(tmp_path: Path) -> None:
    write(tmp_path, "d/b.txt", "3\n4\n")
    write(tmp_path, "d/a.jsonl", '{"text": "1"}\n{"text": "2"}\n')
    write(tmp_path, "d/README.md", "# no data")
    write(tmp_path, "d/.hidden.txt", "no data")
    write(tmp_path, "d/deeper/b.txt", "5")
    data = open_data(tmp_path / "d")
    assert data.name == "d"
    found = [(record.id, record.text) for record in data]
    assert found == [("a.jsonl:0", "1"), ("a.jsonl:1", "2"), ("b.txt:0", "3"), ("b.txt:1", "4")]
    assert [r.id for r in open_data(str(tmp_path / "d" / "*.txt"))] == ["b.txt:0", "b.txt:1"]
    deep = open_data(str(tmp_path / "*" / "**" / "b.txt"))
    assert [r.id for r in deep] == ["d/b.txt:0", "d/b.txt:1", "d/deeper/b.txt:0"]


def test_fingerprints_tell_contents_and_options_apart(tmp_path: Path) -> None:
    one = write(tmp_path, "x/a.txt", "one\ntwo\n")
    same = write(tmp_path, "y/a.txt", "one\ntwo\n")
    other = write(tmp_path, "z/a.txt", "one\nTwo\n")
    fingerprint = open_data(one).fingerprint
    assert fingerprint == open_data(one).fingerprint == open_data(same).fingerprint
    different = {
        open_data(other).fingerprint,
        open_data(one, paragraphs=True).fingerprint,
        open_data(one, limit=1).fingerprint,
        fingerprint,
    }
    assert len(different) == 4


def test_data_travels_to_other_processes(tmp_path: Path) -> None:
    data = open_data(write(tmp_path, "a.txt", "one\ntwo\n"))
    again = pickle.loads(pickle.dumps(data))
    assert list(again) == list(data)
    assert again.fingerprint == data.fingerprint


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert "there is no data at 'none.txt'" in message("none.txt")
    assert "there is no data at 'imdb:x.txt'" in message("imdb:x.txt")
    assert "there is no data at 'sst2'" in message(Path("sst2"))
    for impossible in ("", " ", "sst2:", "a\0b", "x" * 5000, "~nobody-has-this-name/a.txt"):
        assert "there is no data at" in message(impossible)
    assert "no file matches" in message(str(tmp_path / "*.txt"))
    assert "holds no data file" in message(tmp_path)
    assert "is empty" in message(write(tmp_path, "a.txt", ""))
    assert "holds no sequence" in message(write(tmp_path, "b.txt", " \n\n"))
    assert "by its suffix '.doc'" in message(write(tmp_path, "c.doc", "a\nb"))
    assert "by its suffix '.bin'" in message(write(tmp_path, "c.bin", b"\xff\x00"))


# Bytes that are not text ------------------------------------------------------------------------

SPOILT = {
    "a.txt": (b"good\n\ncaf\xe9\nfine\n", 3),
    "b.jsonl": (b'{"text": "good"}\n{"text": "caf\xe9"}\n{"text": "fine"}\n', 2),
    "structure.jsonl": (b'{"text": "good"}\n{"text"\xff: "x"}\n{"text": "fine"}\n', 2),
    "other column.jsonl": (b'{"text": "good"}\n{"text": "a", "b": "\xff"}\n{"text": "fine"}', 2),
    "c.csv": (b"text,n\ngood,1\ncaf\xe9,2\nfine,3\n", 3),
    "several lines.csv": (b'text,n\ngood,1\n"\xe9\nb\nc",2\nfine,3\n', 3),
    "d.tsv": (b"n\ttext\n1\tgood\n2\t\xff\xfe\n3\tfine\n", 3),
    "e.conll": (b"good O\n\na O\ncaf\xe9 O\nc O\n\nfine O\n", 4),
    "tag.conll": (b"good O\n\na O\nb B-\xe9\n\nfine O\n", 4),
    "broken tag.conll": (b"good O\n\na O\nb \xe9\n\nfine O\n", 4),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_byte_that_is_not_utf8_spoils_one_sequence(tmp_path: Path, name: str) -> None:
    contents, line = SPOILT[name]
    data = open_data(write(tmp_path, name, contents))
    first, second, third = data
    assert [r.id for r in (first, second, third)] == [f"{name}:{index}" for index in range(3)]
    assert second.unreadable is not None
    assert second.unreadable.startswith(f"line {line}: byte 0x")
    assert second.unreadable.endswith(" is not UTF-8; save the file as UTF-8")
    for record, word in ((first, "good"), (third, "fine")):
        assert record.unreadable is None
        assert record.text == word or record.words == (word,)
    assert list(open_data(tmp_path / name)) == [first, second, third]


def test_a_byte_that_is_not_utf8_spoils_one_paragraph(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"good\none\n\ntwo\ncaf\xe9\n\nfine\n")
    first, second, third = open_data(path, paragraphs=True)
    assert (first.text, third.text) == ("good one", "fine")
    assert second.unreadable is not None
    assert second.unreadable.startswith("line 5: ")


def test_a_byte_that_is_not_utf8_spoils_one_pair(tmp_path: Path) -> None:
    contents = b"= A\xe9 =\na\nb\n= = \xff = =\nc\nd\xe9\ne\n= B =\nf\ng\n"
    first, second, third = open_data(f"wikitext:{write(tmp_path, 'wiki.raw', contents)}")
    assert (first.text, third.text) == (("a", "b"), ("f", "g"))
    assert second.unreadable is not None
    assert second.unreadable.startswith("line 6: ")


def test_a_text_that_is_not_utf8_spoils_one_row_of_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.array([b"good", b"caf\xe9", b"fine"]).cast(pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 3, bad.buffers())
    pq.write_table(pa.table({"text": strings}), tmp_path / "a.parquet")
    first, second, third = open_data(tmp_path / "a.parquet")
    assert (first.text, third.text) == ("good", "fine")
    assert second.unreadable == "row 2: the text is not UTF-8; write the file anew"


def test_files_that_are_not_text_at_all_are_refused(tmp_path: Path) -> None:
    latin1 = write(tmp_path, "a.txt", "café\nà la carte\n".encode("latin1"))
    assert "no sequence of 'a.txt' can be read; line 1: byte 0xe9 is not UTF-8" in message(latin1)
    for encoding in ("utf-16", "utf-32"):
        other = write(tmp_path, "b.jsonl", '{"text": "a"}\n'.encode(encoding))
        assert f"is {encoding.upper()}, not UTF-8" in message(other)
    header = write(tmp_path, "c.csv", b"text,caf\xe9\na,b\n")
    assert "line 1: byte 0xe9 is not UTF-8" in message(header)


def test_a_limit_counts_what_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"good\ncaf\xe9\nfine\n")
    assert [bool(record.unreadable) for record in open_data(path, limit=2)] == [False, True]


# Named files ------------------------------------------------------------------------------------

WIKITEXT = """
 = First article =

 one , two

 = = Section = =

 three
 four
 five
 = Second article =
 six
 seven
"""


def test_wikitext_pairs_paragraphs_of_an_article(tmp_path: Path) -> None:
    path = write(tmp_path, "wiki.raw", WIKITEXT)
    data = open_data(f"wikitext:{path}")
    assert data.name == "wikitext:wiki.raw"
    assert list(data) == [
        Record("wiki.raw:0", text=("one , two", "three"), between="\n= = Section = =\n"),
        Record("wiki.raw:1", text=("four", "five"), between="\n"),
        Record("wiki.raw:2", text=("six", "seven"), between="\n"),
    ]


def test_a_heading_that_is_not_utf8_spoils_the_passage_it_stands_in(tmp_path: Path) -> None:
    contents = b"= A =\na\n= = \xff = =\nb\nc\nd\n"
    first, second = open_data(f"wikitext:{write(tmp_path, 'wiki.raw', contents)}")
    assert first.unreadable is not None
    assert first.unreadable.startswith("line 3: ")
    assert second.passage == "c\nd"


def test_sst2(real_data: Any) -> None:
    path = real_data("sst2/dev.tsv")
    records = list(open_data(f"sst2:{path}"))
    assert len(records) == 872
    assert records[0] == Record("dev.tsv:0", text="it 's a charming and often affecting journey .")
    assert records == list(open_data(path))


def test_wikitext(real_data: Any) -> None:
    path = real_data("wikitext2/wiki.valid.raw")
    records = list(open_data(f"wikitext:{path}"))
    assert 800 < len(records) < 1000
    for record in records:
        first, second = record.text
        assert first
        assert second
        assert not first.startswith("= ")
        assert not second.startswith("= ")
    lines = path.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.strip() for line in lines if line.strip())
    assert all(record.passage in text for record in records)
    assert any("\n= = " in record.passage for record in records)
    assert records[0].text[0].startswith("Homarus gammarus , known as the European lobster")
    assert records[0].text[1].startswith("Homarus gammarus is a large crustacean")

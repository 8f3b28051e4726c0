"""Every file format and table, in order, and one line for what is wrong."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normlens.corpus import Entity, Record, open_data
from normlens.corpus.data.readers import MemoryData
from normlens.corpus.data.records import ReadOptions
from normlens.errors import InputError, MissingDependencyError


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def spec_of(folder: Path, name: str, content: str | bytes) -> str:
    """Write a file, and name it as the data set that `name` says: a file, or ``format:file``."""
    kind, colon, file = name.rpartition(":")
    return f"{kind}{colon}{write(folder, file, content)}"


def message(spec: Any, **options: Any) -> str:
    """The error of opening and reading a data set, which is one line."""
    with pytest.raises(InputError) as caught:
        list(open_data(spec, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines(*rows: Any) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n\n"


# What files hold ----------------------------------------------------------------------------------

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
IOB1 = """-DOCSTART- -X- O O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER

-DOCSTART- -X- O O

Seoul\xa0City NNP I-NP I-LOC
Korea NNP I-NP B-LOC
Korea NNP I-NP I-LOC
"""
SENTENCES: list[dict[str, Any]] = [
    {
        "words": ("U.N.", "official", "Ekeus"),
        "entities": (Entity(0, 1, "ORG"), Entity(2, 3, "PER")),
    },
    {
        "words": ("Seoul\xa0City", "Korea", "Korea"),
        "entities": (Entity(0, 1, "LOC"), Entity(1, 3, "LOC")),
    },
]
PAIR = 'main\tMSRvid\t2012\t0000\t5.000\tA "man".\tA man, too.\n'
PAIR += "news\tx\t2012\t1\t.5\tOne.\tTwo.\thttp\n"
ROWS: list[dict[str, Any]] = [
    {"text": " a b "},
    {"text": ["a", "b"]},
    {"sentence": "c"},
    {"text": ""},
    {"text": None},
    {"words": ["New", "York", "!"], "entities": [[0, 2, "LOC"]]},
    {"words": ["a"], "entities": [{"start": 0, "stop": 1, "label": "X"}], "text": "unused"},
    {"tokens": ["[CLS]", "a", "[SEP]"]},
]
WORDS = ["don't", "stop"], ["ne", "vous", "arrêtez", "pas"]
COLUMNS = {
    "words": ["a"], "premise": "p", "hypothesis": "h", "both": ["x", "y"],
    "translation": {"en": "q", "fr": "r"}, "label": 1, "share": 0.25, "gap": None, "many": ["é", 1],
}  # fmt: skip


def texts(*found: str | tuple[str, str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in found]


#: A file (with the name of its format, where one is needed), its contents, options, its records.
FILES: list[tuple[str, str, dict[str, Any], list[dict[str, Any]]]] = [
    (
        "a.txt", "\ufeff one two \r\n\n\nthree\n  \nGdańsk\u2028four", {},
        texts("one two", "three", "Gdańsk\u2028four"),
    ),
    (
        "a.txt", "\n\none\ntwo\n\n \nthree\n\nfour\nfive", {"paragraphs": True},
        texts("one two", "three", "four five"),
    ),
    ("a.txt", "a\nb\nc\n", {"limit": 2}, texts("a", "b")),
    ("a.txt", "Blood group O\nBlood group B-negative\nno\n", {}, texts(
        "Blood group O", "Blood group B-negative", "no"
    )),
    ("a.jsonl", '{"text": "good"}\n{"text": "fine"}\n{broken\n', {"limit": 2}, texts(
        "good", "fine"
    )),
    ("a.jsonl", lines(*ROWS), {}, [
        *texts("a b", ("a", "b"), "c"),
        {"words": ("New", "York", "!"), "entities": (Entity(0, 2, "LOC"),)},
        {"words": ("a",), "entities": (Entity(0, 1, "X"),)},
        {"tokens": ("[CLS]", "a", "[SEP]")},
    ]),
    ("a.jsonl", lines(COLUMNS), {"column": "premise"}, texts("p")),
    ("a.jsonl", lines(COLUMNS), {"column": "both"}, texts(("x", "y"))),
    ("a.jsonl", lines(COLUMNS), {"column": "premise", "pair_column": "hypothesis"}, texts(
        ("p", "h")
    )),
    ("a.jsonl", lines(COLUMNS), {"column": "translation.en", "pair_column": "translation.fr"},
     texts(("q", "r"))),
    ("a.jsonl", lines(COLUMNS), {"extra": ("label", "share", "gap", "many")}, [
        {"words": ("a",),
         "extra": {"label": "1", "share": "0.25", "gap": "", "many": '["é", 1]'}},
    ]),
    (
        "a.jsonl",
        lines({"en": WORDS[0], "fr": WORDS[1]}, {"en": [], "fr": ["rien"]}, {"en": "a", "fr": "b"}),
        {"column": "en", "pair_column": "fr"},
        [{"words": tuple(WORDS[0]), "second_words": tuple(WORDS[1])}, *texts(("a", "b"))],
    ),
    ("a.csv", 'id,sentence\n1,"a, ""b""\nc"\n\n2,d\n3,  \n', {}, texts('a, "b"\nc', "d")),
    ("a.tsv", "text\tlabel\r\nit 's , fine \t1\r\n", {"extra": ("label",)}, [
        {"text": "it 's , fine", "extra": {"label": "1"}}
    ]),
    ("a.tsv", "en\tfr\nthe house\tla maison\nalone\t\n", {"column": "en", "pair_column": "fr"},
     texts(("the house", "la maison"))),
    *((name, IOB1, {}, SENTENCES) for name in ("a.conll", "eng.testa", "valid.txt", "noend")),
    ("wikitext:wiki.raw", WIKITEXT, {}, [
        {"text": ("one , two", "three"), "between": "\n= = Section = =\n"},
        {"text": ("four", "five"), "between": "\n"},
        {"text": ("six", "seven"), "between": "\n"},
    ]),
    ("parallel:a.txt", "the  house   ||| la maison \n\n |||  \na ||| b c\n", {}, [
        {"words": ("the", "house"), "second_words": ("la", "maison")},
        {"words": ("a",), "second_words": ("b", "c")},
    ]),
    ("a.txt", "the  house   ||| la maison", {}, texts("the  house   ||| la maison")),
    *(
        (name, PAIR, {"extra": ("score", "genre")}, [
            {"text": ('A "man".', "A man, too."), "extra": {"score": "5.000", "genre": "main"}},
            {"text": ("One.", "Two."), "extra": {"score": ".5", "genre": "news"}},
        ])
        for name in ("stsb:x", "sts-dev.csv")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "contents", "options", "expected"), FILES)
def test_the_records_of_a_file(
    name: str,
    contents: str,
    options: dict[str, Any],
    expected: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    file = name.rpartition(":")[-1]
    records = [Record(f"{file}:{n}", **fields) for n, fields in enumerate(expected)]
    data = open_data(spec_of(tmp_path, name, contents), **options)
    assert list(data) == list(data) == records
    assert data.name == name
    again = pickle.loads(pickle.dumps(data))  # it travels to other processes
    assert list(again) == records
    assert again.fingerprint == data.fingerprint


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"n": range(1500), "text": [f"text {n}" for n in range(1499)] + [None]}
    pq.write_table(pa.table(columns), path)
    found = [(record.text, record.extra["n"]) for record in open_data(path, extra=("n",))]
    assert found == [(f"text {n}", str(n)) for n in range(1499)]
    assert "no column 'body'" in message(path, column="body")
    assert "row 1: 'n' holds a number" in message(path, column="n")
    spans = [[{"start": 0, "stop": 2, "label": "LOC"}]]
    pq.write_table(pa.table({"words": [["New", "York"]], "entities": spans}), path)
    words = Record("a.parquet:0", words=("New", "York"), entities=(Entity(0, 2, "LOC"),))
    assert list(open_data(path)) == [words]
    bad = pa.array([b"good", b"caf\xe9"]).cast(pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 2, bad.buffers())
    pq.write_table(pa.table({"text": strings}), path)
    for damaged in (path, write(tmp_path, "b.parquet", "PAR1 no")):
        assert "is damaged" in message(damaged)


# What is wrong, in one line -----------------------------------------------------------------------

CSV, JSONL, CONLL, STSB = "a.csv", "a.jsonl", "a.conll", "sts-dev.csv"

#: A file, its contents, options, and the line that the error names.
REFUSED: list[tuple[str, str, dict[str, Any], int | None]] = [
    *(
        (JSONL, f'{{"text": "good"}}\n{line}\n', {}, 2)
        for line in (
            "{",
            "[" * 100_000,
            '"text"',
            '{"text": 3}',
            '{"text": ["a", "b", "c"]}',
            '{"body": "a", "n": 1}',
            '{"words": "a b"}',
            '{"words": ["a", ""]}',
            '{"words": ["a"], "entities": [[0, 2, "X"]]}',
            '{"words": ["a"], "entities": [[0, "1", "X"]]}',
            '{"words": ["a"], "entities": [[0, true, "X"]]}',
            '{"words": ["a"], "entities": 7}',
            '{"words": ["a"], "entities": [7]}',
            '{"words": ["a", "b"], "entities": [[0, 2, "X"], [1, 2, "Y"]]}',
        )
    ),
    (CSV, "a,b\n1,2\n", {}, 1),
    (CSV, "text,b\n1,2\n3\n", {}, 3),
    (CSV, "text,b\n1,2,3\n", {}, 2),
    (CSV, 'text,b\n"never closed,2\n', {}, 2),
    (CSV, "text,b\n", {}, None),
    (CSV, "\n\n", {}, None),
    (CONLL, "a NN O\nb O\n", {}, 2),
    (CONLL, "a\nb\n", {}, 1),
    (CONLL, "a NN O\nb NN NP\n", {}, 2),
    (CONLL, "-DOCSTART- O\n\n", {}, None),
    ("parallel:a.txt", "a ||| b\nthe house la maison", {}, 2),
    ("parallel:a.txt", "a ||| b\na ||| b ||| c", {}, 2),
    (STSB, PAIR + "main\tx\t2012\t3\tfive\tA\tB\n", {}, 3),
    (STSB, PAIR + "main\tx\t2012\t3\t4.0\tA\n", {}, 3),
    # Columns that are not there, and options that do not apply.
    (CSV, "text,n\na,1\n", {"column": "body"}, 1),
    (JSONL, '{"text": "a"}', {"pair_column": "b"}, 1),
    (JSONL, '{"en": ["a"], "fr": "b"}', {"column": "en", "pair_column": "fr"}, 1),
    (JSONL, '{"t": {"en": "a"}}', {"column": "t.fr"}, 1),
    (JSONL, '{"t": "a"}', {"column": "t.fr"}, 1),
    (JSONL, '{"text": "a", "label": 1}\n', {"extra": ("gold",)}, 1),
    (CSV, "sentence,label\na,1\n", {"extra": ("gold",)}, 1),
    (STSB, PAIR, {"extra": ("gold",)}, None),
    ("a.txt", "a\n", {"extra": ("gold",)}, None),
    ("a.txt", "a\n", {"column": "text"}, None),
    ("parallel:a.txt", "a ||| b\n", {"column": "en"}, None),
    (JSONL, '{"text": "a"}', {"paragraphs": True}, None),
    ("a.txt", "", {}, None),
    ("b.txt", " \n\n", {}, None),
    ("c.doc", "a\nb", {}, None),
]


@pytest.mark.parametrize(("name", "contents", "options", "line"), REFUSED)
def test_what_is_wrong_is_said_in_one_line(
    name: str, contents: str, options: dict[str, Any], line: int | None, tmp_path: Path
) -> None:
    said = message(spec_of(tmp_path, name, contents), **options)
    assert name.rpartition(":")[-1] in said
    assert line is None or f"', line {line}: " in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_files_in_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path, "b.jsonl", '{"text": "a"}\n'.encode(encoding))
    assert encoding.upper() in message(path)
    assert "line 1" in message(write(tmp_path, "a.txt", "café\nà la carte\n".encode("latin1")))


def test_there_is_no_such_data(tmp_path: Path) -> None:
    for nothing in ("none.txt", "imdb:x.txt", Path("sst2"), "", " ", "sst2:", "a\0b", "x" * 5000):
        assert "there is no data at" in message(nothing)
    assert "no file matches" in message(str(tmp_path / "*.txt"))
    assert "holds no data file" in message(tmp_path)
    message("sample", limit=0)


def test_records_that_fit_no_model_are_refused() -> None:
    for fields in (
        {"text": "a", "second_words": ("b",)},
        {"words": ("a",), "second_words": ("b", " ")},
        {"words": ()},
        {"text": "a", "words": ("b",)},
        {"text": "a", "entities": (Entity(0, 1, "X"),)},
        {},
    ):
        with pytest.raises(InputError):
            Record("x", **fields)  # type: ignore[arg-type]


# Several files ------------------------------------------------------------------------------------


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
    one = write(tmp_path, "x/a.txt", "one ||| two\n")
    same = write(tmp_path, "y/a.txt", "one ||| two\n")
    other = write(tmp_path, "z/a.txt", "one ||| Two\n")
    pairs = write(tmp_path, "sts-dev.csv", PAIR)
    opened = [
        open_data(one),
        open_data(other),
        open_data(one, paragraphs=True),
        open_data(one, limit=1),
        open_data(f"parallel:{one}"),
        *(open_data(pairs, extra=extra) for extra in ((), ("score",), ("genre",))),
    ]
    assert len({data.fingerprint for data in opened}) == len(opened)
    assert open_data(same).fingerprint == open_data(one).fingerprint


# Bytes that are not text --------------------------------------------------------------------------

#: Three sequences, the second with bytes that are not UTF-8, in the line that is named.
SPOILT: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "a.txt": (b"good\n\ncaf\xe9\nfine\n", {}, 3),
    "paragraphs.txt": (b"good\n\ntwo\ncaf\xe9\n\nfine\n", {"paragraphs": True}, 4),
    "b.jsonl": (b'{"text": "good"}\n{"text": "caf\xe9"}\n{"text": "fine"}\n', {}, 2),
    "structure.jsonl": (b'{"text": "good"}\n{"text"\xff: "x"}\n{"text": "fine"}\n', {}, 2),
    "c.csv": (b"text,\xe9\ngood,1\ncaf\xe9,2\nfine,3\n", {}, 3),
    "several lines.csv": (b'text,n\ngood,1\n"\xe9\nb\nc",2\nfine,3\n', {}, 3),
    "d.tsv": (b"n\ttext\n1\tgood\n2\t\xff\xfe\n3\tfine\n", {}, 3),
    "e.conll": (b"good O\n\na O\ncaf\xe9 O\nc O\n\nfine O\n", {}, 4),
    "tag.conll": (b"good O\n\na O\nb \xe9\n\nfine O\n", {}, 4),
    "parallel:f": (b"good ||| a\n\xff ||| c\nfine ||| e\n", {}, 2),
    "wikitext:g": (b"= A\xe9 =\ngood\na\n= = \xff = =\nc\nd\xe9\ne\n= B =\nfine\ng\n", {}, 6),
    "wikitext:h": (b"= A =\ngood\na\nb\n= = \xff = =\nc\nfine\ng\n", {}, 5),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_byte_that_is_not_utf8_spoils_one_sequence(tmp_path: Path, name: str) -> None:
    contents, options, line = SPOILT[name]
    data = open_data(spec_of(tmp_path, name, contents), **options)
    first, second, third = data
    file = name.rpartition(":")[-1]
    assert [r.id for r in (first, second, third)] == [f"{file}:{index}" for index in range(3)]
    assert second.unreadable is not None
    assert second.unreadable.startswith(f"line {line}: byte 0x")
    for record, word in ((first, "good"), (third, "fine")):
        assert record.unreadable is None
        assert word in (record.words or record.texts)
    assert list(data) == [first, second, third]
    assert [bool(record.unreadable) for record in data.reading()] == [False, True, False]


# Tables and lists in memory, and data sets of the hub ---------------------------------------------

TEXTS = ["the cat sat", "a mat", "the cats sat on a mat"]


class Table:
    """A table as `datasets` has it, whose columns and rows can be selected."""

    def __init__(self, rows: Iterable[dict[str, Any]] = (), names: Iterable[str] = ("text",)):
        self.rows = list(rows)
        self.column_names = list(self.rows[0] if self.rows else names)
        #: as of the tags of CoNLL-2003
        self.features = {"ner_tags": SimpleNamespace(feature=SimpleNamespace(names=TAGS))}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def select_columns(self, names: list[str]) -> Table:
        return Table(({name: row[name] for name in names} for row in self), names)

    def skip(self, count: int) -> Table:
        return Table(self.rows[count:], self.column_names)


TAGS = ["O", *(f"{b}-{label}" for label in ("PER", "ORG", "LOC", "MISC") for b in "BI")]
IN_MEMORY = {
    "DataFrame": lambda: (pd.DataFrame({"n": [1, 2, 3], "t": TEXTS}), dict(column="t")),
    "usual name": lambda: (pd.DataFrame({"text": TEXTS}), {}),
    "missing": lambda: (pd.DataFrame({"text": [None, *TEXTS, pd.NA, float("nan")]}), {}),
    "arrow": lambda: (pa.table({"text": TEXTS}), {}),
    "datasets": lambda: (Table({"sentence": text, "n": 0} for text in TEXTS), {}),
    "Series": lambda: (pd.Series(TEXTS), {}),
    "generator": lambda: ((text for text in TEXTS), {}),
    "with blanks": lambda: ([TEXTS[0], " ", None, *TEXTS[1:]], {}),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_the_same_texts_are_the_same_data(name: str) -> None:
    data, options = IN_MEMORY[name]()
    found, expected = MemoryData(data, ReadOptions(**options)), MemoryData(TEXTS)
    records = [Record(f"data in memory:{n}", text) for n, text in enumerate(TEXTS)]
    assert list(found) == list(found) == records  # it can be read again
    assert found.fingerprint == expected.fingerprint
    assert MemoryData(TEXTS[:2]).fingerprint != expected.fingerprint
    assert MemoryData(TEXTS, limit=2).fingerprint != expected.fingerprint


def test_pairs_words_and_further_columns_in_memory() -> None:
    frame = pd.DataFrame({"a": TEXTS, "b": TEXTS[::-1], "score": [0.5, 1.0, 2.0]})
    data = MemoryData(frame, ReadOptions("a", "b", extra=("score",)))
    assert [record.text for record in data] == list(zip(TEXTS, TEXTS[::-1], strict=True))
    assert [record.extra["score"] for record in data] == ["0.5", "1.0", "2.0"]
    words = MemoryData(pd.DataFrame({"words": [["the", "cat"], ["a"]]}))
    assert [record.words for record in words] == [("the", "cat"), ("a",)]
    assert [record.text for record in MemoryData([("the cat", "a mat")])] == [("the cat", "a mat")]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (pd.DataFrame({"a": TEXTS}), {}),
        (pd.DataFrame({"a": TEXTS}), dict(column="b")),
        (TEXTS, dict(column="text")),
        ([*TEXTS, 3], {}),
        ([" "], {}),
        (3.5, {}),
        ({"a": "b"}, {}),
    ],
)
def test_objects_that_cannot_be_read(data: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        list(MemoryData(data, ReadOptions(**options)))
    assert "\n" not in str(raised.value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `load_dataset` return these rows; the calls it got are in `calls`."""
    module: Any = ModuleType("datasets")
    module.calls = []

    def serve(rows: Any) -> Any:
        def load_dataset(*args: Any, **options: Any) -> Any:
            module.calls.append((args, options))
            if isinstance(rows, Exception):
                raise rows
            return rows

        module.load_dataset = load_dataset
        return module

    monkeypatch.setitem(sys.modules, "datasets", module)
    return serve


WIKI_LINES = ["", " = Title = \n", " one \n", " = = Section = = \n", " two \n", " three \n"]
TAGGED = ["EU", "rejects", "German", "Peter", "Blackburn"]
MARKED = (Entity(0, 1, "ORG"), Entity(2, 3, "MISC"), Entity(3, 5, "PER"))
#: Rows as the hub has them, the data set's place there, and the records.
PUBLISHED: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any], list[dict[str, Any]]]] = {
    "sst2": (
        [{"sentence": "good . ", "label": 1}, {"sentence": "bad", "label": 0}],
        "stanfordnlp/sst2", {"extra": ("label",)},
        [{"text": "good .", "extra": {"label": "1"}}, {"text": "bad", "extra": {"label": "0"}}],
    ),
    "stsb": (
        [{"sentence1": "a", "sentence2": "b", "score": 2.5}],
        "mteb/stsbenchmark-sts", {}, texts(("a", "b")),
    ),
    "conll2003": (
        [{"tokens": TAGGED, "ner_tags": [3, 0, 7, 1, 2]}, {"tokens": [], "ner_tags": []}],
        "eriktks/conll2003", {}, [{"words": tuple(TAGGED), "entities": MARKED}],
    ),
    "wikitext": (
        [{"text": line} for line in WIKI_LINES],
        "Salesforce/wikitext", {},
        [{"text": ("one", "two"), "between": "\n= = Section = =\n"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_data_sets_of_the_hub(name: str, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, place, options, expected = PUBLISHED[name]
    module = hub(Table(rows))
    data = open_data(name, **options)
    [((called, _), given)] = module.calls
    assert (called, given["split"]) == (place, "validation")
    assert list(data) == [Record(f"{name}:{n}", **fields) for n, fields in enumerate(expected)]
    assert data.name == name
    assert open_data(name, limit=1).fingerprint != data.fingerprint
    for option in ({"column": "sentence"}, {"extra": ("gold",)}):
        message(name, **option)
    hub(Table(names=rows[0]))
    message(name)
    hub(ConnectionError("Couldn't reach\nthe Hub"))
    assert f"--data {name}:" in message(name)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError):
        open_data(name)


def test_datasets() -> None:
    datasets = pytest.importorskip("datasets", reason="tables: pip install datasets")
    rows = datasets.Dataset.from_dict({"sentence": TEXTS, "label": [0, 1, 0]})
    data = MemoryData(rows, ReadOptions(extra=("label",)))
    assert [record.extra["label"] for record in data] == ["0", "1", "0"]
    assert [record.text for record in data] == TEXTS


# Real data, and the embedded sample ---------------------------------------------------------------


def test_real_files(real_data: Any) -> None:
    sentences = list(open_data(f"sst2:{real_data('sst2/dev.tsv')}"))
    assert len(sentences) == 872
    assert sentences[0].text == "it 's a charming and often affecting journey ."
    tagged = list(open_data(f"conll2003:{real_data('conll2003/eng.testa')}"))
    assert len(tagged) == 3250
    labels = [entity.label for record in tagged for entity in record.entities]
    # The shared task's own numbers (Tjong Kim Sang and De Meulder 2003, table 2).
    counts = {"PER": 1842, "LOC": 1837, "ORG": 1341, "MISC": 922}
    assert {label: labels.count(label) for label in set(labels)} == counts
    path = real_data("wikitext2/wiki.valid.raw")
    pairs = list(open_data(f"wikitext:{path}"))
    assert 800 < len(pairs) < 1000
    text = "\n".join(line.strip() for line in path.read_text().splitlines() if line.strip())
    assert all(str(record.passage) in text for record in pairs)
    assert any("\n= = " in str(record.passage) for record in pairs)
    assert not any(part.startswith("= ") for record in pairs for part in record.texts or ())


def test_the_sample_is_large_and_varied() -> None:
    records = list(open_data("sample"))
    lengths = [len(record.words or ()) for record in records]
    entities = [entity for record in records for entity in record.entities]
    assert len({record.words for record in records}) == len(records) >= 120
    assert min(lengths) >= 6
    assert max(lengths) <= 90
    assert sum(bool(record.entities) for record in records) >= 40
    assert sum(entity.stop - entity.start > 1 for entity in entities) >= 60
    assert {entity.label for entity in entities} == {"PER", "LOC", "ORG", "MISC"}

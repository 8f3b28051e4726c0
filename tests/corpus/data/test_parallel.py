"""Parallel text: two columns, lines with ||| between them, and words that stay words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_examples import tiny_tokenizer

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Record
from normlens.corpus.data.spans import encode_apart, encode_record
from normlens.errors import InputError


def test_lines_with_a_source_and_a_target(tmp_path: Path):
    path = tmp_path / "pairs.txt"
    path.write_text("the  house   ||| la maison \n\n |||  \na ||| b c\n")
    data = open_data(f"parallel:{path}")
    assert [(record.words, record.second_words) for record in data] == [
        (("the", "house"), ("la", "maison")),
        (("a",), ("b", "c")),
    ]
    assert [record.id for record in data] == ["pairs.txt:0", "pairs.txt:1"]
    assert data.name == "parallel:pairs.txt"
    # Without the name of the format a .txt file is lines of text, as ever.
    assert next(iter(open_data(path))).text == "the  house   ||| la maison"
    assert open_data(path).fingerprint != data.fingerprint


def test_a_line_that_is_not_utf_8_keeps_its_place(tmp_path: Path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"a ||| b\n\xff ||| c\nd ||| e\n")
    assert [bool(record.unreadable) for record in open_data(f"parallel:{path}")] == [0, 1, 0]


def test_two_columns_of_texts(tmp_path: Path):
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("en\tfr\nthe house\tla maison\nalone\t\n")
    rows = [record.text for record in open_data(tsv, column="en", pair_column="fr")]
    assert rows == [("the house", "la maison")]


def test_two_columns_of_words(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"en": ["don't", "stop"], "fr": ["ne", "vous", "arrêtez", "pas"]},
        {"en": [], "fr": ["rien"]},
        {"en": "the house", "fr": "la maison"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second = open_data(path, column="en", pair_column="fr")
    assert (first.words, first.second_words) == (tuple(rows[0]["en"]), tuple(rows[0]["fr"]))
    assert first.texts == ("don't stop", "ne vous arrêtez pas")
    assert second.text == second.texts == ("the house", "la maison")
    path.write_text('{"en": ["a"], "fr": "b"}')
    with pytest.raises(InputError, match="'en' holds a list where a text should be"):
        list(open_data(path, column="en", pair_column="fr"))


def test_the_second_words_need_the_first():
    with pytest.raises(InputError, match="the first is not"):
        Record("x", text="a", second_words=("b",))
    with pytest.raises(InputError, match="word of the second text 1 is ' '"):
        Record("x", words=("a",), second_words=("b", " "))


def test_a_model_of_one_sequence_reads_a_pair_of_texts():
    tokenizer = tiny_tokenizer()
    pair = Record("x", words=("ab", "c"), second_words=("d",))
    texts = Record("x", text=("ab c", "d"))
    for encode in (encode_record, encode_apart):
        found, expected = (encode(one, tokenizer, max_length=None) for one in (pair, texts))
        assert found == expected

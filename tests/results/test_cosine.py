"""A cosine's parts as tables, and CSV that a spreadsheet opens as data."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from one_case import in_one_case

import normlens
from normlens.errors import InputError
from normlens.models.tiny import tiny_model
from normlens.results import exports as export
from normlens.results.axes import TokenAxis
from normlens.results.explanation import Cosine
from normlens.results.words import harmless, harmless_sql, write_csv


@pytest.fixture
def pair() -> Cosine:
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(4, 3))
    a_with_bias, b_with_bias = generator.normal(size=4), generator.normal(size=3)
    return Cosine(
        value=float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum() + 0.25),
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=0.25,
        a=TokenAxis(
            ["[CLS]", "fl", "##ute", "."],
            [1, 2, 3, 4],
            [True, False, False, False],
            [None, 0, 0, 1],
            ["flute", "."],
        ),
        b=TokenAxis(["[CLS]", "drum", "!"], [1, 5, 6], [True, False, False], [None, 0, 1],
                    ["drum", "!"]),
        completeness=1e-8,
        provenance={"model": "m", "note": "a note"},
        text_a="flute.",
        text_b="drum!",
    )  # fmt: skip


def test_margins_with_and_without_the_other_texts_bias(pair):
    margins = pair.margins
    np.testing.assert_allclose(margins.a_without_bias, pair.matrix.sum(1))
    np.testing.assert_allclose(margins.b_without_bias, pair.matrix.sum(0))
    unowned_by_a = pair.b_with_bias.sum() + pair.bias
    assert margins.a.sum() + unowned_by_a == pytest.approx(pair.value)
    unowned_by_b = pair.a_with_bias.sum() + pair.bias
    assert margins.b.sum() + unowned_by_b == pytest.approx(pair.value)


def test_words_keep_every_sum(pair):
    merged = pair.words()
    assert merged.tokens_a == ["[CLS]", "flute", "."]
    assert merged.tokens_b == ["[CLS]", "drum", "!"]
    np.testing.assert_allclose(merged.matrix[1], pair.matrix[1] + pair.matrix[2])
    assert merged.matrix.sum() == pytest.approx(pair.matrix.sum())
    assert merged.remainder == pytest.approx(pair.remainder)
    assert merged.words() == merged
    with pytest.raises(InputError):
        Cosine(**{**vars(pair), "a": TokenAxis(["x", "y", "z", "w"])}).words()


def test_tables(pair):
    frame = pair.to_pandas()
    assert list(frame.columns) == ["a", "a_token", "b", "b_token", "value"]
    assert len(frame) == 12
    row = frame[(frame.a == 2) & (frame.b == 1)].iloc[0]
    assert (row.a_token, row.b_token, row.value) == ("##ute", "drum", pair.matrix[2, 1])
    best = pair.top(3)
    assert len(best) == 3
    assert abs(best.value[0]) == np.abs(pair.matrix).max()


FORMULAS = ["=1+1", "+1", "-", "@SUM(A1)", "\t=1", "\r=1", '=A("x",1)']


PLAIN = ["the", "a=b", "", "'", "##ing", "–", " =1", "日本"]


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_a_formula_becomes_text_and_other_cells_stay() -> None:
    assert [harmless(cell) for cell in FORMULAS] == [f"'{cell}" for cell in FORMULAS]
    for cell in (*PLAIN, -1.5, -3, None, np.float32(-2)):
        assert harmless(cell) is cell


@in_one_case("kind", [object, "category", "string"])
def test_texts_of_every_kind_are_marked_and_numbers_stay(kind: str) -> None:
    texts = [*FORMULAS, *PLAIN]
    numbers = -np.arange(len(texts)) / 3
    frame = pd.DataFrame({"text": pd.Series(texts, dtype=kind), "=name": numbers})
    frame["either"] = [-1.5, "-1.5", *[None] * (len(texts) - 2)]
    before = frame.copy()
    written = io.StringIO()
    write_csv(frame, written)
    header, *body = rows(written.getvalue())
    assert header == ["text", "'=name", "either"]
    assert [row[0] for row in body] == [harmless(text) for text in texts]
    assert [float(row[1]) for row in body] == numbers.tolist()
    assert [row[2] for row in body[:3]] == ["-1.5", "'-1.5", ""]
    pd.testing.assert_frame_equal(frame, before)


def test_tokens_of_maps(tmp_path: Path) -> None:
    maps = normlens.load(tiny_model("bert")).maps(input_ids=[5, 6, 7], layers=0, scopes="FF")
    maps = replace(maps, raw_tokens=["=1+1", "a", "-"])
    export.write(maps, tmp_path / "maps.csv")
    _, *body = rows((tmp_path / "maps.csv").read_text(encoding="utf-8"))
    assert [row[6] for row in body] == ["'=1+1", "a", "'-"] * 3


def answer(query: str) -> tuple[list[str], list[tuple[object, ...]]]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(":memory:") as connection:
        described = connection.execute(f"DESCRIBE ({query})").fetchall()
        safe = connection.execute(harmless_sql(query, [(row[0], row[1]) for row in described]))
        return [column[0] for column in safe.description], safe.fetchall()


def test_a_query_marks_the_same_cells() -> None:
    texts = [*FORMULAS, *PLAIN]
    quoted = ", ".join("('" + text.replace("'", "''") + "')" for text in texts)
    _, found = answer(f"SELECT t FROM (VALUES {quoted}) AS texts(t)")
    assert [row[0] for row in found] == [harmless(text) for text in texts]


def test_a_query_keeps_numbers_names_and_nothing() -> None:
    names, found = answer(
        "SELECT -1 AS a, -1.5 AS a, -2::DOUBLE AS \"=x\", NULL::VARCHAR AS n, '-'::ENUM('-') AS e, "
        "-3::HUGEINT AS h, '=x'::BLOB AS b"
    )
    assert [name for name in names if "x" in name] == ["'=x"]
    (row,) = found
    assert [float(str(value)) for value in (row[0], row[1], row[2], row[5])] == [-1, -1.5, -2, -3]
    assert (row[3], row[4], row[6]) == (None, "'-", "'=x")

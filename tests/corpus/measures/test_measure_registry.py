"""Measures by name, and a user's own."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from measure_examples import item

from normlens.corpus import measures
from normlens.corpus.engines.block_rows import schemas
from normlens.corpus.runs.options import MEASURES
from normlens.errors import InputError

MODULE = """
from normlens.corpus.measures import measure

@measure(schema={"layer": int, "mean": float})
def own_share(maps):
    diagonal = maps["ATTN-N"].diagonal(axis1=1, axis2=2)
    return {"layer": maps.layers, "mean": diagonal.mean(axis=1)}

@measure(name="words_of", schema={"words": int}, scopes=["ATTN-N"], statistics=True)
def counted(item):
    return [{"words": len({w for w in item.encoded.words if w is not None})}]

def plain(maps):
    return []

number = 3
"""


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    (tmp_path / "my_own_measures.py").write_text(MODULE)
    (tmp_path / "my_broken_measures.py").write_text("import my_own_measures\n1 / 0\n")
    (tmp_path / "my_ending_measures.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "my_needy_measures.py").write_text("import a_package_that_is_missing\n")
    monkeypatch.chdir(tmp_path)
    yield "my_own_measures"
    for name in ("my_own_measures", "my_broken_measures", "my_needy_measures"):
        sys.modules.pop(name, None)


def test_runs_know_the_built_in_measures_without_importing_them() -> None:
    assert tuple(measures.names()) == MEASURES


def test_built_in_measures_by_name():
    for name in measures.names():
        found = measures.get(name)
        assert found.name == name
        assert isinstance(found, measures.Measure)
        assert pickle.loads(pickle.dumps(found)).options == found.options
    for name, options in (("likeness", {}), ("similarity", {"scopes": ["FF"]})):
        with pytest.raises(InputError):
            measures.get(name, **options)


def test_ones_own_measure_by_module_and_name(my_module):
    before = list(sys.path)
    found = measures.get(f"{my_module}:own_share")
    assert sys.path == before
    assert isinstance(found, measures.Measure)
    one = item(5)
    table = found.rows(one)["own_share"]
    assert table.schema == found.tables["own_share"]
    assert table.column_names == ["index", "sequence", "layer", "mean"]
    assert table["index"].to_pylist() == [5, 5]
    assert table["sequence"].to_pylist() == ["text-5"] * 2
    expected = [np.diagonal(layer).mean() for layer in one.maps["ATTN-N"]]
    assert table["mean"].to_pylist() == pytest.approx(expected)
    assert found.combine("own_share", table) is table
    assert found(one.maps)["layer"] == [0, 1]


def test_a_function_of_the_item(my_module):
    found = measures.get(f"{my_module}:counted")
    assert found.name == "words_of"
    assert found.needs == measures.Needs(("ATTN-N",), True)
    words = len({w for w in item(1).encoded.words if w is not None})
    assert found.rows(item(1))["words_of"].to_pylist() == [
        {"index": 1, "sequence": "text-1", "words": words}
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_absent:f", "no module 'my_absent'"),
        ("my_broken_measures:f", "ZeroDivisionError"),
        ("my_ending_measures:f", "SystemExit"),
        ("my_needy_measures:f", "a_package_that_is_missing"),
        ("my_own_measures:own_shares", "its measures are: own_share, counted"),
        ("my_own_measures:plain", "not a measure"),
        ("my_own_measures:number", "not a measure"),
        ("./my_own_measures.py:own_share", "write the module: my_own_measures:own_share"),
        (":f", "names no measure"),
        ("my_module:", "names no measure"),
    ],
)
def test_what_cannot_be_imported(my_module, name, words):
    with pytest.raises(InputError) as caught:
        measures.get(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ones_own_measure_travels_to_other_processes(my_module):
    found = measures.get(f"{my_module}:own_share")
    assert pickle.loads(pickle.dumps(found)) is found
    with pytest.raises(InputError):
        measures.get(f"{my_module}:own_share", axis="target")


def test_two_measures_cannot_write_the_same_table(tmp_path, monkeypatch):
    text = (
        'from normlens.corpus.measures import measure\n@measure(name="mixing", schema={"x": int})\n'
    )
    (tmp_path / "my_twin_measures.py").write_text(text + "def f(maps):\n    return []\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError):
        schemas([measures.get("mixing"), measures.get("my_twin_measures:f")])


SCHEMA = {"layer": int, "value": "float32", "word": str, "yes": pa.bool_()}
ROW = {"layer": 1, "value": 0.5, "word": "a", "yes": True}


@pytest.mark.parametrize(
    "result",
    [
        [ROW],
        (ROW,),
        {name: [value] for name, value in ROW.items()},
        ROW,
        pd.DataFrame([ROW]),
        pd.DataFrame([ROW]).astype({"word": "category"}),
        pa.Table.from_pylist([ROW]),
        {"yes": np.array([True]), "word": ["a"], "value": np.array([0.5]), "layer": (1,)},
    ],
)
def test_what_a_function_may_return(result):
    found = measures.measure(lambda maps: result, name="mine", schema=SCHEMA)
    table = found.rows(item(0))["mine"]
    assert table.to_pylist() == [{"index": 0, "sequence": "text-0", **ROW}]
    assert table.schema.field("value").type == pa.float32()


@pytest.mark.parametrize("result", [None, [], {name: [] for name in SCHEMA}])
def test_a_function_may_return_nothing(result):
    found = measures.measure(lambda maps: result, name="mine", schema=SCHEMA)
    assert found.rows(item(0))["mine"].equals(found.tables["mine"].empty_table())


@pytest.mark.parametrize(
    "result",
    [
        3, "text", [ROW, {"layer": 1}], [{"layer": 1}], {**ROW, "more": 1},
        {**ROW, "layer": "first"}, {**ROW, "layer": [1, 2]},
    ],
)  # fmt: skip
def test_what_does_not_fit_the_schema(result):
    found = measures.measure(lambda maps: result, name="mine", schema=SCHEMA)
    with pytest.raises(InputError):
        found.rows(item(0))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"name": "my table", "schema": {"x": int}}, {"schema": {"index": int}},
        {"schema": {"x": "colour"}},
    ],
)  # fmt: skip
def test_what_cannot_become_a_measure(options):
    with pytest.raises(InputError):
        measures.measure(lambda maps: [], **{"name": "f", **options})
    with pytest.raises(InputError):
        measures.measure(lambda: [], name="g", schema={"x": int})


def test_needs_add_up():
    Needs = measures.Needs
    assert Needs(("A",)) | Needs(("B", "A"), True) == Needs(("A", "B"), True)
    assert Needs(()) | Needs(("A",)) == Needs(("A",))
    assert Needs(("A",)) | Needs() == Needs(None)

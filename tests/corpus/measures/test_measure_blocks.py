"""Whatever the blocks, the tables are the same, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from measure_examples import blocks, cut_rows, final, item

from normlens.corpus import measures
from normlens.corpus.measures import tokens as pairs
from normlens.corpus.measures.tokens import RELATIONS

ITEMS = [item(index, n=5 + index % 4) for index in range(12)]
PARTITIONS = [[1], [6], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [5, 5, 9], [11]]
AGGREGATES = [
    ("amplification", "amplification_pairs"),
    ("amplification", "amplification_sample"),
    ("norms", "norms_dimensions"),
]
ALL = [(name, table) for name in measures.names() for table in measures.get(name).tables]


def make(name: str) -> measures.Measure:
    small = {"keep": 9, "keep_other": 5} if name == "amplification" else {}
    return measures.get(name, **small)


@pytest.mark.parametrize(("name", "table"), ALL)
def test_final_tables_do_not_depend_on_the_blocks(name, table, tmp_path):
    measure = make(name)
    rows = [measure.rows(one)[table] for one in ITEMS]
    expected = final(measure, table, cut_rows(measure, table, rows, []), tmp_path)
    assert len(expected) > 0
    for cuts in PARTITIONS:
        parts = cut_rows(measure, table, rows, cuts)
        assert final(measure, table, parts[::-1], tmp_path).equals(expected)


@pytest.mark.parametrize(("name", "table"), AGGREGATES)
def test_combining_is_associative_and_in_any_order(name, table):
    measure = make(name)
    rows = [measure.rows(one)[table] for one in ITEMS]
    expected = measure.combine(table, pa.concat_tables(rows))
    assert expected.schema == measure.tables[table]
    assert same(measure.combine(table, expected), expected)
    halves = [measure.combine(table, pa.concat_tables(half)) for half in (rows[7:], rows[:7])]
    assert same(measure.combine(table, pa.concat_tables(halves)), expected)
    one_by_one = rows[-1]
    for part in reversed(rows[:-1]):
        one_by_one = measure.combine(table, pa.concat_tables([one_by_one, part]))
    assert same(one_by_one, expected)
    empty = measure.tables[table].empty_table()
    assert measure.combine(table, empty).equals(empty)


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal rows in the same order, wherever their text is kept."""
    return a.to_pylist() == b.to_pylist()


@pytest.mark.parametrize(("name", "table"), ALL)
def test_rows_are_as_announced_and_the_same_each_time(name, table):
    measure = make(name)
    first, second = (measure.rows(ITEMS[3])[table] for _ in range(2))
    assert first.schema == measure.tables[table]
    assert first.equals(second)
    assert set(measure.order[table]) <= set(first.column_names)


# The sample -------------------------------------------------------------------------------------


def sample(items, tmp_path, cuts=(), **options) -> pa.Table:
    measure = measures.get("amplification", **options)
    parts = blocks(measure, "amplification_sample", items, list(cuts))
    return final(measure, "amplification_sample", parts, tmp_path)


def test_the_sample_is_each_stratums_lowest_priorities(tmp_path):
    everything = sample(ITEMS, tmp_path).to_pylist()
    found = sample(ITEMS, tmp_path, [4, 8], keep=9, keep_other=5).to_pylist()
    strata: dict[tuple, list] = {}
    for row in everything:
        key = (row["before"], row["after"], row["layer"], row["relation"])
        near = row["distance"] if row["relation"] in pairs.UNRELATED else None
        strata.setdefault((*key, near), []).append(row)
    expected = []
    for (*_, relation, _near), rows in strata.items():
        size = 5 if relation in ("other", "special") else 9
        expected += sorted(rows, key=lambda row: row["priority"])[:size]
    assert any(len(rows) > 9 for rows in strata.values())

    def key(row):
        return [row[n] for n in ("before", "after", "layer", "relation", "priority")]

    assert sorted(found, key=key) == sorted(expected, key=key)
    assert found == sorted(found, key=key)


def test_records_of_the_same_id_are_told_apart_by_their_index(tmp_path):
    twins = [replace(item(0), index=index) for index in range(4)]
    small = dict(keep=3, keep_other=2)
    first = sample(twins, tmp_path, **small)
    other_seed = [replace(one, seed=1) for one in twins]
    assert not sample(other_seed, tmp_path, **small).equals(first)
    for cuts in ([1], [2], [1, 2, 3]):
        assert sample(twins, tmp_path, cuts, **small).equals(first)
    assert set(first["index"].to_pylist()) == {0, 1, 2}


def test_priorities_differ_and_are_spread_evenly():
    target, source = (axis.ravel() for axis in np.indices((200, 200)))
    found = np.concatenate(
        [pairs.priorities(0, name, layer, target, source) for name in "ab" for layer in (0, 1)]
    )
    assert len(np.unique(found)) == len(found)
    counts = np.histogram(found.astype(np.float64) / 2.0**64, bins=20, range=(0, 1))[0]
    expected = len(found) / 20
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_priorities_are_what_they_have_always_been():
    found = pairs.priorities(0, "text-0", 1, np.array([2, 3]), np.array([5, 7]))
    assert found.tolist() == [4590755431261164389, 10704141575378341535]


def test_far_pairs_share_strata_and_near_ones_do_not():
    distance = np.arange(1, 200)
    found, special = (
        pairs.strata(np.full(len(distance), RELATIONS.index(name)), distance)
        for name in pairs.UNRELATED
    )
    assert np.array_equal(special - special.min(), found - found.min())
    assert not set(special) & set(found)
    groups = [distance[found == stratum].tolist() for stratum in np.unique(found)]
    near = [[d] for d in range(1, 17)]
    assert groups == [*near, [*range(17, 33)], [*range(33, 65)], [*range(65, 200)]]
    words = pairs.strata(np.zeros(len(distance), int), distance)
    assert len(np.unique(words)) == 1
    assert not set(words) & {*found, *special}


def test_long_sequences_are_cut_to_the_samples_size(tmp_path):
    one = item(0, n=90, layers=1)
    options = dict(keep=10, keep_other=4)
    rows = measures.get("amplification", **options).rows(one)["amplification_sample"]
    assert len(rows) <= 2 * (4 * 10 + 2 * 4 * (len(pairs.EDGES) + 1))
    whole = {**options, "keep": 10**6, "keep_other": 10**6}
    everything = measures.get("amplification", **whole).rows(one)["amplification_sample"]
    measure = measures.get("amplification", **options)
    assert same(
        measure.combine("amplification_sample", everything),
        measure.combine("amplification_sample", rows),
    )
    cut = final(measure, "amplification_sample", [rows], tmp_path)
    assert cut.equals(final(measure, "amplification_sample", [everything], tmp_path))

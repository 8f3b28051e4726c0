"""FF-amp against loops over pairs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from measure_examples import SCOPES, blocks, final, item, real_item

from normlens.corpus import measures
from normlens.corpus.measures.tokens import (
    CATEGORIES,
    RELATIONS,
    categories,
    default_pairs,
    relations,
)
from normlens.errors import InputError, UnknownScopeError

POST_LN = [("ATTNRESLN-N", "ATTNRESLNFF-N"), ("ATTNRES-N", "ATTNRESLNFFRESLN-N")]
OPTIONS = [
    {},
    {"axis": "target"},
    {"axis": "none", "pairs": (("ATTN-N", "LN2"), ("LN1", "FF"))},
    {"exclude_same_type": True},
    {"exclude_special": True, "exclude_same_type": True},
]


def normalised(matrix, axis, i, j):
    if axis == "none":
        return float(matrix[i, j])
    line = matrix[:, j] if axis == "source" else matrix[i]
    whole = sum(float(value) for value in line)
    return float(matrix[i, j]) / whole if whole else 0.0


def scores(one, scope_pairs, axis="source", exclude_same_type=False, exclude_special=False, **_):
    """Every pair that counts, by loops: (scopes, layer, i, j) → (before, after)."""
    ordinary = categories(one) == CATEGORIES.index("ordinary")
    ids, maps, found = one.encoded.ids, one.maps, {}
    for before, after in scope_pairs:
        for place, layer in enumerate(maps.layers):
            for i in range(len(one)):
                for j in range(len(one)):
                    if i == j or not maps.allowed[place, i, j]:
                        continue
                    if exclude_same_type and ids[i] == ids[j]:
                        continue
                    if exclude_special and not (ordinary[i] and ordinary[j]):
                        continue
                    found[before, after, layer, i, j] = tuple(
                        normalised(maps[s][place], axis, i, j) for s in (before, after)
                    )
    return found


CASES = [(kind, options) for kind in ("random", "causal") for options in OPTIONS]
CASES += [(family, {}) for family in ("bert", "gpt2", "llama")]


def items_of(kind):
    if kind in ("random", "causal"):
        return [item(k, n=6 + k, causal=kind == "causal") for k in range(3)]
    return [real_item(kind, k) for k in (0, 1)]


def expected_pairs(options, one):
    if "pairs" in options:
        return [("ATTN-N", "ATTNRESLNFFRESLN-N"), ("ATTNRESLN-N", "ATTNRESLNFF-N")]
    return default_pairs(one.maps.scopes)


def keyed(rows, keys):
    """Rows by their keys, which no two share, in the order that the keys give them."""
    found = {tuple(row[key] for key in keys): row for row in rows}
    assert len(found) == len(rows)
    assert list(found) == sorted(found)
    return found


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_tables_are_what_loops_over_pairs_find(kind, options, tmp_path):
    """Sums per pair of subwords, sums per distance, and a sample with room for every pair."""
    items = items_of(kind)
    measure = measures.get("amplification", **options)
    by_type, by_distance = defaultdict(lambda: [0, 0.0, 0.0, 0]), defaultdict(lambda: [0, 0.0, 0.0])
    pairs, tokens = {}, {}
    for one in items:
        related, ids = relations(one), one.encoded.ids
        tokens |= dict(zip(ids, one.encoded.tokens, strict=True))
        for key, (b, a) in scores(one, expected_pairs(options, one), **options).items():
            *where, i, j = key
            relation, same, distance = RELATIONS[related[i, j]], ids[i] == ids[j], abs(i - j)
            sums = by_type[(*where, relation, ids[j], ids[i])]
            sums[:] = np.add(sums, [1, b, a, distance])
            sums = by_distance[(one.index, *where, relation, same, distance)]
            sums[:] = np.add(sums, [1, a - b, (a - b) ** 2])
            pairs[(one.index, *key)] = (one.sequence, relation, same, distance, a - b)

    tables = {
        name: final(measure, name, blocks(measure, name, items, [cut]), tmp_path).to_pylist()
        for cut, name in enumerate(measure.tables, 1)
    }
    scope_keys = ["before", "after", "layer", "relation"]
    found = keyed(tables["amplification_pairs"], [*scope_keys, "source_id", "target_id"])
    assert set(found) == set(by_type)
    for key, row in found.items():
        count, before, after, distance = by_type[key]
        assert (row["count"], row["sum_distance"]) == (count, distance)
        sums = [row["sum_before"], row["sum_after"], row["sum"]]
        assert sums == pytest.approx([before, after, after - before], abs=1e-12)
        assert row["source_token"] == tokens[row["source_id"]]
        assert row["target_token"] == tokens[row["target_id"]]
    keys = ["index", *scope_keys, "same_subword", "distance"]
    found = keyed(tables["amplification_distance"], keys)
    assert set(found) == set(by_distance)
    for key, row in found.items():
        count, total, squares = by_distance[key]
        assert (row["sequence"], row["count"]) == (f"text-{row['index']}", count)
        assert [row["sum"], row["sum_squares"]] == pytest.approx([total, squares], abs=1e-12)
    assert len(tables["amplification_sample"]) == len(pairs)
    for row in tables["amplification_sample"]:
        key = (row[name] for name in ("index", "before", "after", "layer", "target", "source"))
        *told, score = pairs[tuple(key)]
        assert told == [row[n] for n in ("sequence", "relation", "same_subword", "distance")]
        assert row["score"] == pytest.approx(score, abs=1e-14)


def test_pairs_of_one_subword_are_told_in_every_relation():
    """Of a word, of an entity and of special tokens, too, where the relation does not say it."""
    one = item(0, n=10)
    ids, words = [1, 4, 4, 5, 4, 6, 5, 2, 6, 2], [None, 0, 0, 1, 2, 3, 4, None, 5, None]
    entities = [None, None, None, 0, 0, 0, 0, None, None, None]
    special = [word is None for word in words]
    changed = dict(ids=ids, words=words, entities=entities, special=special, masked=[])
    tables = measures.get("amplification").rows(
        replace(one, encoded=replace(one.encoded, **changed))
    )
    for table in ("amplification_distance", "amplification_sample"):
        told = {row["relation"] for row in tables[table].to_pylist() if row["same_subword"]}
        assert told == {"word_outside_entity", "entity_across_words", "same_type", "special"}


@pytest.mark.parametrize(
    ("family", "pairs"),
    [
        ("bert", POST_LN),
        ("gpt2", [POST_LN[0], ("ATTNRES-N", "ATTNRESLNFFRES-N")]),
        (
            "gemma2",
            [
                ("ATTNLNRESLN-N", "ATTNLNRESLNFF-N"),
                ("ATTNLNRES-N", "ATTNLNRESLNFFLNRES-N"),
            ],
        ),
        (
            "olmo2",
            [("ATTNLNRES-N", "ATTNLNRESFF-N"), ("ATTNLNRES-N", "ATTNLNRESFFLNRES-N")],
        ),
        ("gpt_neox", []),
    ],
)
def test_default_scopes_follow_from_the_architecture(family, pairs):
    one = real_item(family)
    assert default_pairs(one.maps.scopes) == pairs
    table = measures.get("amplification").rows(one)["amplification_distance"]
    seen = {(r["before"], r["after"]) for r in table.to_pylist()}
    assert seen == set(pairs)


def test_default_pairs_without_their_scopes():
    assert default_pairs([]) == default_pairs(["ATTN-W", "ATTN-N"]) == []
    assert default_pairs(["ATTN-N", "ATTNRESLNFF-N"]) == []
    assert default_pairs(["ATTN-W", "ATTNRES-N", "ATTNRESLNFF-N"]) == [
        ("ATTNRES-N", "ATTNRESLNFF-N")
    ]


def test_a_sequence_of_one_token_has_no_pair():
    one = item(0, n=2)
    record = replace(one.encoded, ids=[4], tokens=["a"], special=[False], words=[0], entities=[])
    cut = {scope: a[:, :1, :1] for scope, a in one.maps.arrays.items()}
    maps = replace(
        one.maps,
        arrays=cut,
        allowed=one.maps.allowed[:, :1, :1],
        raw_tokens=["a"],
        mixing={},
        heads={},
        statistics={},
    )
    single = replace(one, maps=maps, encoded=replace(record, masked=[]))
    for table in measures.get("amplification").rows(single).values():
        assert len(table) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"axis": "rows"}, {"keep": 0}, {"keep_pairs": 0}, {"min_count": 0}, {"colour": "red"},
        {"pairs": (("FF",),)}, {"relations": ("no_such_module:f",)},
    ],
)  # fmt: skip
def test_options_are_checked(options):
    with pytest.raises(InputError):
        measures.get("amplification", **options)


def test_options_are_recorded():
    with pytest.raises(UnknownScopeError):
        measures.get("amplification", pairs=[["LN7", "FF"]]).rows(item(0))
    chosen = measures.get("amplification", pairs="LN1:FF", keep=5)
    assert json.loads(json.dumps(chosen.options)) == chosen.options
    assert (chosen.options["pairs"], chosen.options["keep"]) == ([["LN1", "FF"]], 5)
    assert measures.get("amplification", **chosen.options) == chosen
    assert chosen.needs.scopes is None  # LN1 would be called LN among these two
    full = measures.get("amplification", pairs=[("ATTNRESLN-N", "ATTNRESLNFF-N")])
    assert full.needs == measures.Needs(("ATTNRESLN-N", "ATTNRESLNFF-N"))
    assert measures.get("amplification").needs.scopes is None


@pytest.mark.parametrize("name", ["same_entity", "same_word", "entity_across_words", "other"])
def test_names_of_kinds_of_pairs_are_taken(name, tmp_path, monkeypatch):
    (tmp_path / "taken_relations.py").write_text(f"def {name}(item): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "taken_relations", raising=False)
    with pytest.raises(InputError):
        measures.get("amplification", relations=(f"taken_relations:{name}",))


def test_scopes_that_are_named_twice_count_once():
    twice = measures.get("amplification", pairs=(("LN1", "FF"), ("ATTNRESLN-N", "ATTNRESLNFF-N")))
    once = measures.get("amplification", pairs=(("ATTNRESLN-N", "ATTNRESLNFF-N"),))
    for table, rows in once.rows(item(0)).items():
        assert twice.rows(item(0))[table].equals(rows)


def test_values_that_are_not_finite_are_refused():
    one = item(0)
    arrays = dict(one.maps.arrays) | {SCOPES[5]: np.full_like(one.maps[SCOPES[5]], np.inf)}
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(InputError),
    ):
        measures.get("amplification").rows(replace(one, maps=replace(one.maps, arrays=arrays)))


def test_sums_by_subwords_can_be_left_out():
    one = item(0)
    whole = measures.get("amplification")
    less = measures.get("amplification", subwords=False)
    with_pairs, without = whole.rows(one), less.rows(one)
    assert with_pairs["amplification_pairs"].num_rows > 0
    assert without["amplification_pairs"].num_rows == 0
    for table in ("amplification_distance", "amplification_sample"):
        assert without[table].equals(with_pairs[table])
    assert less.options["subwords"] is False

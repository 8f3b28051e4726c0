"""Mixing ratios and the categories of tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measure_examples import Record, item, real_item

from normlens.corpus import measures
from normlens.corpus.measures.tokens import CATEGORIES, GROUPS, RELATIONS, categories, relations
from normlens.errors import InputError

mixing = measures.get("mixing")


@pytest.mark.parametrize("kind", ["random", "bert", "gpt2"])
def test_every_ratio_stands_in_its_row(kind):
    one = item(0) if kind == "random" else real_item(kind)
    table = mixing.rows(one)["mixing"]
    assert table.schema == mixing.tables["mixing"]
    maps = one.maps
    assert len(table) == len(maps.layers) * len(maps.scopes) * len(one)
    names = [CATEGORIES[code] for code in categories(one)]
    for row in table.to_pylist():
        place = maps.layers.index(row["layer"])
        position = row["position"]
        assert row["ratio"] == maps.mixing_ratio(row["scope"])[place, position]
        assert row["token_id"] == one.encoded.ids[position]
        assert row["category"] == names[position]
        assert (row["index"], row["sequence"]) == (one.index, one.sequence)


def named(tokens: list[str], special: list[int], **more) -> list[str]:
    record = Record(
        ids=list(range(len(tokens))), tokens=tokens, special=[bool(s) for s in special], **more
    )
    return [CATEGORIES[code] for code in categories(replace(item(0), encoded=record))]


@pytest.mark.parametrize(
    ("tokens", "special", "expected"),
    [
        ("[CLS] a [MASK] [SEP]", [1, 0, 0, 1], "cls ordinary mask sep"),
        (
            "<s> a </s> </s> <mask> </s>", [1, 0, 1, 1, 0, 1],
            "cls ordinary sep sep mask sep",
        ),
        # What opens a sequence is cls, and unknown special tokens are others.
        ("</s> a", [1, 0], "cls ordinary"),
        ("<|begin|> a <pad>", [1, 0, 1], "cls ordinary other-special"),
        ("a b", [0, 0], "ordinary ordinary"),
    ],
)  # fmt: skip
def test_categories(tokens, special, expected):
    assert named(tokens.split(), special) == expected.split()


def test_a_masked_token_is_a_mask_whatever_it_is_called():
    assert named(["<blank>", "a"], [0, 0], masked=[True, False]) == ["mask", "ordinary"]


def test_relations():
    one = item(0)
    record = Record(
        ids=[1, 5, 5, 6, 7, 7, 3, 2, 8, 9],
        tokens=["[CLS]", "a", "b", "c", "d", "e", "[MASK]", "[SEP]", "f", "g"],
        special=[True, *[False] * 6, True, False, False],
        words=[None, 0, 0, 1, 2, 3, 3, None, 4, 4],
        entities=[None, 0, 0, 0, None, 1, 1, None, None, None],
        masked=[False] * 6 + [True, False, False, False],
    )
    found = relations(replace(one, encoded=record))
    assert (found == found.T).all()

    def relation(i: int, j: int) -> str:
        return RELATIONS[found[i, j]]

    assert relation(1, 2) == "word_in_entity"
    assert relation(8, 9) == "word_outside_entity"
    assert relation(1, 3) == relation(2, 3) == "entity_across_words"
    assert relation(3, 4) == relation(1, 5) == "other"
    assert relation(4, 5) == "same_type"
    assert {relation(i, j) for i in (0, 6, 7) for j in range(8)} == {"special"}

    def pairs(group: str) -> set[tuple[int, int]]:
        some = [RELATIONS.index(name) for name in GROUPS[group]]
        return {(i, j) for i, j in zip(*np.nonzero(np.isin(found, some)), strict=True) if i < j}

    # All pairs of subwords of one entity expression, those inside its words included.
    assert pairs("same_entity") == {(1, 2), (1, 3), (2, 3)}
    assert pairs("entity_across_words") == {(1, 3), (2, 3)}
    assert pairs("same_word") == {(1, 2), (8, 9)}
    assert pairs("same_type") == {(4, 5)}


def test_a_word_may_reach_out_of_an_entity():
    record = Record(
        ids=[5, 6, 7],
        tokens=["un", "##ameri", "##can"],
        special=[False] * 3,
        words=[0, 0, 0],
        entities=[None, 0, 0],
        masked=[False] * 3,
    )
    found = relations(replace(item(0), encoded=record))
    assert RELATIONS[found[1, 2]] == "word_in_entity"
    assert RELATIONS[found[0, 1]] == "word_outside_entity"


def test_a_users_relations_come_first():
    one = item(0)
    own = {
        "after": lambda given: np.tri(len(given), k=-1, dtype=bool),
        "next": lambda given: np.eye(len(given), k=-1, dtype=bool),
    }
    found = relations(one, own)
    assert (found[np.tri(len(one), k=-1, dtype=bool)] == len(RELATIONS)).all()
    upper = ~np.tri(len(one), k=-1, dtype=bool)
    np.testing.assert_array_equal(found[upper], relations(one)[upper])
    with pytest.raises(InputError):
        relations(one, {"bad": lambda given: np.zeros((2, 3))})


def test_without_words_or_entities_all_ordinary_pairs_are_other():
    one = item(0)
    record = Record(ids=[4, 5, 6], tokens=["a", "b", "a"], special=[False] * 3)
    found = relations(replace(one, encoded=record))[~np.eye(3, dtype=bool)]
    assert (found == RELATIONS.index("other")).all()

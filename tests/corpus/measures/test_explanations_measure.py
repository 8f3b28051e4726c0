"""Explanations as rows: contributions, components and biases, and what they sum to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from measure_examples import item

from normlens.corpus import measures
from normlens.corpus.measures import Needs
from normlens.corpus.measures.base import Asked
from normlens.errors import InputError

measure = measures.get("explanations")


def tables(one):
    return {name: table.to_pandas() for name, table in measure.rows(one).items()}


def test_rows_are_the_explanations_numbers():
    one = item(0)
    (why,) = one.explanations
    found = tables(one)
    (score,) = found["explanations"].to_dict("records")
    assert score["value"] == why.value
    assert score["remainder"] == pytest.approx(why.remainder)
    assert (score["target"], score["target_id"], score["read_at"]) == ("t", 5, len(one) - 1)
    assert pd.isna(score["contrast"])
    assert (score["index"], score["sequence"]) == (one.index, one.sequence)
    rows = found["explanation_tokens"]
    np.testing.assert_array_equal(rows.contribution, why.contributions)
    assert rows.token.tolist() == why.tokens
    assert rows.token_id.tolist() == one.encoded.ids
    assert rows.position.tolist() == list(range(len(one)))
    total = rows.contribution.sum() + found["explanation_bias"].value.sum()
    assert total == pytest.approx(why.value)


def test_components_of_attentions_by_head_and_others_as_wholes():
    """No component has a row as a whole and by head, so that sums count nothing twice."""
    one = item(0)
    (why,) = one.explanations
    rows = tables(one)["explanation_components"]
    whole = rows[rows["head"].isna()]
    for row in whole.itertuples():
        place = why.component_names.index(row.component)
        assert row.value == why.components[row.layer, place].sum()
    assert [(r.layer, r.component) for r in whole.itertuples()] == [
        (1, "FF"),  # the first layer has no other component than the attention
    ]
    heads = rows[rows["head"].notna()]
    assert set(heads.component) == {"ATTN"}
    expected = why.heads.sum(-1)
    for layer, head, value in zip(heads.layer, heads["head"].astype(int), heads.value, strict=True):
        assert value == pytest.approx(expected[layer, head])
    assert len(heads) == expected.size
    bias = tables(one)["explanation_bias"]  # what stands behind the last layer has none
    assert bias[bias.layer.isna()].component.tolist() == ["OUT"]
    assert bias.layer.dropna().tolist() == [0, 1]


def test_a_pooled_score_several_scores_and_none():
    one = item(1)
    (why,) = one.explanations
    pooled = tables(replace(one, explanations=(replace(why, position=None, biases=[]),)))
    for name, rows in pooled.items():
        assert rows.read_at.isna().all(), name
    assert pooled["explanation_bias"].empty
    several = tables(replace(one, explanations=(replace(why, position=0), why)))
    assert several["explanations"].read_at.tolist() == [0, why.position]
    assert len(several["explanation_tokens"]) == 2 * len(one)
    assert all(rows.empty for rows in tables(replace(one, explanations=())).values())


def test_it_needs_no_maps():
    assert not measure.needs.maps
    assert not (Needs(scopes=(), arrays=False) | measure.needs).maps
    for name in ("similarity", "mixing", "amplification", "norms"):
        needs = measures.get(name).needs
        assert needs.maps
        assert (needs | measure.needs).maps
        assert (measure.needs | needs).asked == Asked()


def test_two_questions_in_one_run_are_refused():
    other = measures.get("explanations", target="x")
    with pytest.raises(InputError):
        measure.needs | other.needs
    assert (measure.needs | measures.get("explanations").needs).asked == Asked()


def test_options_are_recorded_and_judged():
    made = measures.get("explanations", target=" are", contrast=7, position="all")
    assert made.options == {
        "target": " are",
        "contrast": 7,
        "position": "all",
        "first_piece": False,
        "nonlinearity": "ig",
    }
    assert measures.get("explanations", **made.options).options == made.options
    for wrong in (
        {"position": "last"}, {"target": [1]}, {"contrast": {}}, {"nonlinearity": "shapley"},
        {"nonlinearity": "magic"}, {"colour": "red"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            measures.get("explanations", **wrong)

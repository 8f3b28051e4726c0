"""Similarity against scipy, pair by pair."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from measure_examples import item, real_item
from scipy.stats import spearmanr

from normlens.corpus import measures

similarity = measures.get("similarity")


def rows(one: measures.Item) -> dict[tuple[int, str, str], float | None]:
    table = similarity.rows(one)["similarity"]
    assert table.schema == similarity.tables["similarity"]
    return {(r["layer"], r["scope_a"], r["scope_b"]): r["rho"] for r in table.to_pylist()}


@pytest.mark.parametrize("kind", ["random", "causal", "bert", "gpt2", "llama", "gpt_neox"])
def test_equals_scipy_for_every_two_scopes(kind):
    random = {"random": item(0), "causal": item(1, causal=True)}
    one = random[kind] if kind in random else real_item(kind)
    found = rows(one)
    maps = one.maps
    pairs = list(combinations(maps.scopes, 2))
    assert len(found) == len(pairs) * len(maps.layers)
    for place, layer in enumerate(maps.layers):
        allowed = maps.allowed[place]
        for a, b in pairs:
            expected = spearmanr(maps[a][place][allowed], maps[b][place][allowed]).statistic
            assert found[layer, a, b] == pytest.approx(expected, abs=1e-14)


def test_sequences_with_other_layers_and_scopes_do_not_share_their_labels():
    one = item(0)
    last = one.maps.scopes[-1]
    arrays = dict(one.maps.arrays) | {last: one.maps[last][:1]}
    others = (
        replace(one.maps, layers=[4, 7]),
        replace(one.maps, arrays=dict(reversed(one.maps.arrays.items()))),
        replace(one.maps, arrays=arrays, coverage={f"arrays/{last}": one.maps.layers[:1]}),
    )
    expected = rows(one)
    found = [rows(replace(one, maps=maps)) for maps in others]
    assert rows(one) == expected
    table = similarity.rows(one)["similarity"]
    assert {(row["index"], row["sequence"]) for row in table.to_pylist()} == {(0, "text-0")}
    assert found[0] == {(4 + 3 * layer, a, b): rho for (layer, a, b), rho in expected.items()}
    assert found[1] == {(layer, b, a): rho for (layer, a, b), rho in expected.items()}
    assert found[2] == {key: rho for key, rho in expected.items() if key[0] == 0 or last not in key}


def test_a_constant_map_has_no_similarity():
    one = item(0)
    arrays = dict(one.maps.arrays) | {"ATTN-N": np.full_like(one.maps["ATTN-N"], 0.25)}
    found = rows(replace(one, maps=replace(one.maps, arrays=arrays)))
    for (_, a, b), rho in found.items():
        assert (rho is None) == ("ATTN-N" in (a, b))


def test_pairs_that_attention_does_not_allow_do_not_count():
    one = item(2, causal=True)
    noisy = {s: np.where(one.maps.allowed, a, 99 + len(s)) for s, a in one.maps.arrays.items()}
    changed = replace(one, maps=replace(one.maps, arrays=noisy))
    assert rows(changed) == rows(one)

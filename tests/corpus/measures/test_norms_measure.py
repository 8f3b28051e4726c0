"""Norms of the feed-forward block, its dimensions, and the special ones."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from measure_examples import blocks, final, item, real_item
from scipy.stats import spearmanr

from normlens.corpus import measures

norms = measures.get("norms")


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2"])
def test_means_over_tokens(family):
    one = real_item(family)
    table = norms.rows(one)["norms"]
    assert table.schema == norms.tables["norms"]
    assert table["layer"].to_pylist() == one.maps.layers
    for name in ("ff_output_norm", "bypassed_norm"):
        expected = [np.float64(values).mean() for values in one.maps.statistics[name]]
        assert table[name].to_pylist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("family", ["bert", "gemma2"])
def test_special_dimensions_against_scipy(family):
    one = real_item(family)
    maps = one.maps
    before, after = {
        "bert": ("ATTNRESLN-N", "ATTNRESLNFF-N"),
        "gemma2": ("ATTNLNRESLN-N", "ATTNLNRESLNFF-N"),
    }[family]
    table = norms.rows(one)["special_dimensions"]
    for place, row in enumerate(table.to_pylist()):
        allowed = maps.allowed[place]
        first, second, without = (
            values[place][allowed]
            for values in (maps[before], maps[after], maps.statistics["ff_without_special"])
        )
        assert row["rho_with"] == pytest.approx(spearmanr(first, second).statistic, abs=1e-14)
        assert row["rho_without"] == pytest.approx(spearmanr(first, without).statistic, abs=1e-14)
    assert len(table) == len(maps.layers)


def test_without_a_norm_behind_the_block_there_are_no_special_dimensions():
    found = norms.rows(real_item("gpt2"))
    assert len(found["special_dimensions"]) == 0
    dimensions = found["norms_dimensions"]
    assert dimensions["gamma"].null_count == len(dimensions) > 0
    assert not any(dimensions["special"].to_pylist())


def test_a_block_beside_the_attention_has_no_rows():
    for name, table in norms.rows(real_item("gpt_neox")).items():
        assert len(table) == 0
        assert table.schema == norms.tables[name]


def test_dimensions_are_summed_over_the_tokens_of_a_corpus(tmp_path):
    items = [item(index, n=5 + index) for index in range(4)]
    parts = blocks(norms, "norms_dimensions", items, [1])
    table = final(norms, "norms_dimensions", parts, tmp_path)
    sums = defaultdict(float)
    for one in items:
        for place, layer in enumerate(one.maps.layers):
            for name in ("input", "output"):
                for d, mean in enumerate(one.maps.statistics[f"ff_{name}_mean_abs"][place]):
                    sums[layer, d, name] += float(mean) * len(one)
    gamma = items[0].maps.statistics["gamma"]
    rows = table.to_pylist()
    assert [r["layer"] for r in rows] == [0] * 5 + [1] * 5
    assert [r["dimension"] for r in rows] == [*range(5)] * 2
    for row in rows:
        layer, d = row["layer"], row["dimension"]
        assert row["sequences"] == 4
        assert row["count"] == sum(map(len, items))
        assert row["sum_input_abs"] == pytest.approx(sums[layer, d, "input"], rel=1e-12)
        assert row["sum_output_abs"] == pytest.approx(sums[layer, d, "output"], rel=1e-12)
        assert row["gamma"] == gamma[layer, d]
        assert row["special"] == (d == 4)

"""The page's tables and figures: what they are computed from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from normlens.studies.ablation.evidence import LEAST, taken, ways
from normlens.studies.ablation.report import compared, layer_table, side_by_side

NAN = float("nan")


def changes(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """Ablations as (component, kind, layer from 1 or None, change[, draw])."""
    return pd.DataFrame(
        [
            {
                "component": component,
                "kind": kind,
                "layer": NAN if layer is None else float(layer),
                "layers": "0,1" if layer is None else str(layer - 1),
                "draw": rest[0] if rest else NAN,
                "change": change,
                "low": change - 0.1,
                "high": change + 0.1,
            }
            for component, kind, layer, change, *rest in rows
        ],
        index=range(1, len(rows) + 1),
    )


EXAMPLE = changes(
    ("FF", "zero", 1, 0.2),
    ("FF", "zero", 2, 3.0),
    ("FF", "zero", None, 9.0),
    ("FF", "mean", 1, 0.9),
    ("FF", "mean", 2, 1.0),
    ("FF", "resample", 1, NAN),
    ("FF", "resample", 2, 2.0),
    ("LN2", "frozen-sigma", 1, 0.3),
    ("LN2", "left-out", 1, 0.4),
    ("LN2", "no-affine", 1, 0.01),
)


def test_ways_mean_other_kinds_for_norms():
    assert taken(EXAMPLE, "zero")["change"].tolist() == [0.2, 3.0, 0.4]
    assert taken(EXAMPLE, "mean")["change"].tolist() == [0.9, 1.0, 0.3]
    assert taken(EXAMPLE, "resample")["component"].unique().tolist() == ["FF"]


def test_the_least_harmful_way_of_each_cell():
    least = taken(EXAMPLE, LEAST)
    # Neither a loss that is not finite nor a norm without its affine part takes anything away.
    assert least.set_index(["component", "layer"])["change"].to_dict() == {
        ("FF", 1.0): 0.2,
        ("FF", 2.0): 1.0,
        ("LN2", 1.0): 0.3,
    }
    together = EXAMPLE[EXAMPLE["layer"].isna()]
    for way in (LEAST, "zero"):
        assert taken(together, way).empty
        assert "change" in taken(together, way)
    assert ways(together) == ["zero"]
    assert ways(EXAMPLE) == [LEAST, "mean", "resample", "zero"]
    assert ways(EXAMPLE[EXAMPLE["kind"] == "mean"]) == ["mean"]


def test_kinds_stand_side_by_side():
    table = side_by_side(EXAMPLE.iloc[:7], ["zero", "mean"])
    assert table.iloc[0].tolist() == [
        "FF",
        "1",
        "+0.200 [+0.100, +0.300]",
        "+0.900 [+0.800, +1.000]",
    ]
    assert table.iloc[2].tolist()[:3] == ["FF", "all", "+9.000 [+8.900, +9.100]"]
    assert pd.isna(table.iloc[2]["mean"])


def test_special_dimensions_stand_among_their_own_draws():
    rows = [("LN2", "lowest-gamma", 1, 1.0), ("LN2", "lowest-gamma", None, 0.0)]
    rows += [("LN2", "random-lowest-gamma", 1, k / 10, k) for k in range(9)]
    rows += [("LN2", "random-lowest-gamma", None, 0.5, k) for k in range(9)]
    rows += [("LN2", "random-outliers", 1, 5.0, k) for k in range(9)]
    table = compared(changes(*rows)).set_index("layer")
    assert table.loc["1", "p"] == pytest.approx(1 / 10)
    assert table.loc["1", "random largest"] == pytest.approx(0.8)
    assert table.loc["all", ["draws", "draws as harmful", "p"]].tolist() == [9, 9, 1.0]


def layers(undone: list[float], cost: list[float], attention: float = 0.5) -> pd.DataFrame:
    """Layers in which FF changes the map by 1 − ρ = 0.5, of which a share is undone."""
    numbers = range(1, len(undone) + 1)
    rows = [("FF", "mean", n, c) for n, c in zip(numbers, cost, strict=True)]
    rows += [("ATTN", "mean", n, attention) for n in numbers]
    behind = pd.Series(0.5, index=list(numbers))
    end = pd.Series([1 - 0.5 * (1 - share) for share in undone], index=list(numbers))
    return layer_table(behind, end, changes(*rows))


def test_the_undone_share():
    table = layers([0.8, -0.2], [1.0, 2.0])
    np.testing.assert_allclose(table["undone share"], [0.8, -0.2])
    assert table["FF"].tolist() == [1.0, 2.0]
    assert table["ATTN"].tolist() == [0.5, 0.5]
    assert layer_table(pd.Series([NAN], index=[1]), None, EXAMPLE).empty

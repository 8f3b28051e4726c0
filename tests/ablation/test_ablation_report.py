"""The page's findings: what they are computed from, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from normlens.studies.ablation.report.evidence import LEAST, taken, ways
from normlens.studies.ablation.report.prediction import layer_table, verdict
from normlens.studies.ablation.report.reporting import compared
from normlens.studies.ablation.report.worth import (
    _short,
    draw_grids,
    means_table,
    overstated,
    side_by_side,
)

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


def test_ways_mean_other_kinds_for_norms() -> None:
    assert taken(EXAMPLE, "zero")["change"].tolist() == [0.2, 3.0, 0.4]
    assert taken(EXAMPLE, "mean")["change"].tolist() == [0.9, 1.0, 0.3]
    assert taken(EXAMPLE, "zero", each=False)["change"].tolist() == [9.0]
    assert taken(EXAMPLE, "resample")["component"].unique().tolist() == ["FF"]


def test_the_least_harmful_way_of_each_cell() -> None:
    least = taken(EXAMPLE, LEAST)
    # Neither a loss that is not finite nor a norm without its affine part takes anything away.
    assert least.set_index(["component", "layer"])["change"].to_dict() == {
        ("FF", 1.0): 0.2,
        ("FF", 2.0): 1.0,
        ("LN2", 1.0): 0.3,
    }
    alone = EXAMPLE[EXAMPLE["layer"].notna()]
    for way in (LEAST, "zero"):
        assert taken(alone, way, each=False).empty
        assert "change" in taken(alone, way, each=False)
    assert ways(EXAMPLE) == [LEAST, "mean", "resample", "zero"]
    assert ways(EXAMPLE[EXAMPLE["kind"] == "mean"]) == ["mean"]


def test_kinds_stand_side_by_side() -> None:
    table = side_by_side(EXAMPLE.iloc[:7], ["zero", "mean"], 1)
    assert table.iloc[0].tolist() == ["FF", "1", "+0.2 [+0.1, +0.3]", "+0.9 [+0.8, +1.0]"]
    assert table.iloc[2].tolist()[:3] == ["FF", "all", "+9.0 [+8.9, +9.1]"]
    assert pd.isna(table.iloc[2]["mean"])


def test_what_overstates() -> None:
    means = means_table(EXAMPLE)
    assert means.loc["FF"].tolist() == [1.6, 0.95, 2.0]
    [sentence] = overstated(means[["zero", "mean"]], "loss")
    assert "For FF, zero does most harm" in sentence
    assert "zero alone would overstate" in sentence
    turned = means[["zero", "mean"]].rename(columns={"zero": "mean", "mean": "zero"})
    assert "very long vectors" in overstated(turned, "loss")[0]


def test_special_dimensions_stand_among_their_own_draws() -> None:
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


def test_the_undone_share() -> None:
    table = layers([0.8, -0.2], [1.0, 2.0])
    np.testing.assert_allclose(table["undone share"], [0.8, -0.2])
    assert table["FF"].tolist() == [1.0, 2.0]
    assert table["ATTN"].tolist() == [0.5, 0.5]
    assert layer_table(pd.Series([NAN], index=[1]), None, EXAMPLE).empty


def test_cancelled_but_needed_is_not_redundant() -> None:
    said = " ".join(verdict(layers([0.8, 0.6, -0.1], [1.0, 0.3, 5.0]), "loss", True, 2))
    assert "undoes its change of the map in layers 1–2 of 3 (70 % of it" in said
    assert "No, cancelled does not mean redundant: in every one of these layers" in said
    assert "up to +1.00 in layer 1" in said
    assert "FF costs more than ATTN of the same layer in 1 of these 2 layers" in said


def test_needed_in_some_of_the_layers() -> None:
    said = " ".join(verdict(layers([0.8, 0.6], [1.0, 0.05]), "loss", True, 2))
    assert "does not mean redundant: in layer 1 of these 2" in said


def test_cancelled_and_not_needed_can_go() -> None:
    said = " ".join(verdict(layers([0.8, 0.6], [0.02, -0.3]), "loss", True, 2))
    assert "FF can go there" in said
    assert "No," not in said


def test_nothing_is_cancelled() -> None:
    [said] = verdict(layers([-0.1, -0.4], [1.0, 1.0]), "loss", True, 2)
    assert "no redundancy" in said


def test_a_drift_alone_is_no_verdict() -> None:
    said = " ".join(verdict(layers([0.8, 0.6], [1.0, 0.3]), "drift", False, 2))
    assert "does not say what it costs a task" in said
    assert "beyond chance" not in said


def test_redundancy_would_make_shares_and_costs_disagree() -> None:
    said = " ".join(verdict(layers([0.1, 0.2, 0.3, 0.4], [4, 3, 2, 1]), "loss", True, 2))
    assert "ρ = −1.00: redundancy would make it negative" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "0"), (0.25, ".25"), (-0.25, "−.25"), (1.25, "1.25"), (12.34, "12.3"), (123.4, "123")],
)
def test_numbers_in_small_cells(value: float, text: str) -> None:
    assert _short(value) == text


def test_grids_keep_one_order_and_leave_gaps() -> None:
    left = pd.DataFrame({"ATTN": [0.1, 0.2], "LAYER": [1.0, NAN]}, index=[1, 2])
    right = pd.DataFrame({"ATTN": [0.3, 0.4], "FF": [0.1, 0.2]}, index=[1, 2])
    figure = draw_grids({"a": left, "b": right}, {"a": "x", "b": "y"})
    panels = [axes for axes in figure.axes if axes.images]
    assert [[t.get_text() for t in axes.get_xticklabels()] for axes in panels] == [
        ["ATTN", "LAYER", "FF"]
    ] * 2
    assert [len(axes.texts) for axes in panels] == [3, 4]

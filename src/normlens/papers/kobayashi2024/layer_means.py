"""Means over sequences per layer, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from normlens.measures.bootstrap import mean_intervals
from normlens.papers.base import Evidence
from normlens.reports.drawing import layer_ticks, line
from normlens.scopes import layers_in_words


def layer_means(evidence: Evidence, table: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Average columns of a table over sequences, per layer (from 1), with bootstrap intervals."""
    listed = ", ".join(columns)
    rows = evidence.sql(f'SELECT "index", layer + 1 AS layer, {listed} FROM {table}')
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot_table(index="index", columns="layer", values=list(columns), dropna=False)
    settings = evidence.settings
    mean, low, high = mean_intervals(
        wide.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    intervals = pd.DataFrame({"mean": mean, "low": low, "high": high}, index=wide.columns)
    parts: dict[str, pd.Series] = {}
    for name in columns:
        column = intervals.loc[name]
        parts |= {
            name: column["mean"],
            f"{name}_low": column["low"],
            f"{name}_high": column["high"],
        }
    return pd.DataFrame(parts).rename_axis("layer")


def draw_means(axes: Any, means: pd.DataFrame, labels: Mapping[str, str]) -> None:
    """Draw columns of `layer_means` as lines with bands, each with its label."""
    for place, (name, label) in enumerate(labels.items()):
        low, high = means[f"{name}_low"], means[f"{name}_high"]
        line(axes, means.index, means[name], low, high, place, label)
    layer_ticks(axes, int(means.index.max()))


def which_layers(some: Iterable[int], count: int) -> str:
    """Say which layers: ``in no layer``, ``in every layer``, or ``in layers 2 and 5 of 12``."""
    layers = list(some)
    if not layers:
        return "in no layer"
    return "in every layer" if len(layers) == count else f"in {layers_in_words(layers)} of {count}"

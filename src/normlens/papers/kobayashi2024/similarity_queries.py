"""Spearman's ρ between scopes, per sequence and with bootstrap intervals, from a run's table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normlens.measures.bootstrap import mean_intervals
from normlens.papers.base import Evidence

RHO = "Spearman's ρ"


def _where_pairs(pairs: list[tuple[str, str]]) -> str:
    listed = ", ".join(f"('{a}', '{b}')" for a, b in pairs)
    return f"(scope_a, scope_b) IN ({listed})"


def in_table_order(evidence: Evidence, a: str, b: str) -> tuple[str, str]:
    """Order two scopes as the table names them."""
    scopes = evidence.scopes
    return (a, b) if scopes.index(a) < scopes.index(b) else (b, a)


def rho_per_sequence(
    evidence: Evidence, pairs: list[tuple[str, str]], by_layer: bool
) -> pd.DataFrame:
    """Read ρ of every sequence: (sequences, pairs) or (sequences, (pair, layer)), layers from 1."""
    keys = ["scope_a", "scope_b", *(["layer"] if by_layer else [])]
    columns = ", ".join("layer + 1 AS layer" if key == "layer" else key for key in keys)
    rows = evidence.sql(
        f'SELECT "index", {columns}, avg(rho) AS rho FROM similarity WHERE {_where_pairs(pairs)} '
        "GROUP BY ALL"
    )
    return rows.pivot_table(index="index", columns=keys, values="rho", dropna=False)


def with_intervals(evidence: Evidence, rho: pd.DataFrame) -> pd.DataFrame:
    """Take each column's mean over sequences, with its 95 % bootstrap interval."""
    settings = evidence.settings
    mean, low, high = mean_intervals(
        rho.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    return pd.DataFrame({"rho": mean, "low": low, "high": high}, index=rho.columns)

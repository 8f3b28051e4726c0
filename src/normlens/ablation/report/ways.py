"""Ways to take a component away, which mean another kind of ablation for norms than for vectors."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normlens.ablation.kinds import (
    FROZEN_SIGMA,
    INTACT,
    LEFT_OUT,
    MEAN,
    RESAMPLE,
    ZERO,
    is_norm,
)

#: The kind of a norm's ablation beside each kind of a vector's; a norm has none of resampling.
_OF_NORMS = {MEAN: FROZEN_SIGMA, RESAMPLE: None, ZERO: LEFT_OUT}
KINDS = tuple(_OF_NORMS)
#: The one of these that does least harm to a cell. Nothing of what a component knows of its input
#: is in any of them, so a component is worth no more than that: zero overstates where nothing has
#: ever seen a 0, and a mean where a few tokens have very long vectors.
LEAST = "least"
IN_WORDS = {
    MEAN: "replaced by its corpus mean (norms: σ frozen at its corpus mean)",
    RESAMPLE: "replaced by its vector at a random position of other data (norms: none)",
    ZERO: "replaced by zero (norms: left out)",
    LEAST: "replaced in the least harmful of several ways (zero, corpus mean, resampled; norms: "
    "left out, frozen σ)",
}
SHORT = {MEAN: "mean", RESAMPLE: "resample", ZERO: "zero", LEAST: "least harmful"}


def kind_by(way: str, component: str) -> str | None:
    """The kind of ablation that a way means for a component."""
    return _OF_NORMS[way] if is_norm(component) else way


def taken(changes: pd.DataFrame, way: str, *, each: bool = True) -> pd.DataFrame:
    """The ablations that take a component away so: of each layer, or of all of them together."""
    scope = changes["layer"].notna() if each else changes["layer"].isna()
    rows = changes[scope & (changes["component"] != INTACT)]
    wanted = KINDS if way == LEAST else (way,)
    ours = [
        kind in [kind_by(one, component) for one in wanted]
        for component, kind in zip(rows["component"], rows["kind"], strict=True)
    ]
    rows = rows[np.array(ours, dtype=bool)]
    if way != LEAST:
        return rows
    # One whose loss is not finite does most harm.
    ordered = rows.sort_values("change", na_position="last", kind="stable")
    return ordered.drop_duplicates(["component", "layers"]).sort_index()


def ways(changes: pd.DataFrame) -> list[str]:
    """The ways that ablations go, the one that is shown first in front."""
    there = [
        way for way in KINDS if any(len(taken(changes, way, each=each)) for each in (True, False))
    ]
    return [LEAST, *there] if len(there) > 1 else there

"""What an intervention costs: the change of the loss, with sequences as the sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlens.analysis.bootstrap import Array, Means, divided, percentile_interval, resample_counts


class LossChanges(NamedTuple):
    """Changes of the loss, one per column, and their values in every resample."""

    change: Means  # (k,) each
    drawn: Array  # (resamples, k)


def loss_changes(
    losses: ArrayLike,
    intact: ArrayLike,
    counts: ArrayLike,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> LossChanges:
    """``Δ_k = Σ_s n_s (l_sk − l_s) / Σ_s n_s``: losses (s, k) against the intact model's (s,).

    l is a sequence's mean loss over its n_s scored tokens, so that Δ is the change of the corpus's
    mean loss per token; where each sequence is scored once (n_s = 1) it is the mean of the
    sequences' changes. Whole sequences are drawn, each with its loss before and after: the interval
    is that of a paired difference (percentiles; Efron and Tibshirani 1993, chapter 13). A loss that
    is not finite makes its column NaN: the sequences that broke must not be left out. Intervals are
    NaN for fewer than two sequences that were scored (n_s > 0). The resamples are those of every
    bootstrap with this seed over as many sequences.
    """
    number = np.asarray(counts, dtype=np.float64)
    scored = number > 0
    before, after = (np.asarray(given, np.float64) for given in (intact, losses))
    difference = np.where(scored[:, None], after - before[:, None], 0)
    finite = np.isfinite(difference).all(axis=0)
    weighted = number[:, None] * np.where(finite, difference, np.nan)
    change = divided(weighted.sum(axis=0), number.sum())
    # What is left of the mean sums to 0, so that no digits are lost in a resample's ratio.
    centred = weighted - number[:, None] * change
    drawn = np.full((resamples, difference.shape[1]), np.nan)
    for rows, weights in resample_counts(len(number), resamples, np.random.default_rng(seed)):
        drawn[rows] = change + divided(weights @ centred, (weights @ number)[:, None])
    enough = np.where(finite & (scored.sum() > 1), level, np.nan)
    return LossChanges(percentile_interval(change, drawn, enough), drawn)


def place_among(value: float, draws: ArrayLike) -> tuple[int, float]:
    """How many random draws reach `value`, and the one-sided p of its rank among them.

    ``p = (1 + #{draws ≥ value}) / (1 + number)``: under the null hypothesis the value is one more
    draw. Draws that are NaN do not count; NaN if there is none, or no value.
    """
    others = np.asarray(draws, dtype=np.float64)
    others = others[~np.isnan(others)]
    if not len(others) or np.isnan(value):
        return 0, float("nan")
    reached = int((others >= value).sum())
    return reached, (1 + reached) / (1 + len(others))

"""Word alignment: links from scores, and how well they agree with a gold standard.

A link (i, j) joins word i of the source to word j of the target, both counted from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normlens.measures.bootstrap import Array, Means, divided, percentile_interval, resample_counts
from normlens.measures.maps import membership

Link: TypeAlias = tuple[int, int]

#: What stands for "no word" among source words.
NO_WORD = -1


class Counts(NamedTuple):
    """Sizes of a sentence pair's sets: links A, sure links S, possible links P (S among them)."""

    sure_hits: int  # |A∩S|
    possible_hits: int  # |A∩P|
    links: int  # |A|
    sure: int  # |S|


class Rates(NamedTuple):
    """What counts come to, each a number or an array."""

    aer: Array
    precision: Array
    recall: Array


def aligned_words(
    scores: NDArray[np.floating],
    rows: Sequence[Sequence[int]],
    columns: Sequence[Sequence[int]],
    no_word: Sequence[int] = (),
) -> NDArray[np.intp]:
    """The source word of each target word, (…, target, source) → (…, target word).

    ``argmax_w mean_{i ∈ rows of the target word} Σ_{j ∈ columns of w} score_ij``; Kobayashi et al.
    2020, section 5. `NO_WORD` where one of the columns `no_word` (the end of the sentence) has a
    larger score than every word, and for a target word without rows. A word without columns is
    never chosen; of equal words the first is.
    """
    values = np.asarray(scores, dtype=np.float64)
    of_targets = membership(rows, values.shape[-2])
    of_sources = membership(columns, values.shape[-1])
    sizes = of_targets.sum(axis=1, keepdims=True)
    averaged = of_targets / np.maximum(sizes, 1) @ values  # (…, target word, source)
    present = np.flatnonzero(of_sources.any(axis=1))
    if not len(present) or not len(rows):
        return np.full(averaged.shape[:-1], NO_WORD, dtype=np.intp)
    of_words = averaged @ of_sources[present].T
    wins = sizes[:, 0] > 0
    if len(no_word):
        wins = wins & (of_words.max(-1) >= averaged[..., list(no_word)].max(-1))
    return np.where(wins, present[of_words.argmax(-1)], NO_WORD)


def count_links(
    links: Collection[Link], sure: Collection[Link], possible: Collection[Link]
) -> Counts:
    """Count what error rates need; sure links are possible ones, too."""
    every, safe = set(links), set(sure)
    return Counts(
        sure_hits=len(every & safe),
        possible_hits=len(every & (safe | set(possible))),
        links=len(every),
        sure=len(safe),
    )


def rates(counts: ArrayLike) -> Rates:
    """Error rate, precision and recall of summed `Counts` (…, 4); NaN where nothing is counted.

    ``AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|)``, precision ``|A∩P| / |A|``, recall ``|A∩S| / |S|``.
    Och and Ney 2003.
    """
    sure_hits, possible_hits, links, sure = np.moveaxis(np.asarray(counts, np.float64), -1, 0)
    return Rates(
        aer=1 - divided(sure_hits + possible_hits, links + sure),
        precision=divided(possible_hits, links),
        recall=divided(sure_hits, sure),
    )


class Resampled(NamedTuple):
    """Rates of all sentence pairs together, and of each resample of them."""

    rates: Rates  # (k,)
    drawn: Rates  # (resamples, k)

    def interval(self, name: str, level: float = 0.95) -> Means:
        """A rate with its percentile interval, (k,) each."""
        return percentile_interval(getattr(self.rates, name), getattr(self.drawn, name), level)

    def difference(self, name: str, first: int, second: int, level: float = 0.95) -> Means:
        """How much a rate of one column is above another's, on the same pairs, (1,) each."""
        both = getattr(self.rates, name), getattr(self.drawn, name)
        value, drawn = (each[..., [first]] - each[..., [second]] for each in both)
        return percentile_interval(value, drawn, level)


def resampled_rates(counts: ArrayLike, resamples: int = 10_000, seed: int = 0) -> Resampled:
    """Rates of `Counts` (sentence pair, k, 4) by the bootstrap: whole sentence pairs are drawn."""
    cells = np.asarray(counts, dtype=np.float64)
    pairs, columns = cells.shape[:2]
    flat = cells.reshape(pairs, columns * 4)
    resamples = resamples if pairs > 1 else 0
    drawn = np.zeros((resamples, columns, 4))
    for part, weights in resample_counts(pairs, resamples, np.random.default_rng(seed)):
        drawn[part] = (weights @ flat).reshape(-1, columns, 4)
    return Resampled(rates(cells.sum(axis=0)), rates(drawn))

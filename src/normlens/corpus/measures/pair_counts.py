"""Which pairs of subwords a corpus has often enough, counted before the run begins.

A count-min sketch (Cormode & Muthukrishnan 2005): every ordered pair adds to one counter in each
of two rows, so that the smaller of its two counters is never less than its count. What is kept is
decided by these counters, for all sequences alike, so that the sums of a pair that is kept are
exact; a pair that is kept by mistake is left out when the shards are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.reservoir import mixed

#: Counters in each of the two rows, as a power of two: 32 MiB of counters, 1 MiB of bits.
_BITS = 23
_SIZE = 1 << _BITS
#: Bytes that hold one bit of every counter.
BYTES = 2 * _SIZE // 8
#: Counters stop here, before they could begin anew.
_MOST = np.uint32(1 << 31)


def places_of(sources: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    """The counters of pairs of token ids, (2, pairs)."""
    pair = sources.astype(np.uint64) << np.uint64(32) | targets.astype(np.uint64)
    number = mixed(pair)
    rows = [number & np.uint64(_SIZE - 1), number >> np.uint64(64 - _BITS)]
    return np.stack(rows).astype(np.int64)


class PairCounter:
    """Counts the ordered pairs of a corpus's subwords, sequence by sequence."""

    def __init__(self, causal: bool):
        self.causal = causal
        self._counters = np.zeros((2, _SIZE), np.uint32)

    def add(self, ids: list[int]) -> None:
        """Count the pairs of a sequence: each source with each other token, or with later ones."""
        tokens = np.asarray(ids, np.int64)
        if self.causal:
            target, source = np.tril_indices(len(tokens), -1)
            sources, targets = tokens[source], tokens[target]
            counts = np.ones(len(sources), np.uint32)
        else:
            kinds, times = np.unique(tokens, return_counts=True)
            often = np.outer(times, times)
            np.fill_diagonal(often, times * (times - 1))  # no token is paired with itself
            sources, targets = (axis.ravel() for axis in np.meshgrid(kinds, kinds, indexing="ij"))
            counts = often.ravel().astype(np.uint32)
            occur = counts > 0
            sources, targets, counts = sources[occur], targets[occur], counts[occur]
        for row, places in zip(self._counters, places_of(sources, targets), strict=True):
            np.add.at(row, places, counts)
            row[places] = np.minimum(row[places], _MOST)

    def kept(self, min_count: int, keep_pairs: int | None) -> KeptPairs:
        """The pairs that occur `min_count` times, or so often that about `keep_pairs` are left."""
        least = max(1, min_count)
        if keep_pairs is not None:
            # As many pairs occur so often as counters say so, but for those that share one.
            high = max(least, int(self._counters.max(initial=0)) + 1)
            while least < high:
                middle = (least + high) // 2
                if int((self._counters >= middle).sum(axis=1).min()) <= keep_pairs:
                    high = middle
                else:
                    least = middle + 1
        return KeptPairs(
            np.packbits(self._counters >= least, axis=1),
            np.packbits(self._counters > 0, axis=1),
            least,
        )


@dataclass(frozen=True, eq=False)
class KeptPairs:
    """The pairs that a run keeps, as bits of the counters, and how often each occurs at least."""

    often: NDArray[np.uint8]  # (2, counters / 8): as often as `least`
    seen: NDArray[np.uint8]  # (2, counters / 8): at all
    least: int

    def holds(self, sources: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each pair of token ids is kept."""
        return _set(self.often, places_of(sources, targets))

    def saw(self, sources: NDArray[Any], targets: NDArray[Any]) -> bool:
        """Whether all of these pairs may have been counted; False is certain."""
        return bool(_set(self.seen, places_of(sources, targets)).all())


def _set(bits: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bits of both rows are set."""
    byte, bit = places >> 3, 7 - (places & 7)
    one, other = (row[at] >> by & 1 for row, at, by in zip(bits, byte, bit, strict=True))
    return (one & other).astype(bool)

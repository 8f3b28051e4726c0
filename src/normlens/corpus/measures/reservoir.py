"""A bounded sample of pairs that does not depend on how a corpus is cut into shards.

Every pair has a priority, a hash of what identifies it. The sample of a stratum is the k pairs of
lowest priority: of two samples together the k lowest are the sample of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import RELATIONS

#: Relations whose pairs are sampled from each distance apart: others are drawn from them.
UNRELATED = ("other", "special")
#: Upper ends of these distances; the last is open. Words and entities are short, so that near
#: distances must be at hand one by one.
EDGES = (*range(1, 17), 32, 64)


def priorities(
    seed: int, sequence: str, layer: int | NDArray[Any], target: NDArray[Any], source: NDArray[Any]
) -> NDArray[np.uint64]:
    """Hash (seed, sequence, layer, target, source); no two pairs of one layer share a hash.

    A key from SHA-256 for seed and sequence, mixed with the packed rest by SplitMix64, which is
    a bijection (Steele, Lea and Flood 2014).
    """
    digest = hashlib.sha256(f"{seed}\n{sequence}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "big"))
    pair = target.astype(np.uint64) << np.uint64(24) | source.astype(np.uint64)
    return mixed(key ^ mixed(np.asarray(layer, np.uint64) << np.uint64(48) | pair))


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of numbers (SplitMix64); no two numbers give the same."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is meant
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def strata(
    relation: NDArray[Any], distance: NDArray[Any], names: Sequence[str] = RELATIONS
) -> NDArray[np.int64]:
    """Number each pair's stratum: its relation (place in `names`), of `UNRELATED` its distance."""
    number = np.asarray(relation, np.int64)
    first = len(names)
    for name in UNRELATED:
        number = np.where(
            relation == names.index(name), first + np.searchsorted(EDGES, distance), number
        )
        first += len(EDGES) + 1
    return number


def strata_sql() -> str:
    """Write the strata as SQL, apart from the relation itself."""
    cases = " ".join(f"WHEN distance <= {edge} THEN {edge}" for edge in EDGES)
    return f"CASE WHEN relation NOT IN {UNRELATED} THEN 0 {cases} ELSE {EDGES[-1] + 1} END"


def limits(keep: int, keep_other: int, names: Sequence[str] = RELATIONS) -> NDArray[np.int64]:
    """Limit the pairs of each stratum: `keep` where they are related, else `keep_other`."""
    sizes = [keep_other if name in UNRELATED else keep for name in names]
    distances = len(UNRELATED) * (len(EDGES) + 1)
    return np.array(sizes + [keep_other] * distances, dtype=np.int64)


def lowest(
    priority: NDArray[np.uint64], stratum: NDArray[np.int64], limit: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Find the places of each stratum's lowest priorities, in the order given; all differ."""
    keep = np.ones(len(priority), dtype=bool)
    counts = np.bincount(stratum, minlength=len(limit))
    for full in np.flatnonzero(counts > limit):
        places = np.flatnonzero(stratum == full)
        cut = np.partition(priority[places], limit[full] - 1)[limit[full] - 1]
        keep[places[priority[places] > cut]] = False
    return np.flatnonzero(keep)


def lowest_in_groups(
    group: NDArray[np.int64], limit: NDArray[np.int64], *keys: NDArray[Any]
) -> NDArray[np.intp]:
    """Find the places of each group's first rows by `keys`, sorted by group and keys.

    `limit` is the size of each row's own group.
    """
    # Faster than lexsort, and small integers sort in linear time.
    order = np.argsort(keys[0])
    order = order[
        np.argsort(group[order].astype(np.min_scalar_type(group.max(initial=0))), kind="stable")
    ]
    # Only records with the same id tie, and sorting by every key takes several times as long.
    if ((np.diff(group[order]) == 0) & (keys[0][order][1:] == keys[0][order][:-1])).any():
        order = np.lexsort((*reversed(keys), group))
    begins = np.searchsorted(group[order], group[order])
    return order[np.arange(len(order)) - begins < limit[order]]

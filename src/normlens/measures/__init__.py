"""The papers' measures, each a pure function of maps given as arrays."""

from normlens.measures.maps import (
    Pair,
    amplification,
    merge_words,
    mixing_ratio,
    normalise,
    pair_reachable,
    pair_rollout,
    reachable,
    rollout,
    share_of_sizes,
    share_of_sums,
    special_dimensions,
    strongest_pairs,
    sum_words,
)
from normlens.measures.ranks import spearman

__all__ = [
    "Pair",
    "amplification",
    "merge_words",
    "mixing_ratio",
    "normalise",
    "pair_reachable",
    "pair_rollout",
    "reachable",
    "rollout",
    "share_of_sizes",
    "share_of_sums",
    "spearman",
    "special_dimensions",
    "strongest_pairs",
    "sum_words",
]

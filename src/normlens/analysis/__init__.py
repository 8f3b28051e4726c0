"""The papers' measures, each a pure function of maps given as arrays."""

from normlens.analysis.amplification import Pair, amplification, normalise, strongest_pairs
from normlens.analysis.mixing import mixing_ratio
from normlens.analysis.rollout import pair_reachable, pair_rollout, reachable, rollout
from normlens.analysis.sequence_shares import share_of_sizes, share_of_sums
from normlens.analysis.similarity import spearman
from normlens.analysis.special_dimensions import special_dimensions
from normlens.analysis.words import merge_words, sum_words

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

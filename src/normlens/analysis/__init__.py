"""The papers' measures, each a pure function of maps given as arrays."""

from normlens.analysis.amplification import amplification, normalise
from normlens.analysis.similarity import spearman
from normlens.analysis.words import merge_words

__all__ = ["amplification", "merge_words", "normalise", "spearman"]

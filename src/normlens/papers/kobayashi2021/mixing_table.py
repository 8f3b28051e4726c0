"""Shared by the experiments on mixing ratios: categories of tokens, and scopes to name."""

from __future__ import annotations

from normlens.papers.base import Evidence
from normlens.scopes import components_of

_NAMES = {
    "ordinary": "ordinary",
    "mask": "[MASK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "other-special": "other special",
}
#: A decoder's sequence is framed by its beginning and its end.
_CAUSAL_NAMES = {**_NAMES, "cls": "BOS", "sep": "EOS"}
FIRST_TOKEN = (
    "The model is causal: the first token of a sequence sees only itself, so its ratio is 0."
)


def has_mixing(evidence: Evidence) -> bool:
    return evidence.run is not None and "mixing" in evidence.run.tables


def category_names(evidence: Evidence) -> dict[str, str]:
    """Name the categories of tokens as readers know them."""
    return _CAUSAL_NAMES if evidence.model["causal"] else _NAMES


def in_model_order(evidence: Evidence, present: set[str]) -> list[str]:
    """Sort the scopes that a table holds into the model's order."""
    return [scope for scope in evidence.scopes if scope in present]


def attention_block(scopes: list[str]) -> str:
    """Find the scope of the attention block with everything before the feed-forward block.

    ATTNRESLN-N in BERT. Where the feed-forward block stands beside the attention, the whole layer.
    """
    chain = [scope for scope in scopes if scope.endswith("-N")]
    before = [scope for scope in chain if "FF" not in components_of(scope)]
    return before[-1] if len(before) > 1 else chain[-1]

"""An explanation by words: what a word's tokens contribute and pass on is summed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from normlens import analysis

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation


def merged_words(why: Explanation) -> Explanation:
    """The same explanation with one token per word."""
    axis = why.axis
    members, words = axis.word_groups(), axis.words()

    def merged(array: NDArray[Any], axes: int) -> NDArray[Any]:
        return analysis.sum_words(array, members, axes)

    position, first = why.read_at, why.encoder_tokens
    if first is not None:
        first = sum(group[0] < first for group in members)
    if position is not None:
        position = next(place for place, group in enumerate(members) if position in group)
        position -= first or 0
    return replace(
        why,
        nodes=merged(why.nodes, 1),
        components=merged(why.components, 1),
        heads=merged(why.heads, 1),
        flows={scope: merged(flow, 2) for scope, flow in why.flows.items()},
        head_flow=None if why.head_flow is None else merged(why.head_flow, 2),
        raw_tokens=words.raw_tokens,
        token_ids=[],
        special=words.special,
        token_words=words.token_words,
        word_labels=words.word_labels,
        position=position,
        encoder_tokens=first,
        cross_heads=None if why.cross_heads is None else merged(why.cross_heads, 1),
    )

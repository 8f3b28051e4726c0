"""An explanation in words: its score, its probabilities, and what its parts sum to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation

#: The sequences of an encoder–decoder's explanation.
SOURCE, PREFIX = "source", "prefix"
#: The component of what passes a layer by its residual connections, and no block.
RES = "RES"


def decimals(largest: float) -> int:
    """How many decimals show three digits of the largest of some numbers."""
    if not 0 < abs(largest) < math.inf:
        return 2
    return min(max(2 - math.floor(math.log10(abs(largest))), 0), 9)


def signed_number(value: float, places: int) -> str:
    """A number with its sign, or a zero without one; NaN is a dash."""
    if math.isnan(value):
        return "–"
    text = f"{value:+.{places}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def score_words(why: Explanation) -> str:
    """The score that is explained, and where the model has them its probabilities."""
    places = decimals(why.value)
    value = signed_number(why.value, places)
    if why.target is None:
        return f"product with the direction: {value}"
    if why.contrast is None or why.target_value is None or why.contrast_value is None:
        words = f"score of {why.target!r}: {value}"
    else:
        scores = [signed_number(score, places) for score in (why.target_value, why.contrast_value)]
        words = f"{why.target!r} {scores[0]}, {why.contrast!r} {scores[1]}: difference {value}"
    if why.probability is None:
        return words
    words += f" · probability of {why.target!r} {percent(why.probability)}"
    if why.contrast is not None and why.contrast_probability is not None:
        words += f", of {why.contrast!r} {percent(why.contrast_probability)}"
    return words


def place_words(why: Explanation) -> str:
    """Where the score is read."""
    behind = "" if why.layer is None else f" behind layer {why.layer}"
    if why.position is None:
        return f"read from all tokens{behind}"
    if why.has_two_sequences:
        return f"read at position {why.position} of the target ({why.tokens[why.read_at or 0]!r})"
    return f"read at position {why.position} ({why.tokens[why.position]!r}){behind}"


def total_words(why: Explanation) -> str:
    """What the tokens and the biases sum to, and how exactly."""
    parts = [(part.name or "tokens", part.total) for part in why.sequences]
    parts += [("no token (biases)", why.remainder), ("sum", why.value)]
    places = decimals(max(abs(value) for _, value in parts))
    return ", ".join(f"{name} {signed_number(value, places)}" for name, value in parts)


def share_words(why: Explanation) -> str:
    """How much of the score an encoder–decoder's source supplies, beside the prefix."""
    shares = why.shares
    return (
        f"the source supplies {percent(shares.source_share)} of what both sequences do "
        f"({percent(shares.source_share_absolute)} of their tokens' sizes)"
    )


def percent(share: float) -> str:
    """A share in percent with two digits: 12 %, 0.031 %; NaN, a share of nothing, is a dash."""
    if math.isnan(share):
        return "–"
    if share >= 0.0995:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else f"{share:.0e}"

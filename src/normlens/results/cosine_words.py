"""A cosine in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.results.explanation_words import signed_number

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine

PLACES = 3  # decimals of a cosine's parts


def cosine_words(pair: Cosine) -> str:
    """The cosine itself."""
    return f"cosine {signed_number(pair.value, PLACES)}"


def parts_words(pair: Cosine) -> str:
    """What pairs of tokens and biases have of it."""
    parts = [("pairs of tokens", float(pair.matrix.sum())), *pair.remainder.items()]
    return ", ".join(f"{name} {signed_number(value, PLACES)}" for name, value in parts)

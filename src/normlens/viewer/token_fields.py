"""Tokens and texts as the headers of payloads name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normlens.results.tokens import TokenAxis

if TYPE_CHECKING:
    from normlens.results.maps import Maps
    from normlens.text import Text


def token_fields(axis: TokenAxis) -> dict[str, Any]:
    """The tokens along an axis, as the tokenizer writes them and as people read them."""
    return {
        "tokens": list(axis.raw_tokens),
        "labels": axis.tokens,
        "special": [bool(flag) for flag in axis.special] or [False] * len(axis),
        "words": axis.token_words,
        "word_labels": list(axis.word_labels),
    }


def source_fields(maps: Maps) -> dict[str, Any]:
    """The tokens of the columns where they are other tokens than those of the rows."""
    return {**token_fields(maps.sources), "sequences": maps.source_sequences}


def texts_of(text: Text | None) -> list[str] | None:
    """One text, or the two of a pair, in a list."""
    if text is None:
        return None
    return [text] if isinstance(text, str) else list(text)

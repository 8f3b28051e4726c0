"""Tokens and texts as the headers of payloads name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
    """The tokens of the columns where they are other tokens than those of the rows.

    ``held`` are the sequences that each scope has parts of.
    """
    sequences = np.array(maps.source_sequences)
    names = list(dict.fromkeys(maps.source_sequences))
    pairs = {scope: np.asarray(maps.pairs_of(scope)).any((0, 1)) for scope in maps.scopes}
    return {
        **token_fields(maps.sources),
        "sequences": maps.source_sequences,
        "held": {
            scope: [name for name in names if np.any(columns & (sequences == name))]
            for scope, columns in pairs.items()
        },
    }


def texts_of(text: Text | None) -> list[str] | None:
    """One text, or the two of a pair, in a list."""
    if text is None:
        return None
    return [text] if isinstance(text, str) else list(text)

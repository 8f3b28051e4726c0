"""Explanations of a batch of a corpus's sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normlens.corpus.measures.base import Asked
from normlens.explain.explainer import ask
from normlens.inputs.text import Encoded
from normlens.lens import Lens
from normlens.options import ExplainOptions
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps


def explained(
    lens: Lens, items: Sequence[Encoded], asked: Asked, batch_size: int | str
) -> list[tuple[Explanation, ...]]:
    """The explanations of each sequence: one, or one for each of its next tokens.

    Of an encoder–decoder's pairs, `asked.position` is the place of a token of the target.
    """
    options = ExplainOptions(
        nonlinearity=asked.nonlinearity,
        flow=False,
        first_piece=asked.first_piece,
        batch_size=batch_size if batch_size == "auto" else int(batch_size),
    )
    answers = ask(
        lens,
        items,
        True,
        options,
        target=asked.target,
        contrast=asked.contrast,
        position=asked.position,
    )
    return [(each,) if isinstance(each, Explanation) else tuple(each) for each in answers]


def no_maps(encoded: Encoded) -> Maps:
    """The maps of a sequence of which no maps were computed: they have no layers."""
    n = len(encoded)
    return Maps(
        arrays={},
        raw_tokens=encoded.tokens,
        layers=[],
        allowed=np.zeros((0, n, n), dtype=bool),
        completeness=float("nan"),
        token_ids=encoded.ids,
        special=encoded.special,
        token_words=encoded.words,
    )

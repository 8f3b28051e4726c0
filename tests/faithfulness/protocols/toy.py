"""A model whose score is a sum over tokens, so that every protocol's value is known by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from normlens.inputs.text import Encoded
from normlens.studies.faithfulness.protocols import Drops, Example
from normlens.studies.faithfulness.questions import Question, Scored, Variant

CLS, SEP, MASK, END = 1, 2, 3, 4


def question(
    ids: Sequence[int],
    *,
    kind: str = "classes",
    text: str | None = None,
    words: Sequence[int | None] | None = None,
    labels: Sequence[str] = (),
) -> Question:
    """A text of ordinary tokens between two special ones; a causal model has none."""
    framed = [*ids] if kind == "next-token" else [CLS, *ids, SEP]
    special = [i in (CLS, SEP) for i in framed]
    encoded = Encoded(
        framed,
        [f"t{i}" for i in framed],
        special,
        words=None if words is None else list(words),
        word_labels=list(labels),
        text=text,
    )
    if kind == "cosine":
        return Question(encoded, other=np.ones(2) / np.sqrt(2))
    return Question(encoded, 0, 1, len(framed) - 1 if kind == "next-token" else None)


def scored(variants: Sequence[Variant], worth: Mapping[int, float]) -> Scored:
    """The toy: score and probability are the sum of what the tokens are worth."""
    sums = np.array([sum(worth.get(i, 0.0) for i in variant.ids) for variant in variants])
    return np.column_stack([sums, sums, sums < 0.5]).astype(np.float64)


def value(
    protocol: Drops, example: Example, scores: Sequence[float], worth: Mapping[int, float]
) -> dict[str, float | None]:
    """What a protocol makes of scores, with the toy as the model."""
    given = np.array(scores, np.float64)
    removals = protocol.removals(example, given)
    outcomes = scored([removal.variant for removal in removals], worth)
    intact = scored([example.question.whole], worth)
    return protocol.values(example, given, intact, removals, outcomes)


SIZE = 40


class Tokenizer:
    """What a protocol asks of a tokenizer."""

    mask_token_id, eos_token_id = MASK, END
    all_special_ids = tuple(range(20))  # those of texts are never drawn

    def __len__(self) -> int:
        return SIZE


#: As much of a lens as protocols need.
LENS: Any = SimpleNamespace(tokenizer=Tokenizer(), name="toy", model=torch.nn.Module())
LENS.model.get_input_embeddings = lambda: torch.nn.Embedding(SIZE, 1)

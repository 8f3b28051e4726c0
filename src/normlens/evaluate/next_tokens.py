"""Questions about the next token that a causal model itself prefers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.evaluate.outputs import by_batches, logits
from normlens.evaluate.questions import Question, word_head
from normlens.evaluate.variants import whole_text
from normlens.precisions import AUTO
from normlens.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens


def next_token_questions(
    lens: Lens, encoded: Sequence[Encoded], *, batch_size: int | str = AUTO
) -> list[Question]:
    """Why the most probable next token of each text and not the second."""
    texts = [whole_text(text, len(text) - 1) for text in encoded]
    if not texts:
        return []

    def two_best(places: list[int]) -> Tensor:
        scores = logits(lens, [texts[place] for place in places])
        # Of equal scores the first token comes first, as it does in argmax.
        order = scores.double().sort(dim=-1, descending=True, stable=True)
        return order.indices[:, :2]

    best = by_batches(lens, word_head(lens), texts, batch_size, two_best).long().tolist()
    return [
        Question(text, target, contrast, len(text) - 1)
        for text, (target, contrast) in zip(encoded, best, strict=True)
    ]

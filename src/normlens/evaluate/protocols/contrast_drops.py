"""Contrast drops: how far a causal model's preference falls as tokens are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.evaluate.protocols.base import Example
from normlens.evaluate.protocols.drops import SCORE, Drops
from normlens.evaluate.questions import NEXT_TOKEN
from normlens.evaluate.variants import Variant

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class ContrastDropEnd(Drops):
    """``mean_K [s(x) − s(x with the first K replaced by the end-of-text token)]``.

    s is the difference of two next tokens' logits; K = 0, 10, …, 90 %.
    """

    end_id: int

    name = "contrast-drop-end"
    kind = NEXT_TOKEN
    reads = SCORE

    @classmethod
    def on(cls, lens: Lens) -> ContrastDropEnd:
        end_id = getattr(lens.tokenizer, "eos_token_id", None)
        if end_id is None:
            raise InputError(
                f"{cls.name} writes the end-of-text token over others and {lens.name} has none; "
                "choose contrast-drop-random"
            )
        return cls(int(end_id))

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.replaced(places, self.end_id)


@dataclass(frozen=True)
class ContrastDropRandom(Drops):
    """The same with random tokens, one for each place of a text, drawn by the run's seed.

    A place is given the same token by every method and at every share.
    """

    vocabulary: NDArray[np.int64] = field(repr=False)  # ids of ordinary tokens

    name = "contrast-drop-random"
    kind = NEXT_TOKEN
    reads = SCORE

    @classmethod
    def on(cls, lens: Lens) -> ContrastDropRandom:
        tokenizer = lens.tokenizer
        rows = lens.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        special = {*getattr(tokenizer, "all_special_ids", ())}
        special |= {*getattr(tokenizer, "added_tokens_decoder", ())}
        size = min(int(rows), len(tokenizer))  # type: ignore[arg-type]
        return cls(np.array([i for i in range(size) if i not in special], np.int64))

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        drawn = example.numbers("replacements", len(example.question)) % np.uint64(
            len(self.vocabulary)
        )
        tokens = self.vocabulary[drawn[list(places)].astype(np.intp)].tolist()
        return example.question.replaced(places, tokens)

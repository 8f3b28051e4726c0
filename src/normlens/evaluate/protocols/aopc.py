"""AOPC: how far the probability of the predicted class falls as tokens are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.evaluate.protocols.base import Example
from normlens.evaluate.protocols.drops import PROBABILITY, Drops
from normlens.evaluate.questions import CLASSES
from normlens.evaluate.variants import Variant

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Masking(Drops):
    """Drops as mask tokens take the place of ordinary ones."""

    mask_id: int

    @classmethod
    def on(cls, lens: Lens) -> Masking:
        mask_id = getattr(lens.tokenizer, "mask_token_id", None)
        if mask_id is None:
            raise InputError(
                f"{cls.name} masks tokens and {lens.name} has no mask token; choose other protocols"
            )
        return cls(int(mask_id))

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.replaced(places, self.mask_id)


@dataclass(frozen=True)
class Aopc(Masking):
    """``mean_K [p(ŷ|x) − p(ŷ|x with the first K masked)]``, K = 0, 10, …, 90 %.

    Area over the perturbation curve, by the protocol of DecompX (Modarressi et al. 2023). ⌊K·n⌋ of
    the n ordinary tokens are masked. Most important first, larger is better; least important
    first, smaller.
    """

    name = "aopc"
    kind = CLASSES
    reads = PROBABILITY

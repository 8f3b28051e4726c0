"""Measures that run the model themselves: attributions put to the test, ablations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from normlens.corpus.measures.base import Item, RowMeasure
from normlens.errors import InputError

if TYPE_CHECKING:  # they need torch, which those who read a run's tables do not
    from normlens.corpus.engines.prepared import Clock
    from normlens.lens import Lens


class BoundMeasure(ABC):
    """A measure together with the model that it runs."""

    @abstractmethod
    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        """Measure some sequences: the rows of each, per table, or the reason why it has none.

        Rows depend on a sequence, the measure's options and the run's seed alone, not on the
        sequences beside it, but for the last digits of a batched product. Seconds that `clock`
        counts go to the shard's record.
        """


class ModelMeasure(RowMeasure, ABC):
    """A measure that has to run the model; a worker binds it to its own, once."""

    name: str
    #: whether it can run an encoder–decoder
    reads_pairs = False

    @abstractmethod
    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        """The measure with a model; raises an `InputError` where the model lacks what it needs."""

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Refuse: this measure has no rows without a model."""
        raise InputError(f"the measure {self.name!r} runs the model; take it in normlens.run")

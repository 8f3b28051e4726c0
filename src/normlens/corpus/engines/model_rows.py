"""Rows of the measures that run the model, for a batch of a corpus's sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import torch

from normlens.corpus.engines.guard import RUNS, Guard
from normlens.corpus.engines.prepared import Analysed, Clock, Entry
from normlens.corpus.measures import BoundMeasure, Item, Measure, ModelMeasure
from normlens.corpus.runs.errors import RunError
from normlens.errors import NormLensError, is_out_of_memory
from normlens.lens import Lens

#: By the names of measures: the rows of one sequence, per table.
Ready: TypeAlias = Mapping[str, dict[str, pa.Table]]


class ModelRows:
    """The measures of a run that are bound to its model."""

    def __init__(
        self,
        measures: Sequence[Measure],
        lens: Lens,
        batch_size: int | str,
        seed: int,
        guard: Guard | None = None,
    ) -> None:
        self.bound: dict[str, BoundMeasure] = {
            measure.name: measure.bind(lens, batch_size)
            for measure in measures
            if isinstance(measure, ModelMeasure)
        }
        self.seed = seed
        self.guard = guard or Guard()

    def of(
        self, batch: Sequence[Entry], results: Sequence[Analysed | str], clock: Clock
    ) -> list[Ready | str]:
        """The rows of each sequence, or why it has none; what failed before has no rows."""
        if not self.bound:
            return [{}] * len(batch)
        items = {
            place: Item(
                entry.encoded.id, entry.index, result[0], entry.encoded, self.seed, result[1]
            )
            for place, (entry, result) in enumerate(zip(batch, results, strict=True))
            if not isinstance(result, str)
        }
        ready: list[dict[str, dict[str, pa.Table]] | str] = [{} for _ in batch]
        for name, bound in self.bound.items():
            given = _rows(name, bound, list(items.values()), clock, self.guard)
            for place, rows in zip(list(items), given, strict=True):
                kept = ready[place]
                if isinstance(rows, str):
                    ready[place] = f"{name}: {rows}"
                    del items[place]  # a sequence is in all tables or in none
                elif not isinstance(kept, str):
                    kept[name] = rows
        return list(ready)


def _rows(
    name: str, bound: BoundMeasure, items: Sequence[Item], clock: Clock, guard: Guard
) -> list[dict[str, pa.Table] | str]:
    """Measure a batch; where it fails as a whole, each sequence answers for itself."""
    if not items:
        return []
    try:
        lengths = [item.tokens_read for item in items] * RUNS
        return guard.call(lambda: bound.batch_rows(items, clock), items[0].index, lengths)
    except (OSError, MemoryError) as error:
        # The machine's fault, not the sequence's.
        reason = "ran out of memory" if isinstance(error, MemoryError) else f"failed ({error})"
        raise RunError(
            f"the measure {name!r} {reason} at {items[0].sequence}; what is done is kept: resume "
            "the run, with a smaller --batch-size or fewer --workers if memory is short"
        ) from error
    except Exception as error:
        if len(items) == 1 and is_out_of_memory(error):
            whose = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
            raise RunError(
                f"the measure {name!r} ran out of {whose} at {items[0].sequence}; what is done is "
                "kept: resume the run with a smaller --max-length or another --device"
            ) from error
        if len(items) == 1:
            kind = "" if isinstance(error, NormLensError) else f"{type(error).__name__}: "
            return [f"{kind}{error}"]
    return [rows for item in items for rows in _rows(name, bound, [item], clock, guard)]

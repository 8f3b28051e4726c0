"""The first pass: run the intact model on sequences and gather its statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normlens.ablation.layer_hooks import LayerHooks
from normlens.ablation.passes import body_pass, model_ready
from normlens.ablation.places import INPUT, NormPlace, Place, ResidualPlace, VectorPlace
from normlens.ablation.plan import Plan
from normlens.ablation.seeding import draws
from normlens.ablation.statistics import RESERVOIR, Statistics, Where
from normlens.errors import InputError
from normlens.frozen.parts import FrozenNorm
from normlens.inputs.text import Encoded
from normlens.layers import cast
from normlens.pipeline.batches import batches
from normlens.pipeline.progress import Progress
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.lens import Lens


def gather(
    lens: Lens,
    sequences: Sequence[Encoded],
    *,
    keys: Sequence[str] | None = None,
    seed: int = 0,
    reservoir: int = RESERVOIR,
    batch_size: int | str = "auto",
    progress: Progress | None = None,
) -> Statistics:
    """Statistics of a model over sequences, which are not those that ablations are measured on.

    `keys` name the sequences (by default their numbers); which positions are kept for resampling
    depends on the seed, the key and the position alone. Give them as the loss has the model read
    them (`Question.encoded`), with masks where it masks. `progress` is called with the sequences
    done and all of them.
    """
    if not sequences:
        raise InputError("there is no sequence to gather statistics from; give at least one")
    names = [str(i) for i in range(len(sequences))] if keys is None else list(keys)
    gathering = Gathering(lens, seed=seed, reservoir=reservoir)
    for places in batches(lens, sequences, batch_size):
        gathering.add([sequences[i] for i in places], [names[i] for i in places])
        if progress is not None:
            progress(gathering.sequences, len(sequences))
    return gathering.result()


class Gathering:
    """Sums over the batches that were added, in float64."""

    def __init__(self, lens: Lens, *, seed: int = 0, reservoir: int = RESERVOIR):
        if reservoir < 1:
            raise InputError(f"the reservoir has at least one position, not {reservoir}")
        self.lens, self.seed = lens, seed
        self.plan = Plan(lens.layers, lens.name)
        self.sequences = self.positions = 0
        self._kept = _Kept(reservoir)
        self._sums: dict[Where, Tensor] = {}
        self._sigmas: dict[Where, Tensor] = {}
        self._samples: dict[Where, Tensor] = {}

    def add(self, batch: Sequence[Encoded], keys: Sequence[str]) -> None:
        """Run the model on a batch, whose sequences have these keys."""
        lens = self.lens
        inputs = model_inputs(lens.adapter, batch, lens.device)
        lengths = [len(sequence) for sequence in batch]
        entering = self._kept.enter(
            [draws(n, "position", self.seed, key) for n, key in zip(lengths, keys, strict=True)]
        )
        real = inputs["attention_mask"].bool()  # (b, i)
        hooks = LayerHooks(lens.adapter)
        for layer, places in enumerate(self.plan.places):
            for component, place in places.items():
                where = (layer, component)
                if isinstance(place, NormPlace):
                    read = Place(place.module, INPUT)
                    hooks.visit(layer, read, self._deviations(where, place, real))
                elif isinstance(place, VectorPlace):
                    hooks.visit(layer, place.output, self._vectors(where, real, entering))
                elif isinstance(place, ResidualPlace):
                    hooks.visit(layer, place.branch, self._vectors(where, real, entering))

        def run() -> None:
            with hooks.on():
                body_pass(lens, inputs)

        model_ready(lens, run)
        self.sequences += len(batch)
        self.positions += sum(lengths)

    def result(self) -> Statistics:
        """What was gathered, the same for any order and any size of batches but for rounding."""
        if not self.positions:
            raise InputError("nothing was gathered; add sequences first")
        order = self._kept.order()
        return Statistics(
            model=self.lens.name,
            sequences=self.sequences,
            positions=self.positions,
            seed=self.seed,
            means={where: (total / self.positions).cpu() for where, total in self._sums.items()},
            sigmas={where: float(total) / self.positions for where, total in self._sigmas.items()},
            samples={where: rows.cpu()[order] for where, rows in self._samples.items()},
        )

    def _vectors(self, where: Where, real: Tensor, entering: _Entering) -> Callable[[Tensor], None]:
        def visit(y: Tensor) -> None:
            total = y[real].double().sum(0)
            self._sums[where] = self._sums[where] + total if where in self._sums else total
            if where not in self._samples:
                self._samples[where] = y.new_zeros(self._kept.size, y.shape[-1])
            if len(entering.slots):
                rows = y[entering.rows.to(y.device), entering.positions.to(y.device)]
                self._samples[where][entering.slots.to(y.device)] = rows

        return visit

    def _deviations(self, where: Where, place: NormPlace, real: Tensor) -> Callable[[Tensor], None]:
        def visit(x: Tensor) -> None:
            wide = x[real].double()
            total = FrozenNorm.at(cast(place.norm, wide.dtype), wide).inverse_deviation
            total = total.reciprocal().sum()
            self._sigmas[where] = self._sigmas[where] + total if where in self._sigmas else total

        return visit


@dataclass(frozen=True)
class _Entering:
    """The positions of a batch that are kept, and the slots that they take."""

    rows: Tensor
    positions: Tensor
    slots: Tensor


@dataclass
class _Kept:
    """The positions with the lowest priorities so far, each in a slot."""

    size: int
    priorities: dict[int, int] = field(default_factory=dict)  # by slot

    def enter(self, offered: Sequence[np.ndarray]) -> _Entering:
        """Take those positions of a batch that belong to the lowest, by their priorities."""
        new = [
            (int(priority), b, i) for b, row in enumerate(offered) for i, priority in enumerate(row)
        ]
        everything = [(p, -1, slot) for slot, p in self.priorities.items()] + new
        lowest = sorted(everything)[: self.size]
        staying = {slot for _, b, slot in lowest if b < 0}
        free = iter([slot for slot in range(self.size) if slot not in staying])
        self.priorities = {slot: self.priorities[slot] for slot in staying}
        entering = [(b, i, next(free), p) for p, b, i in lowest if b >= 0]
        self.priorities |= {slot: p for _, _, slot, p in entering}
        columns = [torch.tensor([entry[k] for entry in entering]).long() for k in range(3)]
        return _Entering(*columns)

    def order(self) -> list[int]:
        """The slots in use, by their priorities."""
        return sorted(self.priorities, key=lambda slot: self.priorities[slot])

"""What ablations put in a component's place: statistics that a first pass gathers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from normlens.corpus.data.records import Record
from normlens.corpus.data.spans import EncodedRecord, encode_apart, encode_record
from normlens.corpus.runs.folder import TEMPORARY
from normlens.errors import InputError, OutputError, reason_of, system_reason
from normlens.frozen.parts import FrozenNorm
from normlens.inputs.text import Encoded
from normlens.layers import cast
from normlens.pipeline.batches import Progress, batches
from normlens.studies.ablation.data import AblationData
from normlens.studies.ablation.losses import Loss, body_pass, model_ready
from normlens.studies.ablation.options import FROZEN_SIGMA, MASKED, MEAN, AblateOptions
from normlens.studies.ablation.places import (
    INPUT,
    LayerHooks,
    NormPlace,
    Place,
    ResidualPlace,
    VectorPlace,
    draws,
)
from normlens.studies.ablation.plan import Plan
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.lens import Lens

# What ablations put in a component's place: means and samples of its vectors over a corpus.
#
# A first pass over sequences of their own gathers, for each layer: the mean output of every block
# and of the layer, the mean vector that each residual connection adds, the mean deviation σ of
# each norm, and the same vectors at some hundred positions, which resampling draws from. All
# tokens count, special ones included, because an ablation replaces a component at all of them;
# padding never does.


FORMAT = "normlens ablation statistics 1"

#: Positions that are kept for resampling.
RESERVOIR = 256

#: A layer and a component of it.
Where = tuple[int, str]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Means, deviations and samples of one model's components."""

    model: str
    sequences: int
    positions: int
    seed: int
    means: Mapping[Where, Tensor]  # float64 (d,)
    sigmas: Mapping[Where, float]
    samples: Mapping[Where, Tensor]  # (sample, d), in the model's precision

    def mean(self, layer: int, component: str) -> Tensor:
        """The mean vector of a component."""
        self.check(layer, component, MEAN)
        return self.means[layer, component]

    def sample(self, layer: int, component: str) -> Tensor:
        """Vectors of a component at some positions, (sample, d)."""
        self.check(layer, component, MEAN)
        return self.samples[layer, component]

    def sigma(self, layer: int, component: str) -> float:
        """The mean deviation σ of the vectors that a norm normalises."""
        self.check(layer, component, FROZEN_SIGMA)
        return self.sigmas[layer, component]

    def check(self, layer: int, component: str, kind: str) -> None:
        """Raise unless a component was gathered for a kind of ablation."""
        gathered = self.sigmas if kind == FROZEN_SIGMA else self.means
        if (layer, component) not in gathered:
            raise InputError(
                f"the statistics of {self.model} hold no {component} of layer {layer}; gather them "
                "again with this model"
            )

    @cached_property
    def digest(self) -> str:
        """A hash of all that was gathered."""
        total = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            total.update(f"\n{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n".encode())
            total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        metadata = self._header() | {"digest": self.digest}
        try:
            save_file(self._tensors(), path, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise OutputError(f"cannot write {str(path)!r} ({system_reason(error)})") from error

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """Read what `save` wrote; a changed file is refused."""
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {str(path)!r} ({reason_of(error)})") from error
        if header.get("format") != FORMAT:
            raise InputError(f"{str(path)!r} holds no ablation statistics; gather them first")
        try:
            found = cls._read(header, tensors)
            is_whole = found.digest == header["digest"]
        except (LookupError, ValueError, RuntimeError):  # of names and numbers that are none
            is_whole = False
        if not is_whole:
            raise InputError(
                f"the contents of {str(path)!r} do not match its digest; gather them again"
            )
        return found

    @classmethod
    def _read(cls, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Statistics:
        parts: dict[str, dict[Where, Tensor]] = {"mean": {}, "sigma": {}, "sample": {}}
        for name, tensor in tensors.items():
            part, layer, component = name.split("/", 2)
            parts[part][int(layer), component] = tensor
        return cls(
            model=header["model"],
            sequences=int(header["sequences"]),
            positions=int(header["positions"]),
            seed=int(header["seed"]),
            means=parts["mean"],
            sigmas={where: float(sigma) for where, sigma in parts["sigma"].items()},
            samples=parts["sample"],
        )

    def _header(self) -> dict[str, str]:
        return {
            "format": FORMAT,
            "model": self.model,
            "sequences": str(self.sequences),
            "positions": str(self.positions),
            "seed": str(self.seed),
        }

    def _tensors(self) -> dict[str, Tensor]:
        sigmas = {where: torch.tensor([s], dtype=torch.float64) for where, s in self.sigmas.items()}
        parts = {"mean": self.means, "sigma": sigmas, "sample": self.samples}
        return {
            f"{part}/{layer}/{component}": tensor.detach().cpu().contiguous()
            for part, tensors in parts.items()
            for (layer, component), tensor in tensors.items()
        }


# The first pass: run the intact model on sequences and gather its statistics.


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


# The first pass of an ablation, kept in a file beside its runs.


def first_pass(
    lens: Lens,
    loss: Loss,
    data: AblationData,
    options: AblateOptions,
    path: Path,
    batch_size: int | str = "auto",
) -> None:
    """Gather the statistics of a model and write them, the whole file or none of it."""
    texts = [
        text
        for record in data.reference_records()
        for text in _texts(lens, loss, data, options, record)
    ]
    if not texts:
        raise InputError(f"the first pass can read none of its sequences ({data.note})")
    statistics = gather(
        lens,
        texts,
        keys=[text.id for text in texts],
        seed=options.seed,
        batch_size=batch_size,
    )
    temporary = path.with_name(path.name + TEMPORARY)
    statistics.save(temporary)
    try:
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error


def _texts(
    lens: Lens, loss: Loss, data: AblationData, options: AblateOptions, record: Record
) -> Iterator[EncodedRecord]:
    """A record as the model will read those that are measured; nothing if it cannot be read."""
    limits = [n for n in (options.max_length, lens.max_tokens) if n is not None]
    encode = encode_apart if data.apart else encode_record
    try:
        encoded = encode(record, lens.tokenizer, max_length=min(limits), causal=lens.causal)
        if loss.name == MASKED:
            asked = loss.question(encoded, record.id).encoded
            encoded = replace(encoded, ids=asked.ids, tokens=asked.tokens)
    except InputError:
        return
    yield encoded
    if encoded.second is not None:
        yield replace(encoded.second, id=f"{record.id}\nsecond")

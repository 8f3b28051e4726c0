"""What ablations put in a component's place: statistics that a first pass gathers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from normlens.pipeline.batches import batches
from normlens.studies.ablation.data import AblationData
from normlens.studies.ablation.interventions import LayerHooks
from normlens.studies.ablation.losses import Loss, body_pass, model_ready
from normlens.studies.ablation.options import MASKED, AblateOptions
from normlens.studies.ablation.plan import (
    INPUT,
    NoPlace,
    NormPlace,
    Place,
    Plan,
    ResidualPlace,
    draws,
)
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
            parts: dict[str, dict[Where, Tensor]] = {"mean": {}, "sigma": {}, "sample": {}}
            for name, tensor in tensors.items():
                part, layer, component = name.split("/", 2)
                parts[part][int(layer), component] = tensor
            found = cls(
                model=header["model"],
                sequences=int(header["sequences"]),
                positions=int(header["positions"]),
                seed=int(header["seed"]),
                means=parts["mean"],
                sigmas={where: float(sigma) for where, sigma in parts["sigma"].items()},
                samples=parts["sample"],
            )
            is_whole = found.digest == header["digest"]
        except (LookupError, ValueError, RuntimeError):  # of names and numbers that are none
            is_whole = False
        if not is_whole:
            raise InputError(
                f"the contents of {str(path)!r} do not match its digest; gather them again"
            )
        return found

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
) -> Statistics:
    """Statistics of a model over sequences, which are not those that ablations are measured on.

    `keys` name the sequences (by default their numbers); which positions are kept for resampling
    depends on the seed, the key and the position alone. Give them as the loss has the model read
    them (`Question.encoded`), with masks where it masks. The result is the same for any order and
    any size of batches but for rounding.
    """
    if not sequences:
        raise InputError("there is no sequence to gather statistics from; give at least one")
    names = [str(i) for i in range(len(sequences))] if keys is None else list(keys)
    sums = _Sums(lens)
    priorities = np.empty(0, np.uint64)  # of the positions that are kept, the lowest first
    for places in batches(lens, sequences, batch_size):
        new = [draws(len(sequences[i]), "position", seed, names[i]) for i in places]
        everything = np.concatenate([priorities, *new])
        kept = np.argsort(everything, kind="stable")[:reservoir]
        priorities = everything[kept]
        sums.add([sequences[i] for i in places], torch.as_tensor(kept))
    positions = sum(map(len, sequences))
    return Statistics(
        model=lens.name,
        sequences=len(sequences),
        positions=positions,
        seed=seed,
        means={where: (total / positions).cpu() for where, total in sums.vectors.items()},
        sigmas={where: float(total) / positions for where, total in sums.sigmas.items()},
        samples={where: rows.cpu() for where, rows in sums.samples.items()},
    )


class _Sums:
    """Sums over the batches that were added, in float64, and vectors at the kept positions."""

    def __init__(self, lens: Lens):
        self.lens, self.plan = lens, Plan(lens.layers, lens.name)
        self.vectors: dict[Where, Tensor] = {}
        self.sigmas: dict[Where, Tensor] = {}
        self.samples: dict[Where, Tensor] = {}

    def add(self, batch: Sequence[Encoded], kept: Tensor) -> None:
        """Run the model on a batch; `kept` are positions of those kept so far and the batch's."""
        inputs = model_inputs(self.lens.adapter, batch, self.lens.device)
        real = inputs["attention_mask"].bool()  # (b, i)
        hooks = LayerHooks(self.lens.adapter)
        for layer, places in enumerate(self.plan.places):
            for component, place in places.items():
                where = (layer, component)
                if isinstance(place, NormPlace):
                    read = Place(place.module, INPUT)
                    hooks.visit(layer, read, partial(self._add_sigmas, where, place, real))
                elif not isinstance(place, NoPlace):
                    read = place.branch if isinstance(place, ResidualPlace) else place
                    hooks.visit(layer, read, partial(self._add_vectors, where, real, kept))

        def run() -> None:
            with hooks.on():
                body_pass(self.lens, inputs)

        model_ready(self.lens, run)

    def _add_vectors(self, where: Where, real: Tensor, kept: Tensor, y: Tensor) -> None:
        rows = y[real]
        _add(self.vectors, where, rows.double().sum(0))
        before = self.samples.get(where, rows[:0])
        self.samples[where] = torch.cat([before, rows])[kept.to(y.device)]

    def _add_sigmas(self, where: Where, place: NormPlace, real: Tensor, x: Tensor) -> None:
        wide = x[real].double()
        inverse = FrozenNorm.at(cast(place.norm, wide.dtype), wide).inverse_deviation
        _add(self.sigmas, where, inverse.reciprocal().sum())


def _add(sums: dict[Where, Tensor], where: Where, more: Tensor) -> None:
    sums[where] = sums[where] + more if where in sums else more


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

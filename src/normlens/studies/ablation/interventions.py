"""Interventions in the real model, and the statistics of its components that they need."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from normlens.corpus.data.spans import EncodedRecord, encode_apart, encode_record
from normlens.errors import InputError, UnsupportedModelError, reason_of
from normlens.frozen.parts import FrozenNorm
from normlens.inputs.text import Encoded
from normlens.layers import Norm, cast
from normlens.measures.bootstrap import draws
from normlens.models.base import Adapter
from normlens.pipeline.batches import TOLERANCE, batches
from normlens.results.store import writing
from normlens.studies.ablation import options as ablations
from normlens.studies.ablation.data import AblationData
from normlens.studies.ablation.losses import Loss
from normlens.studies.ablation.plan import (
    INPUT,
    OUTPUT,
    ComponentPlace,
    NoPlace,
    NormPlace,
    Place,
    Plan,
    ResidualPlace,
)
from normlens.studies.model_calls import alone, call, first_of, with_input
from normlens.trace.locking import Change, Hooks, other_forwards
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.lens import Lens

# Reading and replacing vectors at places of chosen layers while the model runs.
#
# Blocks are counted as they are called, because a family may run one block several times
# (ALBERT). A block before a given layer can be passed by: it then returns what it returned
# before.


#: Called with the vectors at a place (b, i, d); returns others to put there, or None.
Visitor = Callable[[Tensor], Tensor | None]


class LayerHooks:
    """Call functions on the vectors at chosen places of layers, in one thread's calls."""

    def __init__(self, adapter: Adapter):
        self._adapter = adapter
        self._blocks: Sequence[nn.Module] = list(adapter.blocks())
        #: By module and event, then by layer.
        self._visitors: dict[tuple[nn.Module, str], dict[int, list[Visitor]]] = {}
        self._kept: dict[int, Any] = {}
        self._keep: Sequence[int] = ()
        self._seen: Counter[tuple[nn.Module, str]] = Counter()
        self._shape: Any = None  # (b, i, d) of the layer that runs
        self._layer = -1

    def visit(self, layer: int, place: Place, visitor: Visitor) -> None:
        """Register a visitor of this layer's vectors at this place."""
        key = (place.module or self._blocks[layer], place.event)
        self._visitors.setdefault(key, {}).setdefault(layer, []).append(visitor)

    @contextmanager
    def on(
        self, kept: dict[int, Any] | None = None, *, skip: int = -1, keep: Sequence[int] = ()
    ) -> Iterator[None]:
        """Install the hooks; skip the layers up to `skip`, which return `kept[skip]`.

        What the blocks of the layers `keep` return is copied into `kept`. Everything is taken off
        again on every way out. One call of the model is expected.
        """
        self._layer, self._keep = -1, keep
        self._kept = {} if kept is None else kept

        def passing_by(forward: Callable[..., Any]) -> Callable[..., Any]:
            def pass_by(*args: Any, **kwargs: Any) -> Any:
                if self._layer > skip:
                    return forward(*args, **kwargs)
                output = self._kept[skip]
                return _with_first(output, first_of(output).clone())  # the model may write into it

            return pass_by

        unique = list(dict.fromkeys(self._blocks))
        changes: dict[nn.Module, Change] = dict.fromkeys(unique if skip >= 0 else (), passing_by)
        with Hooks() as hooks, other_forwards(changes):
            for block in unique:
                hooks.before(block, self._begin)
            for module, event in self._visitors:
                if event == INPUT:
                    hooks.before(module, self._before)
                else:
                    hooks.behind(module, self._behind)
            for block in unique:
                hooks.behind(block, self._end)
            yield
        if self._layer + 1 != len(self._blocks):
            raise UnsupportedModelError(f"{self._layer + 1} of its {len(self._blocks)} blocks ran")

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._layer += 1
        self._seen.clear()
        self._shape = (args[0] if args else kwargs["hidden_states"]).shape

    def _end(self, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        if self._layer in self._keep:
            kept = output
            if isinstance(output, (tuple, list)):  # no other tensors are kept
                kept = type(output)([None if isinstance(one, Tensor) else one for one in output])
            self._kept[self._layer] = _with_first(kept, first_of(output).clone())
        for key, visitors in self._visitors.items():
            if self._layer in visitors and self._seen[key] != 1:
                raise UnsupportedModelError(
                    f"{self._adapter.name_of(key[0])} ran {self._seen[key]} times"
                )

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_input(partial(self._called, (module, INPUT)), args, kwargs)

    def _behind(self, module: nn.Module, _: Any, __: Any, output: Any) -> Any:
        changed = self._called((module, OUTPUT), first_of(output))
        return None if changed is None else _with_first(output, changed)

    def _called(self, key: tuple[nn.Module, str], given: Tensor) -> Tensor | None:
        visitors = self._visitors[key].get(self._layer, ())
        self._seen[key] += 1
        changed: Tensor | None = None
        for visitor in visitors:
            now = given if changed is None else changed
            new = visitor(now.reshape(self._shape))
            changed = changed if new is None else new.reshape(given.shape)
        return changed


def _with_first(output: Any, vectors: Tensor) -> Any:
    """Return a module's output with its vectors replaced."""
    if isinstance(output, (tuple, list)):
        return type(output)([vectors, *output[1:]])
    return vectors


# Interventions in the real model: a component's vectors are replaced while it runs.
#
# Nothing of the model is written: hooks replace what passes between its modules, and are taken
# off on every way out. What "left out" means: the norm returns its input. Behind a residual
# connection (post-norm) the layer then hands on the plain sum; before a block (pre-norm) the
# block reads the residual stream as it is; an RMSNorm is left out in the same way.


class Interventions:
    """The ablations of one model."""

    def __init__(self, lens: Lens, statistics: Statistics, seed: int = 0):
        self.lens, self.seed = lens, seed
        self.plan = Plan(lens.layers, lens.name)
        self.statistics = statistics
        #: Layers and components whose replacement was compared with the model's vectors already.
        self._compared: set[tuple[int, str]] = set()

    def check(self, ablation: ablations.Ablation) -> None:
        """Raise one line where the statistics lack what an ablation needs."""
        frozen = ablation.kind == ablations.FROZEN_SIGMA
        gathered = self.statistics.sigmas if frozen else self.statistics.means
        for layer in ablation.layers if ablation.needs_statistics else ():
            if (layer, ablation.component) not in gathered:
                raise InputError(
                    f"{ablation.kind} needs statistics of {ablation.component} in layer {layer}; "
                    "normlens.ablate gathers them"
                )

    @contextmanager
    def applied(
        self,
        ablation: ablations.Ablation | None,
        keys: Sequence[str],
        *,
        kept: dict[int, Any] | None = None,
        skip: int = -1,
        keep: Sequence[int] = (),
    ) -> Iterator[None]:
        """Replace a component in the next call of the model, whose rows have these keys.

        None replaces nothing. `kept`, `skip` and `keep` are those of `LayerHooks.on`. What is
        resampled depends on the seed, the row's key, the layer, the component and the position.
        """
        hooks = LayerHooks(self.lens.adapter)
        if ablation is not None:
            for layer in ablation.layers:
                self._intervene(hooks, ablation, layer, keys)
        with hooks.on(kept, skip=skip, keep=keep):
            yield

    def _intervene(
        self, hooks: LayerHooks, ablation: ablations.Ablation, layer: int, keys: Sequence[str]
    ) -> None:
        place = self.plan.place(layer, ablation.component)
        if isinstance(place, NormPlace):
            self._norm(hooks, ablation, layer, place)
        elif isinstance(place, ResidualPlace):
            self._residual(hooks, ablation, layer, place, keys)
        elif ablation.component == ablations.LAYER and ablation.kind == ablations.ZERO:
            # The layer's output is its input.
            seen: list[Tensor] = []
            hooks.visit(layer, Place(None, INPUT), seen.append)
            hooks.visit(layer, place, lambda _: seen.pop())
        else:
            hooks.visit(layer, place, self._replacement(ablation, layer, keys))

    def _replacement(
        self, ablation: ablations.Ablation, layer: int, keys: Sequence[str]
    ) -> Callable[[Tensor], Tensor]:
        """Make the replacement of vectors (b, i, d): zeros, the corpus mean, or sampled vectors."""
        kind, component = ablation.kind, ablation.component
        if kind == ablations.ZERO:
            return torch.zeros_like
        if kind == ablations.MEAN:
            mean = self.statistics.means[layer, component]
            # A copy, because some models add to what they get in place.
            return lambda y: mean.to(y).expand_as(y).clone()
        sample = self.statistics.samples[layer, component]

        def resampled(y: Tensor) -> Tensor:
            rows = [
                draws(y.shape[1], "resample", self.seed, key, layer, component) % len(sample)
                for key in keys
            ]
            places = torch.as_tensor(np.stack(rows).astype(np.int64))
            return sample.to(y)[places.to(y.device)]

        return resampled

    def _residual(
        self,
        hooks: LayerHooks,
        ablation: ablations.Ablation,
        layer: int,
        place: ResidualPlace,
        keys: Sequence[str],
    ) -> None:
        """Turn ``terms + branch`` into ``terms + replacement`` wherever the sum is read."""
        replacement = self._replacement(ablation, layer, keys)
        seen: dict[Place, Tensor] = {}

        def keep(at: Place, y: Tensor) -> None:
            seen[at] = y.clone()  # some models (Falcon) add to a block's output in place later

        for at in dict.fromkeys((*place.terms, place.branch, *place.later)):
            hooks.visit(layer, at, partial(keep, at))

        def sum_of(places: Sequence[Place]) -> Tensor:
            """The sum of vectors that were seen, in the order of the layer's steps."""
            return reduce(torch.add, [seen[place] for place in places])

        def changed(total: Tensor) -> Tensor:
            branch, terms = seen[place.branch], sum_of(place.terms)
            self._compare(layer, ablation.component, terms + branch, total)
            return terms + replacement(branch)

        def carried(_: Tensor) -> Tensor:
            return sum_of(place.terms) + replacement(seen[place.branch]) + sum_of(place.later)

        for reader in place.readers:
            hooks.visit(layer, reader, changed)
        if place.later:
            hooks.visit(layer, Place(None, OUTPUT), carried)

    def _norm(
        self, hooks: LayerHooks, ablation: ablations.Ablation, layer: int, place: NormPlace
    ) -> None:
        kind, component = ablation.kind, ablation.component
        output = Place(place.module, OUTPUT)
        if kind not in (ablations.FROZEN_SIGMA, ablations.NO_AFFINE, ablations.LEFT_OUT):
            dimensions = self.plan.dimensions(layer, component, kind, ablation.draw, self.seed)
            hooks.visit(layer, output, lambda y: y.index_fill(-1, dimensions.to(y.device), 0))
            return
        seen: list[Tensor] = []
        hooks.visit(layer, Place(place.module, INPUT), seen.append)

        def changed(y: Tensor) -> Tensor:
            x = seen.pop()
            if kind == ablations.LEFT_OUT:
                return x.to(y.dtype)
            wide = x.to(self.lens.compute_dtype)
            norm = cast(place.norm, wide.dtype)
            real = FrozenNorm.at(norm, wide)
            self._compare(layer, component, real.apply(wide), y)
            if kind == ablations.NO_AFFINE:
                plain = replace(norm, gamma=None, beta=None)
                return FrozenNorm(plain, real.inverse_deviation).apply(wide).to(y.dtype)
            inverse = 1 / float(self.statistics.sigmas[layer, component])
            mean = torch.full_like(real.inverse_deviation, inverse)
            return FrozenNorm(norm, mean).apply(wide).to(y.dtype)

        hooks.visit(layer, output, changed)

    def _compare(self, layer: int, component: str, described: Tensor, real: Tensor) -> None:
        """Raise where a component is not what its adapter says, such as a scaled residual."""
        if (layer, component) in self._compared:
            return
        wide = described.to(self.lens.compute_dtype), real.to(self.lens.compute_dtype)
        error = float((wide[0] - wide[1]).norm() / wide[1].norm())
        if not math.isfinite(error):
            return  # other ablated layers may make values overflow; nothing can be compared then
        tolerance = TOLERANCE[self.lens.dtype]
        if error > tolerance:
            raise UnsupportedModelError(
                f"{component} in layer {layer} is off by {error:.1e} (at most {tolerance:.0e})"
            )
        self._compared.add((layer, component))


# What ablations put in a component's place: means and samples of its vectors over a corpus.
#
# A first pass over sequences of their own gathers, for each layer: the mean output of every block
# and of the layer, the mean vector that each residual connection adds, the mean deviation σ of
# each norm, and the same vectors at some hundred positions, which resampling draws from. All
# tokens count, special ones included, because an ablation replaces a component at all of them;
# padding never does.


FORMAT = "normlens ablation statistics 2"

#: Positions that are kept for resampling.
RESERVOIR = 256

#: A layer and a component of it.
Where = tuple[int, str]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Means, deviations and samples of one model's components."""

    means: Mapping[Where, Tensor]  # float64 (d,)
    sigmas: Mapping[Where, Tensor]  # float64 (1,)
    samples: Mapping[Where, Tensor]  # (sample, d), in the model's precision

    def save(self, path: str | Path) -> None:
        """Write a safetensors file atomically."""
        tensors = {
            f"{part}/{layer}/{component}": tensor.contiguous()
            for part, values in vars(self).items()
            for (layer, component), tensor in values.items()
        }
        with writing(path, overwrite=True) as temporary:
            save_file(tensors, temporary, metadata={"format": FORMAT})

    @classmethod
    def load(cls, path: str | Path, digest: str | None = None) -> Statistics:
        """Read what `save` wrote; refuse a file with another `digest`."""
        if digest is not None and digest_of(path) != digest:
            raise InputError(f"{str(path)!r} is not the run's own file; put that back")
        parts: dict[str, dict[Where, Tensor]] = {"means": {}, "sigmas": {}, "samples": {}}
        try:
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get("format") != FORMAT:
                    raise InputError(f"{str(path)!r} holds no ablation statistics")
                for name in file.keys():  # noqa: SIM118
                    part, layer, component = name.split("/", 2)
                    parts[part][int(layer), component] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {str(path)!r} ({reason_of(error)})") from error
        return cls(**parts)


def digest_of(path: str | Path) -> str:
    """A hash of a file of statistics, which the manifest records."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r} ({reason_of(error)})") from error


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
    """Gather a model's statistics over sequences that are not measured.

    `keys` name the sequences (by default their numbers); which positions are kept for resampling
    depends on the seed, the key and the position alone. Give them as the loss has the model read
    them (`Question.encoded`), with masks where it masks. The result is the same for any order and
    any size of batches but for rounding.
    """
    names = [str(i) for i in range(len(sequences))] if keys is None else list(keys)
    places = Plan(lens.layers, lens.name).places
    sums: dict[Where, Tensor] = {}
    samples: dict[Where, Tensor] = {}
    priorities = np.empty(0, np.uint64)  # of the positions that are kept, the lowest first
    for batch in batches(lens, sequences, batch_size):
        new = [draws(len(sequences[i]), "position", seed, names[i]) for i in batch]
        everything = np.concatenate([priorities, *new])
        kept = np.argsort(everything, kind="stable")[:reservoir]
        priorities = everything[kept]
        chosen = torch.as_tensor(kept)
        _add_batch(lens, places, [sequences[i] for i in batch], chosen, sums, samples)
    positions = sum(map(len, sequences))
    means = {where: (total / positions).cpu() for where, total in sums.items()}
    return Statistics(
        means={where: mean for where, mean in means.items() if where in samples},
        sigmas={where: mean for where, mean in means.items() if where not in samples},
        samples={where: rows.cpu() for where, rows in samples.items()},
    )


def _add_batch(
    lens: Lens,
    places: Sequence[Mapping[str, ComponentPlace | NoPlace]],
    batch: Sequence[Encoded],
    kept: Tensor,
    sums: dict[Where, Tensor],
    samples: dict[Where, Tensor],
) -> None:
    """Run the model on a batch; `kept` indexes the positions to keep, earlier ones first."""
    inputs = model_inputs(lens.adapter, batch, lens.device)
    real = inputs["attention_mask"].bool()  # (b, i)
    hooks = LayerHooks(lens.adapter)

    def add(where: Where, norm: Norm | None, y: Tensor) -> None:
        rows = y[real]
        wide = rows.double()
        if norm is None:
            before = samples.get(where, rows[:0])
            samples[where] = torch.cat([before, rows])[kept.to(y.device)]
        else:
            wide = 1 / FrozenNorm.at(cast(norm, wide.dtype), wide).inverse_deviation
        sums[where] = sums.get(where, 0) + wide.sum(0)

    for layer, components in enumerate(places):
        for component, place in components.items():
            where = (layer, component)
            if isinstance(place, NormPlace):
                hooks.visit(layer, Place(place.module, INPUT), partial(add, where, place.norm))
            elif not isinstance(place, NoPlace):
                read = place.branch if isinstance(place, ResidualPlace) else place
                hooks.visit(layer, read, partial(add, where, None))

    def run() -> None:
        with hooks.on():
            call(lens, lens.adapter.model, inputs)

    alone(lens, run)


# The first pass of an ablation, kept in a file beside its runs.


def first_pass(
    lens: Lens,
    loss: Loss,
    data: AblationData,
    options: ablations.AblateOptions,
    path: Path,
    batch_size: int | str = "auto",
) -> None:
    """Gather a model's statistics over the reference data and write them."""
    texts: list[EncodedRecord] = []
    limits = [n for n in (options.max_length, lens.max_tokens) if n is not None]
    encode = encode_apart if data.apart else encode_record
    for record in data.reference_records():
        # Encoded as the measured ones are; unreadable records are skipped.
        with suppress(InputError):
            encoded = encode(record, lens.tokenizer, max_length=min(limits), causal=lens.causal)
            if loss.name == ablations.MASKED:
                asked = loss.question(encoded, record.id).encoded
                encoded = replace(encoded, ids=asked.ids, tokens=asked.tokens)
            texts.append(encoded)
            if encoded.second is not None:
                texts.append(replace(encoded.second, id=f"{record.id}\nsecond"))
    if not texts:
        raise InputError(f"the first pass can read none of its sequences ({data.note})")
    keys = [text.id for text in texts]
    gather(lens, texts, keys=keys, seed=options.seed, batch_size=batch_size).save(path)

"""From texts to labelled maps of every layer, by any rule, and their rollout.

What every method needs around its formula: batches, labels, and the checks that a lens does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from normlens.analysing.batches import batches, launched
from normlens.analysing.verdicts import check_completeness
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.errors import InputError
from normlens.options import AnalysisOptions
from normlens.parsing import parse_bytes
from normlens.results.maps import Maps
from normlens.results.rolled import rolled_out
from normlens.text import Encoded, Text, Texts
from normlens.tracing.model_inputs import model_inputs, without_autocast
from normlens.tracing.recorder import LayerTrace
from normlens.tracing.trace import trace

if TYPE_CHECKING:
    from normlens.lens import Lens

#: A text, a list of them, or sequences that `Lens.encode` made of texts or token ids.
Given: TypeAlias = Text | Texts | Sequence[Encoded]


@dataclass(frozen=True)
class RolloutOptions:
    """How texts are analysed together; no number depends on it but for its last digits."""

    batch_size: int | str = "auto"
    memory_limit: int | float | str | None = None
    truncate: bool = False  # whether the beginning of a text that is too long will do

    def __post_init__(self) -> None:
        parse_bytes(self.memory_limit)

    @property
    def limit(self) -> int:
        """Bytes that intermediate results may take."""
        return parse_bytes(self.memory_limit) or DEFAULT_LIMIT


@dataclass(frozen=True)
class BatchMaps:
    """One map of every layer for a batch, and how far parts and bias missed the model's vectors."""

    layers: list[Tensor]  # each (b, i, j)
    errors: list[tuple[int, str, Tensor]]  # layer, scope, worst relative error


#: Maps of a batch of sequences.
OfBatch = Callable[[list[Encoded]], BatchMaps]
#: The map (b, i, j) of a traced layer with sequences of these lengths, and the worst relative error
#: of its parts and bias.
OfLayer = Callable[[LayerTrace, Sequence[int]], tuple[Tensor, Tensor]]


def sequences(lens: Lens, text: Given, options: RolloutOptions) -> tuple[list[Encoded], bool]:
    """The sequences, and whether they were given as a list."""
    if isinstance(text, (list, tuple)) and any(isinstance(item, Encoded) for item in text):
        encoded = [item for item in text if isinstance(item, Encoded)]
        if len(encoded) < len(text):
            raise InputError("give texts, or sequences that lens.encode made; not both in one list")
        return encoded, True
    return lens.encode(text, truncate=options.truncate), isinstance(text, list)  # type: ignore[arg-type]


def as_given(maps: list[Maps], many: bool) -> Maps | list[Maps]:
    """A list for a list, and the one result for a single text."""
    return maps if many else maps[0]


def rolled_maps(
    lens: Lens,
    encoded: Sequence[Encoded],
    of_batch: OfBatch,
    options: RolloutOptions,
    *,
    scope: str,
    method: str,
    normalise: bool = True,
    rule: str = "ig",
) -> list[Maps]:
    """The rollout of what `of_batch` makes of every layer, for each sequence.

    The maps are called `scope`: what of a layer they see; `rule` is that of the nonlinearity. The
    lens analyses the texts first, as far as the attention, so that a model that is not what its
    adapter says is refused.
    """
    check_stack(lens)
    attention = AnalysisOptions(scopes="ATTN-N", nonlinearity=rule, batch_size=options.batch_size)
    analysed = lens.analyse(encoded, attention)
    labels = {id(sequence): maps for sequence, maps in zip(encoded, analysed, strict=True)}

    def finish(batch: list[Encoded], maps: BatchMaps) -> list[Maps]:
        return _packed(lens, [labels[id(sequence)] for sequence in batch], maps, scope)

    results: dict[int, Maps] = {}
    for indices in batches(lens, encoded, options.batch_size):
        done = launched([encoded[i] for i in indices], of_batch, finish, lens.device)()
        for place, maps in zip(indices, done, strict=True):
            results[place] = rolled_out(
                maps, scope, method=method, residual=0.0, normalise=normalise
            )
    return [results[place] for place in range(len(encoded))]


def traced_maps(lens: Lens, batch: Sequence[Encoded], scope: str, of_layer: OfLayer) -> BatchMaps:
    """Run the model on a batch once and take a map of every layer as it is traced.

    `of_layer` is given layers in the algebra's precision.
    """
    lengths = [len(sequence) for sequence in batch]
    maps = BatchMaps([], [])

    def consume(traced: LayerTrace) -> None:
        dtype = lens.compute_dtype
        traced = replace(
            traced,
            layer=traced.layer.to(dtype),
            x=traced.x.to(dtype),
            alphas=tuple(alpha.to(dtype) for alpha in traced.alphas),
        )
        of_pairs, error = of_layer(traced, lengths)
        maps.layers.append(of_pairs)
        maps.errors.append((traced.index, scope, error))

    inputs = model_inputs(lens.adapter, batch, lens.device)
    with without_autocast(lens.device):
        trace(lens.adapter, inputs, range(lens.n_layers), consume)
    return maps


def check_stack(lens: Lens) -> None:
    """Refuse models whose layers cannot be multiplied: what enters one did not leave the last."""
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"the layers of {lens.name} cannot be rolled out: {outside}")
    if any(attention.source for layer in lens.layers for attention in layer.attentions):
        raise InputError(
            f"the layers of {lens.name} read another sequence, which a rollout cannot follow"
        )


def _packed(lens: Lens, labelled: list[Maps], maps: BatchMaps, scope: str) -> list[Maps]:
    """The maps of each sequence of a batch, with the labels that the lens gave it."""
    numbers = [(layer, name, float(error)) for layer, name, error in maps.errors]
    check_completeness(numbers, lens.dtype)
    stacked = torch.stack(maps.layers, dim=1).cpu().numpy()  # (b, layer, i, j)
    packed = []
    for labels, array in zip(labelled, stacked, strict=True):
        n = len(labels.tokens)
        worst = max([labels.completeness, *(error for *_, error in numbers)])
        packed.append(
            replace(
                labels,
                arrays={scope: array[:, :n, :n].copy()},
                completeness=worst,
                provenance={**labels.provenance, "completeness": worst},
            )
        )
    return packed

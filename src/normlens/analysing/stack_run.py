"""One batch in one stack of layers: traced layers in, labelled maps out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normlens.analysing.collect import Collected
from normlens.analysing.columns import Columns
from normlens.analysing.outbox import Outbox
from normlens.analysing.packing import packed
from normlens.analysing.provenance import provenance
from normlens.analysing.stacks import Stack
from normlens.analysing.unlike_layers import components_in_words
from normlens.analysing.verdicts import (
    TOLERANCE,
    check_completeness,
    check_kernels,
    check_range,
)
from normlens.analysis import special_dimensions
from normlens.components import Layer
from normlens.decomposition import Settings, decompose_layer
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.head_products import ProductStore
from normlens.decomposition.results import LayerMaps
from normlens.device_constants import current
from normlens.matmul import operands_kept
from normlens.models.two_stacks import DECODER
from normlens.precisions import AUTO
from normlens.results.growing_file import Place
from normlens.results.maps import Maps
from normlens.results.tokens import TokenAxis
from normlens.text import Encoded, Text
from normlens.tracing.checks import Checks
from normlens.tracing.recorder import LayerTrace

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass
class StackRun:
    """What a batch's sequences need in a stack, and what its layers have given so far.

    `others` are the tokens of another sequence that each of them reads, if they read one.
    """

    lens: Lens
    stack: Stack
    sequences: Sequence[Encoded]
    others: Sequence[TokenAxis] = ()
    products: ProductStore | None = None
    buffers: Buffers = field(default_factory=Buffers)
    outbox: Outbox | None = None
    place: Place | None = None  # in a file that maps go to

    def __post_init__(self) -> None:
        request = self.stack.request
        self.lengths = [len(sequence) for sequence in self.sequences]
        self.columns = Columns(self.lengths, self.others)
        self.checks = Checks(
            self.lens.adapter,
            self.lens.dtype,
            self.lengths,
            self.stack.layer_in_words,
            self.columns.others,
        )
        self.collected = Collected(
            self.columns,
            request.scopes,
            self.checks,
            request.arrays,
            request.correlations,
            len(request.layers),
            self.outbox,
            request.map_dtype,
            self.place,
            self.lens.device,
        )

    def consume(self, traced: LayerTrace) -> None:
        """Take apart a layer that the model has just run; its index counts in this stack."""
        with current(traced.x.device), operands_kept():
            layer = self.check(traced)
            result = self._decomposed(traced, layer)
        self.collected.add(result, traced.index, layer)

    def _decomposed(self, traced: LayerTrace, layer: Layer) -> LayerMaps:
        request, dtype = self.stack.request, self.lens.compute_dtype
        return decompose_layer(
            layer,
            traced.x.to(dtype),
            [alpha.to(dtype) for alpha in traced.alphas],
            self.lengths,
            request.scopes,
            self._settings_of(traced.index),
            traced.real,
            None if self.products is None else self.products.of(traced.block),
            self.buffers,
            _ordinary_dimensions(layer) if request.settings.statistics else None,
            {name: vectors.to(dtype) for name, vectors in traced.sources.items()},
            dict.fromkeys(traced.sources, self.columns.others),
        )

    def check(self, traced: LayerTrace) -> Layer:
        """Compare a layer with what its adapter says; return it in the algebra's precision."""
        layer = traced.layer.to(self.lens.compute_dtype)
        self.columns.check(traced.sources)
        self.checks.add(traced, layer)
        return layer

    def _settings_of(self, layer: int) -> Settings:
        """One layer's settings: kernels are sampled in the first and the last that use them."""
        settings, layers = self.stack.request.settings, self.stack.layers
        stages = [k for k in self.stack.request.layers if layers[k].feed_forward is not None]
        sampled = layer in stages[:1] + stages[-1:]
        return settings if sampled else replace(settings, sample_kernels=False)

    def maps(self, texts: Sequence[Text | None] | None = None) -> list[Maps]:
        """Check the results and pack them up; `texts` where a sequence is one of two."""
        return collected_maps(self.lens, self.stack, self.sequences, self.collected, texts)


def collected_maps(
    lens: Lens,
    stack: Stack,
    sequences: Sequence[Encoded],
    collected: Collected,
    texts: Sequence[Text | None] | None = None,
) -> list[Maps]:
    """The maps of every sequence of a batch, if they are exact."""
    allowed = [collected.allowed(index) for index in range(len(sequences))]  # while a GPU works
    collected.wait()
    collected.checks.judge()
    errors = collected.errors()
    check_completeness(errors, lens.dtype, stack.layer_in_words)
    check_kernels(collected.kernel_errors(), collected.precision, stack.layer_in_words)
    check_range(collected.peaks(), stack.layer_in_words)
    worst = max((error for _, _, error in errors), default=math.nan)  # weights have no parts
    given = texts or [None] * len(sequences)
    return [
        packed(
            sequence,
            index,
            results,
            allowed[index],
            collected,
            _provenance(lens, stack, worst, collected),
            text,
        )
        for index, (sequence, results, text) in enumerate(
            zip(sequences, collected.sequences(), given, strict=True)
        )
    ]


def _provenance(
    lens: Lens, stack: Stack, completeness: float, collected: Collected
) -> dict[str, Any]:
    settings = stack.request.settings
    said = provenance(lens, settings.rule, completeness, TOLERANCE[lens.dtype])
    said |= {"origin": stack.request.origin, "precision": collected.precision}
    if len(collected.devices) > 1:
        said["device"] = ", ".join(map(str, collected.devices))
    if stack.request.map_dtype != AUTO:
        said["map_dtype"] = stack.request.map_dtype
    if stack.name:
        said |= {
            "stack": stack.name,
            "stack_layers": len(stack.layers),
            "components": components_in_words(stack.layers),
            "causal": stack.name == DECODER,
        }
    if (outside := lens.adapter.outside_scopes()) is not None:
        said["outside_scopes"] = outside
    if settings.rule == "shapley":
        said |= {"samples": settings.samples, "seed": settings.seed}
    return said


def _ordinary_dimensions(layer: Layer) -> Tensor | None:
    """Every dimension but the special ones of the norm behind the feed-forward block."""
    norm = layer.norm_behind_feed_forward
    return None if norm is None or norm.gamma is None else special_dimensions(norm.gamma)[1]

"""One call of a lens: batches through the model and the algebra, checked and packed up as maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normlens.advancing import Progress
from normlens.analysing.batches import affordable, batches, launched, vector_batch
from normlens.analysing.collect import Collected
from normlens.analysing.columns import Columns
from normlens.analysing.packing import packed
from normlens.analysing.provenance import provenance
from normlens.analysing.verdicts import TOLERANCE, check_completeness, check_kernels
from normlens.analysis import special_dimensions
from normlens.components import Layer
from normlens.decomposition import Settings, decompose_layer
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.head_products import ProductStore
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.errors import UnsupportedModelError
from normlens.explain.whole_maps import collect_whole_way
from normlens.options import Request
from normlens.origins import INPUT
from normlens.precisions import AUTO
from normlens.results.maps import Maps
from normlens.text import Encoded
from normlens.tracing.checks import Checks
from normlens.tracing.model_inputs import model_inputs, without_autocast
from normlens.tracing.trace import LayerTrace, trace

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Analyser:
    """What one call needs: the lens, the request, and memory that is this call's alone."""

    lens: Lens
    request: Request
    products: ProductStore | None = None
    progress: Progress | None = None
    buffers: Buffers = field(default_factory=Buffers)

    def maps(self, encoded: Sequence[Encoded], batch_size: int | str) -> list[Maps]:
        """The maps of every sequence, in the order given."""
        results: list[Maps | None] = [None] * len(encoded)
        for indices, batch in self._results(encoded, batch_size):
            for index, maps in zip(indices, batch, strict=True):
                results[index] = maps
        return [maps for maps in results if maps is not None]

    def _results(
        self, encoded: Sequence[Encoded], batch_size: int | str
    ) -> Iterator[tuple[list[int], list[Maps]]]:
        """Each batch's places and maps. A GPU works on the next one while the last is packed up."""
        device = self.lens.device
        waiting: list[tuple[list[int], Callable[[], list[Maps]]]] = []
        for indices in batches(self.lens, encoded, self._batch_size(encoded, batch_size)):
            batch = [encoded[i] for i in indices]
            waiting.append((indices, launched(batch, self._launch, self._finish, device)))
            while len(waiting) > (0 if device.type == "cpu" else 1):
                places, finish = waiting.pop(0)
                yield places, finish()
        for places, finish in waiting:
            yield places, finish()

    def _batch_size(self, encoded: Sequence[Encoded], batch_size: int | str) -> int | str:
        """The batch size that is asked for, or fewer where whole vectors would not fit."""
        if self.request.origin != INPUT:
            return batch_size
        longest = max(map(len, encoded), default=1)
        wanted = affordable(self.lens, longest) if batch_size == AUTO else int(batch_size)
        limit = self.request.settings.memory_limit or DEFAULT_LIMIT
        return vector_batch(self.lens, longest, wanted, limit)

    def _launch(self, batch: list[Encoded]) -> Collected:
        """Run the model and the algebra; on a GPU the results are not there yet."""
        if self.request.origin == INPUT:
            return collect_whole_way(self.lens, self.request, batch, self.progress)
        lens, request = self.lens, self.request
        lengths = [len(sequence) for sequence in batch]
        inputs = model_inputs(lens.adapter, batch, lens.device)
        checks = Checks(lens.adapter, lens.dtype, lengths)
        columns = Columns(lengths, self._other_tokens(inputs))
        collected = Collected(columns, request.scopes, checks, request.arrays, request.correlations)

        def consume(traced: LayerTrace) -> None:
            dtype = lens.compute_dtype
            layer = traced.layer.to(dtype)
            columns.check(traced.sources)
            checks.add(traced, layer)
            result = decompose_layer(
                layer,
                traced.x.to(dtype),
                [alpha.to(dtype) for alpha in traced.alphas],
                lengths,
                request.scopes,
                self._settings_of(traced.index),
                traced.real,
                None if self.products is None else self.products.of(traced.block),
                self.buffers,
                _ordinary_dimensions(layer) if request.settings.statistics else None,
                {name: vectors.to(dtype) for name, vectors in traced.sources.items()},
            )
            collected.add(result, traced.index, layer)
            if self.progress is not None:
                self.progress(request.layers.index(traced.index) + 1, len(request.layers))

        with without_autocast(lens.device):
            trace(lens.adapter, inputs, request.layers, consume)
        return collected

    def _settings_of(self, layer: int) -> Settings:
        """One layer's settings: kernels are sampled in the first and the last that use them."""
        settings, layers = self.request.settings, self.lens.layers
        stages = [k for k in self.request.layers if layers[k].feed_forward is not None]
        sampled = layer in stages[:1] + stages[-1:]
        return settings if sampled else replace(settings, sample_kernels=False)

    def _other_tokens(self, inputs: Mapping[str, Tensor]) -> list[list[str]]:
        """Each text's tokens of the other sequence that layers read; none if they read none."""
        lens = self.lens
        names = {a.source for layer in lens.layers for a in layer.attentions if a.source}
        if len(names) > 1:
            raise UnsupportedModelError(
                f"the layers of {lens.name} read several other sequences "
                f"({', '.join(sorted(names))}); NormLens can label the columns of one"
            )
        return lens.adapter.source_tokens(names.pop(), inputs) if names else []

    def _finish(self, batch: list[Encoded], collected: Collected) -> list[Maps]:
        """Check a batch's results and pack them up."""
        collected.checks.judge()
        errors = collected.errors()
        check_completeness(errors, self.lens.dtype)
        check_kernels(collected.kernel_errors(), collected.precision)
        worst = max((error for _, _, error in errors), default=math.nan)  # weights have no parts
        return [
            packed(
                sequence, index, results, collected, self._provenance(worst, collected.precision)
            )
            for index, (sequence, results) in enumerate(
                zip(batch, collected.sequences(), strict=True)
            )
        ]

    def _provenance(self, completeness: float, precision: str | None) -> dict[str, Any]:
        lens, settings = self.lens, self.request.settings
        said = provenance(lens, settings.rule, completeness, TOLERANCE[lens.dtype])
        said |= {"origin": self.request.origin, "precision": precision}
        if (outside := lens.adapter.outside_scopes()) is not None:
            said["outside_scopes"] = outside
        if settings.rule == "shapley":
            said |= {"samples": settings.samples, "seed": settings.seed}
        return said


def _ordinary_dimensions(layer: Layer) -> Tensor | None:
    """Every dimension but the special ones of the norm behind the feed-forward block."""
    norm = layer.norm_behind_feed_forward
    return None if norm is None or norm.gamma is None else special_dimensions(norm.gamma)[1]

"""One call of `Lens.maps`: batches through the model and the frozen layers, checked and packed."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.errors import CompletenessError, InputError, UnsupportedModelError, is_out_of_memory
from normlens.explain.whole_vectors import collect_whole_way
from normlens.frozen.head_products import ProductStore
from normlens.frozen.norm_maps import decompose_layer
from normlens.frozen.scores import PARTS
from normlens.frozen.tiles import Buffers
from normlens.gpu.graphs import HAS_GRAPH_EVENTS, Captured, Inputs, ModelState, described
from normlens.gpu.matmul import operands_kept
from normlens.gpu.transfer import DeviceTransfer, current
from normlens.inputs.text import Encoded
from normlens.layers import FeedForward, Layer
from normlens.measures.maps import special_dimensions
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import AUTO, DEFAULT_LIMIT, INPUT, SHAPLEY, AnalysisOptions, Request
from normlens.pipeline.batches import (
    affordable,
    batches,
    chosen_scopes,
    launched,
    part_batch,
    scopes_of,
    vector_batch,
)
from normlens.pipeline.collector import Collector, token_axis
from normlens.pipeline.comparisons import Seen
from normlens.pipeline.progress import Progress
from normlens.plan.costs import check_limit, check_vectors_limit
from normlens.results.axes import TokenAxis
from normlens.results.files import GrowingFile
from normlens.results.maps import Maps
from normlens.scopes import is_among, resolve
from normlens.trace.run import LayerTrace, model_inputs, trace, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# What one call asks of each stack of layers: all of a model's, or its encoder's and decoder's.


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another, and what is asked of them."""

    layers: Sequence[Layer]
    request: Request  # its layers count from this stack's first
    first: int = 0  # the place of the stack's first layer among all that the model runs
    name: str = ""  # `ENCODER` or `DECODER`; empty: the model has no other

    @property
    def layer_in_words(self) -> str:
        """How errors call a layer of this stack."""
        return f"{self.name} layer" if self.name else "layer"


def stacks_of(
    lens: Lens, options: AnalysisOptions, arrays: bool, correlations: bool
) -> tuple[Stack, ...]:
    """What `options` ask of a lens's stacks; an encoder of which nothing is asked is left out."""

    def request(scopes: list[str], layers: list[int]) -> Request:
        settings = options.settings
        return Request(
            scopes, layers, settings, arrays, correlations, options.origin, options.map_dtype
        )

    if not isinstance(lens.adapter, TwoStacks):
        chosen = options.layers_of(lens.n_layers, lens.name)
        scopes = chosen_scopes(options, lens.layers, chosen, lens.name)
        return (Stack(lens.layers, request(scopes, chosen)),)
    both = layers_by_stack(lens.adapter, lens.layers)
    longest = max(both, key=lambda name: len(both[name]))
    options.layers_of(len(both[longest]), f"its {longest}")  # raises for one that no stack has
    stacks, first = [], 0
    for name, layers in both.items():
        chosen = _layers(options, len(layers))
        scopes = _scopes(options, [layers[index] for index in chosen], lens.layers)
        if chosen and scopes:
            stacks.append(Stack(layers, request(scopes, chosen), first, name))
        first += len(layers)
    if not stacks or stacks[-1].name != DECODER:
        raise InputError(
            "only layers or scopes of the encoder are asked for; ask for some of the decoder's, "
            f"too: {', '.join(scopes_of(both[DECODER]))} in its {len(both[DECODER])} layers"
        )
    return tuple(stacks)


def layers_by_stack(adapter: TwoStacks, layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """The layers of an encoder–decoder, which it runs one stack after the other, by stack."""
    count = len(adapter.encoder_blocks())
    return {ENCODER: list(layers[:count]), DECODER: list(layers[count:])}


def _layers(options: AnalysisOptions, count: int) -> list[int]:
    """The chosen layers that a stack of so many has."""
    if options.layers is None or isinstance(options.layers, str):
        return list(range(count))
    listed = options.layers if isinstance(options.layers, Iterable) else [options.layers]
    return sorted({int(layer) % count for layer in listed if -count <= layer < count})


def _scopes(
    options: AnalysisOptions, here: Sequence[Layer], everywhere: Sequence[Layer]
) -> list[str]:
    """The chosen scopes that these layers have; short names mean scopes of this stack."""
    available = scopes_of(here)
    if options.scopes is None or options.scopes == "all":
        return options.scopes_of(available)
    names = [options.scopes] if isinstance(options.scopes, str) else list(options.scopes)
    meant = [name for name in names if is_among(name, available)]
    for name in names:
        if not any(is_among(name, layer.scopes) for layer in everywhere):
            resolve(name, scopes_of(everywhere))  # raises, and lists them all
    return [] if names and not meant else replace(options, scopes=meant).scopes_of(available)


def check_memory_limit(lens: Lens, stack: Stack, items: Sequence[Encoded]) -> None:
    """Raise unless the limit that a user gives suffices for what is asked of a stack."""
    request, itemsize = stack.request, lens.compute_dtype.itemsize
    limit = request.settings.memory_limit or DEFAULT_LIMIT
    both = [item.sequences for item in items]
    if request.origin == INPUT:
        # A token of a source has vectors in both stacks.
        lengths = [sum(map(len, sequences)) for sequences in both]
        check_vectors_limit(limit, lens.layers, lengths, itemsize)
        return
    reads_encoder = stack.name == DECODER
    check_limit(
        limit,
        [stack.layers[index] for index in request.layers],
        [len(sequences[-1 if reads_encoder else 0]) for sequences in both],
        lens.scopes if request.settings.statistics else request.scopes,
        request.settings.rule,
        itemsize,
        [len(sequences[0]) for sequences in both] if reads_encoder else (),
    )


# Batches of one shape that are replayed as CUDA graphs (`normlens.pipeline.recordings`).


#: Operations of a layer's feed-forward stage, and tokens of a batch, up to which launching a layer
#: may take longer than running it.
OPERATIONS, TOKENS = 4e13, 1 << 14


class Recording:
    """One batch's kernels, with the tensors that they read and write."""

    def __init__(
        self, run: Callable[[dict[str, Tensor]], list[Collector]], inputs: Inputs, state: ModelState
    ):
        self.state, self.used = state, threading.Lock()
        self._captured = Captured(run, inputs)
        self.bytes = self._captured.bytes
        self._last: list[weakref.ref[Collector]] = []  # whose results the last replay leaves

    @property
    def pending(self) -> bool:
        """Whether results of the last replay are not taken yet."""
        return any((last := each()) is not None and last.pending for each in self._last)

    def replay(self, inputs: Inputs, into: Sequence[Collector]) -> bool:
        """Run the same on other inputs, with results for each of the recorded stacks.

        False if the model is no longer the one that was recorded, which is found out meanwhile.
        """
        for last in self._last:
            if (collector := last()) is not None:
                collector.take()
        recorded = self._captured.replay(inputs)
        if not self.state.holds():
            return False
        for collector, of_stack in zip(into, recorded, strict=True):
            collector.replayed(of_stack, self)
        self._last = [weakref.ref(collector) for collector in into]
        return True


# The call itself.


@dataclass(frozen=True)
class Call:
    """One call of a lens, with the memory that is this call's alone."""

    lens: Lens
    stacks: tuple[Stack, ...]  # the decoder, or the model's only one, is the last
    products: ProductStore | None = None
    progress: Progress | None = None
    transfer: DeviceTransfer | None = None
    buffers: Buffers = field(default_factory=Buffers)
    file: GrowingFile | None = None  # that the maps of the call's only text are written to

    @property
    def request(self) -> Request:
        """What is asked of the last stack; all have the same options."""
        return self.stacks[-1].request

    def maps(self, items: Sequence[Encoded], batch_size: int | str) -> list[Maps]:
        """The maps of every sequence or pair, in the order given."""
        device, results = self.lens.device, dict[int, Maps]()
        ahead = 0 if device.type == "cpu" else 1  # a GPU works on while the last batch is packed up
        waiting: list[tuple[list[int], Callable[[], list[Maps]]]] = []
        with current(device):
            for indices in batches(self.lens, items, self._batch_size(items, batch_size)):
                batch = [items[index] for index in indices]
                waiting.append((indices, launched(batch, self._launch, self._packed, device)))
                if len(waiting) > ahead:
                    places, finish = waiting.pop(0)
                    results |= zip(places, finish(), strict=True)
            for places, finish in waiting:
                results |= zip(places, finish(), strict=True)
        return [results[index] for index in range(len(items))]

    def _batch_size(self, items: Sequence[Encoded], batch_size: int | str) -> int | str:
        """The batch size that is asked for, or fewer where vectors of sources would not fit."""
        lens, whole_way = self.lens, self.request.origin == INPUT
        if not whole_way and not any(layer.by_source for layer in lens.layers):
            return batch_size
        longest = max((sum(map(len, item.sequences)) for item in items), default=1)
        wanted = affordable(lens, longest) if batch_size == AUTO else int(batch_size)
        limit = self.request.settings.memory_limit or DEFAULT_LIMIT
        return (vector_batch if whole_way else part_batch)(lens, longest, wanted, limit)

    def _launch(self, batch: list[Encoded]) -> list[Collector]:
        """Run the model and the algebra; on a GPU the results are not there yet."""
        lens = self.lens
        inputs = model_inputs(lens.adapter, batch, lens.device)
        if self.request.origin == INPUT:
            collectors = self._collectors(batch, inputs)
            collect_whole_way(lens, collectors, batch, inputs, self.progress)
            return collectors
        if (key := self._recording_key(batch, inputs)) is not None:
            record = partial(Recording, partial(self._recorded, batch), inputs)
            with lens.recordings.acquire(lens.model, key, record) as recording:
                if recording is not None:
                    collectors = self._collectors(batch, inputs)
                    if recording.replay(inputs, collectors):
                        return collectors
                    lens.recordings.forget()
        collectors = self._collectors(batch, inputs)
        try:
            self._run(collectors, inputs)
            for collector in collectors:
                collector.leave()
        except RuntimeError as error:
            if self.transfer is not None:
                self.transfer.wait()  # what waits there takes memory that a smaller batch needs
            may_repeat = is_out_of_memory(error) and self.file is None
            if not may_repeat or not lens.recordings.forget():
                raise
        else:
            return collectors
        return self._launch(batch)  # with the memory that recordings took

    def _recording_key(self, batch: Sequence[Encoded], inputs: Inputs) -> Hashable | None:
        """What batches have in common that a recording can stand for; None: this one has none.

        The key holds the products of weights that a prepared lens keeps, so that they stay in
        memory, and others that take their place are other ones.
        """
        lens, products = self.lens, self.products
        if lens.device.type != "cuda" or not HAS_GRAPH_EVENTS:
            return None
        if self.file is not None or self.progress is not None:
            return None
        lengths = tuple(len(sequence) for item in batch for sequence in item.sequences)
        if self.request.settings.rule == SHAPLEY or sum(lengths) > TOKENS:
            return None
        blocks = [layer.feed_forward for stack in self.stacks for layer in stack.layers]
        sizes = [block.down.weight.numel() for block in blocks if isinstance(block, FeedForward)]
        # Operations for one pair of tokens in the largest feed-forward block, of its last product.
        if sum(n * n for n in lengths) * 2 * max(sizes, default=0) > OPERATIONS:
            return None
        return (
            tuple(repr(stack.request) for stack in self.stacks),
            lengths,
            described(inputs),
            () if products is None else tuple(map(products.of, lens.adapter.blocks())),
        )

    def _recorded(self, batch: list[Encoded], inputs: dict[str, Tensor]) -> list[Collector]:
        """Run a batch so that it can be replayed: large results stay on the device."""
        call = replace(self, buffers=Buffers(), transfer=None)
        collectors = call._collectors(batch, inputs)
        call._run(collectors, inputs)
        for collector in collectors:
            collector.recorded()
        return collectors

    def _collectors(
        self, batch: Sequence[Encoded], inputs: Mapping[str, Tensor]
    ) -> list[Collector]:
        """What collects each stack's results; a decoder reads the encoder's tokens, too."""
        collectors, place = [], None
        for stack in self.stacks:
            sequences = [item.sequences[-1 if stack.name == DECODER else 0] for item in batch]
            if stack.name == DECODER:
                others = [token_axis(item.sequences[0]) for item in batch]
            else:
                others = self._other_tokens(stack, inputs)
            if self.file is not None:
                place = self.file.under("encoder/") if stack.name == ENCODER else self.file.place
            collectors.append(
                Collector(self.lens, stack, sequences, others, transfer=self.transfer, place=place)
            )
        return collectors

    def _other_tokens(self, stack: Stack, inputs: Mapping[str, Tensor]) -> list[TokenAxis]:
        """Each text's tokens of the other sequence that layers read; none if they read none."""
        lens = self.lens
        names = {a.source for layer in stack.layers for a in layer.attentions if a.source}
        if len(names) > 1:
            raise UnsupportedModelError(
                f"the layers of {lens.name} read several other sequences "
                f"({', '.join(sorted(names))}); NormLens can label the columns of one"
            )
        if not names:
            return []
        return [TokenAxis(tokens) for tokens in lens.adapter.source_tokens(names.pop(), inputs)]

    def _run(self, collectors: list[Collector], inputs: dict[str, Tensor]) -> None:
        """Run the model once; each layer is taken apart as soon as it has run."""
        check, rule = self.lens.float32_check, self.request.settings.rule
        layers = [c.stack.first + k for c in collectors for k in c.stack.request.layers]
        kept: dict[Hashable, Seen] = {}

        def consume(traced: LayerTrace) -> None:
            collector = collectors[-1]
            if traced.index < collector.stack.first:
                collector = collectors[0]
            self._decompose(replace(traced, index=traced.index - collector.stack.first), collector)
            name = f"{collector.stack.layer_in_words} {traced.index - collector.stack.first}"
            seen = Seen(traced.index, name, traced.block, traced.call, collector.lengths)
            check.keep(kept, rule, PARTS, seen)
            if self.progress is not None:
                self.progress(layers.index(traced.index) + 1, len(layers))

        def compare() -> None:
            try:
                check.layers(rule, PARTS, kept)
            except CompletenessError:
                for collector in collectors:
                    collector.checks.judge()  # it says more of a module that is not what it seems
                raise

        with without_autocast(self.lens.device):
            trace(self.lens.adapter, inputs, layers, consume, spread=True, then=compare)

    def _decompose(self, traced: LayerTrace, collector: Collector) -> None:
        """Take apart a layer that the model has just run; its index counts in its stack."""
        stack, dtype = collector.stack, self.lens.compute_dtype
        settings = stack.request.settings
        # Kernels are sampled in the first and the last layer that use them.
        stages = [k for k in stack.request.layers if stack.layers[k].feed_forward is not None]
        if traced.index not in stages[:1] + stages[-1:]:
            settings = replace(settings, sample_kernels=False)
        with current(traced.x.device), operands_kept():
            layer = collector.check(traced)
            norm, ordinary = layer.norm_behind_feed_forward, None
            if settings.statistics and norm is not None and norm.gamma is not None:
                ordinary = special_dimensions(norm.gamma)[1]
            result = decompose_layer(
                layer,
                traced.x.to(dtype),
                [alpha.to(dtype) for alpha in traced.alphas],
                collector.lengths,
                stack.request.scopes,
                settings,
                traced.real,
                kept=None if self.products is None else self.products.of(traced.block),
                buffers=self.buffers,
                ordinary=ordinary,
                sources={name: vectors.to(dtype) for name, vectors in traced.sources.items()},
                source_lengths=dict.fromkeys(traced.sources, collector.other_lengths),
            )
        collector.add(result, traced.index, layer)

    def _packed(self, batch: list[Encoded], collectors: list[Collector]) -> list[Maps]:
        """Check a batch's results and pack them up."""
        *encoder, last = collectors
        of_encoder: Sequence[Maps | None] = [None] * len(batch)
        if encoder:
            of_encoder = encoder[0].maps([item.sequences[0].text for item in batch])
        results = last.maps([item.whole_text or item.text for item in batch])
        if not last.stack.name:
            return results
        for index, (item, decoder, beside) in enumerate(
            zip(batch, results, of_encoder, strict=True)
        ):
            # As exact as the worse of the two.
            errors = [maps.completeness for maps in (decoder, beside) if maps is not None]
            worst = max([e for e in errors if not math.isnan(e)], default=math.nan)
            said = {"completeness": worst, "target": item.generated or "given"}
            results[index] = replace(
                decoder,
                encoder=beside,
                completeness=worst,
                provenance={**decoder.provenance, **said},
            )
        return results

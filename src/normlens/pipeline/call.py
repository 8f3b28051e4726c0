"""One call of `Lens.maps`: batches through the model and the frozen layers, checked and packed."""

from __future__ import annotations

import json
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from os import PathLike, fspath
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from normlens.errors import (
    CompletenessError,
    InputError,
    UnknownScopeError,
    UnsupportedModelError,
    is_out_of_memory,
)
from normlens.explain.whole_vectors import collect_whole_way
from normlens.frozen.head_products import ProductStore
from normlens.frozen.layer import freeze
from normlens.frozen.norm_maps import last_frozen_step, layer_maps
from normlens.frozen.scores import PARTS
from normlens.frozen.tiles import Buffers
from normlens.gpu.graphs import HAS_GRAPH_EVENTS, Captured, Inputs, ModelState, described
from normlens.gpu.matmul import operands_kept
from normlens.gpu.transfer import DeviceTransfer, current
from normlens.inputs.text import Encoded
from normlens.layers import FeedForward, Layer
from normlens.measures.maps import special_dimensions
from normlens.models.parts import DECODER, ENCODER
from normlens.options import INPUT, LAYER, SHAPLEY, AnalysisOptions
from normlens.pipeline import batches
from normlens.pipeline.collector import Collector
from normlens.pipeline.comparisons import Seen
from normlens.pipeline.recordings import padded
from normlens.plan import costs
from normlens.results import store
from normlens.results.axes import TokenAxis
from normlens.results.files import GrowingFile
from normlens.results.maps import Maps
from normlens.scopes import (
    OWN_SCOPES,
    WEIGHT_SCOPES,
    is_among,
    layers_in_words,
    resolve,
    resolve_all,
)
from normlens.trace.locking import exclusive
from normlens.trace.run import LayerTrace, model_inputs, reading, run_traced

if TYPE_CHECKING:
    from normlens.lens import Lens


# What one call asks of each stack of layers: all of a model's, or its encoder's and decoder's.


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another, and what is asked of them."""

    layers: Sequence[Layer] = field(repr=False)
    chosen: list[int]  # the layers that are asked for, counted from this stack's first
    scopes: list[str]
    options: AnalysisOptions
    arrays: bool = True
    correlations: bool = False
    first: int = 0  # the place of the stack's first layer among all that the model runs
    name: str = ""  # `ENCODER` or `DECODER`; empty: the model has no other
    layer_in_words: str = "layer"  # how errors call one
    sampled: Sequence[int] = ()  # the first and the last layer with kernels, which are sampled


def stacks_of(
    lens: Lens, options: AnalysisOptions, arrays: bool, correlations: bool
) -> tuple[Stack, ...]:
    """What `options` ask of a lens's stacks; an encoder of which nothing is asked is left out."""
    by_name = batches.layers_by_stack(lens.adapter, lens.layers)
    sizes = dict(zip(by_name, map(len, by_name.values()), strict=True))
    of_longest = max(sizes, key=sizes.__getitem__)
    called = f"its {of_longest}" if of_longest else lens.name
    stacks, first = [], 0
    for name, layers in by_name.items():
        chosen = options.layers_of(len(layers), called, sizes[of_longest])
        scopes = _chosen_scopes(lens, options, layers, chosen) if chosen else []
        if not name or scopes:
            stages = list[int]()
            for index in chosen:
                stages += [index] if layers[index].feed_forward is not None else []
            given = layers, chosen, scopes, options, arrays, correlations, first, name
            stacks.append(Stack(*given, f"{name} layer".lstrip(), stages[:1] + stages[-1:]))
        first += len(layers)
    if lens.adapter.two_stacks and (not stacks or stacks[-1].name != DECODER):
        raise InputError(
            "only layers or scopes of the encoder are asked for; ask for some of the decoder's, "
            f"too: {', '.join(batches.scopes_of(layers))} in its {len(layers)} layers"
        )
    return tuple(stacks)


def _chosen_scopes(
    lens: Lens, options: AnalysisOptions, layers: Sequence[Layer], chosen: Sequence[int]
) -> list[str]:
    """The scopes asked for that the chosen layers of a stack have, in their order.

    Short names mean scopes of theirs. One that no layer of the model has is an error; in a model of
    one stack, one that none of the chosen layers has.
    """
    here = list(map(layers.__getitem__, chosen))
    scopes, asked = batches.scopes_of(here), options.scopes
    takes_all = asked is None or asked == "all"
    if not takes_all:
        names = [asked] if isinstance(asked, str) else list(asked or ())
        scopes = batches.scopes_of(here, own=True)
        meant = [name for name in names if is_among(name, scopes)]
        for name in names:
            every = [(*layer.scopes, *layer.own_scopes) for layer in lens.layers]
            in_model = any(is_among(name, each) for each in every)
            if not in_model and is_among(name, OWN_SCOPES):
                raise UnknownScopeError(
                    f"no layer of {lens.name} ({lens.component_sequence}) has all components of "
                    f"{resolve(name, [*OWN_SCOPES])}, in this order"
                )
            if name not in meant and not (lens.adapter.two_stacks and in_model):
                scope = resolve(name, batches.scopes_of(lens.layers, own=True))
                having = [k for k, each in enumerate(every) if scope in each]
                raise InputError(
                    f"no scope {scope} in {layers_in_words(chosen)} of {lens.name}, whose layers "
                    f"differ; those with it: {', '.join(map(str, having))}"
                )
        if names and not meant:
            return []  # all of them are the other stack's
        scopes = resolve_all(meant, scopes)
    if not (scopes or options.heads or options.statistics):
        raise InputError("no scope is chosen; leave `scopes` out to take all")
    if options.origin == LAYER:
        return scopes
    if own := [scope for scope in scopes if scope in OWN_SCOPES]:
        raise InputError(
            f"{own[0]} is of one layer and its own sources; leave it out, or take origin={LAYER!r}"
        )
    weights = [scope for scope in scopes if scope in WEIGHT_SCOPES]
    if weights and not takes_all:
        raise InputError(
            f"{weights[0]} shows one layer's attention weights, which do not go back to the "
            f"input tokens; choose scopes that end in -N, or take origin={LAYER!r}"
        )
    return [scope for scope in scopes if scope not in weights]


def check_memory_limit(lens: Lens, stack: Stack, items: Sequence[Encoded]) -> None:
    """Raise unless the limit that a user gives suffices for what is asked of a stack."""
    options, itemsize = stack.options, lens.compute_dtype.itemsize
    limit = options.limit
    both = [item.sequences for item in items]
    if options.origin == INPUT:
        # A token of a source has vectors in both stacks.
        lengths = [sum(map(len, sequences)) for sequences in both]
        costs.check_vectors_limit(limit, lens.layers, lengths, itemsize)
        return
    reads_encoder = stack.name == DECODER
    costs.check_limit(
        limit,
        [stack.layers[index] for index in stack.chosen],
        [len(sequences[-1 if reads_encoder else 0]) for sequences in both],
        lens.scopes if options.statistics else stack.scopes,
        options.nonlinearity,
        itemsize,
        [len(sequences[0]) for sequences in both] if reads_encoder else (),
    )


# Maps of one long text that go to a file layer by layer, so that memory never holds them all.


#: Bytes of a header that are kept for the provenance, the names of arrays and their checksums; for
#: the layers that an array covers; and how often a token's label may stand in it, in JSON within
#: JSON.
ROOM, ROOM_OF_LAYER, LABELS = 1 << 17, 1 << 10, 8


def check_out(out: str | PathLike[str], items: Sequence[Encoded], origin: str) -> None:
    """Raise unless these maps can be written to this file one layer after the other."""
    if not fspath(out).lower().endswith(store.ENDING):
        raise InputError(
            f"`out` names a {store.ENDING} file, which maps are written to while they are "
            f"computed, not {fspath(out)!r}; leave it out and export the maps for other formats"
        )
    if len(items) != 1:
        raise InputError(
            f"`out` takes the maps of one text, and {len(items)} are given; call it for each"
        )
    if origin == INPUT:
        raise InputError(
            f"with origin={INPUT!r} the maps of all layers are finished together, so that `out` "
            "cannot take one after the other; leave it out and save the maps"
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
    options: AnalysisOptions
    stacks: tuple[Stack, ...]  # the decoder, or the model's only one, is the last
    products: ProductStore | None = None
    progress: batches.Progress | None = None
    transfer: DeviceTransfer | None = None
    buffers: Buffers = field(default_factory=Buffers)
    file: GrowingFile | None = None  # that the maps of the call's only text are written to

    @cached_property
    def layers(self) -> list[int]:
        """The layers that are asked for, among all that the model runs."""
        layers = list[int]()
        for stack in self.stacks:
            layers += map(stack.first.__add__, stack.chosen)
        return layers

    def maps(self, items: Sequence[Encoded], batch_size: int | str) -> list[Maps]:
        """The maps of every sequence or pair, in the order given.

        A batch that runs out of memory is halved.
        """
        lens, whole = self.lens, self.options.origin == INPUT
        if whole or any(map(attrgetter("by_source"), lens.layers)):
            longest = max((sum(map(len, item.sequences)) for item in items), default=1)
            limit = self.options.limit
            batch_size = batches.vector_batch(lens, longest, batch_size, limit, whole)
        ahead = 0 if lens.device.type == "cpu" else 1  # a GPU works on while a batch is packed up
        results: dict[int, Maps] = {}
        waiting = deque(batches.batches(lens, items, batch_size))
        started: deque[tuple[list[int], list[Collector]]] = deque()
        with current(lens.device):
            while waiting or started:
                launches = bool(waiting) and len(started) <= ahead
                places = waiting.popleft() if launches else started[0][0]
                batch = list(map(items.__getitem__, places))
                try:
                    if launches:
                        started.append((places, self._launch(batch)))
                        continue
                    found = self._packed(batch, started.popleft()[1])
                except (RuntimeError, MemoryError) as error:
                    waiting.extendleft(reversed(batches.halves(lens, items, places, error)))
                else:
                    results |= zip(places, found, strict=True)
        return list(map(results.__getitem__, range(len(items))))

    def write(self, item: Encoded, out: str | PathLike[str], overwrite: bool) -> Maps:
        """Write the maps of one text to a new file and return them; they stay there until used."""
        labels = [
            (each.tokens, each.ids, each.special, each.words, each.word_labels, each.text)
            for each in item.sequences
        ]
        room = (
            ROOM + ROOM_OF_LAYER * len(self.layers) + LABELS * len(json.dumps(labels, default=str))
        )
        with store.writing(fspath(out), overwrite=overwrite) as temporary:
            file = GrowingFile(temporary, room)
            (maps,) = replace(self, file=file).maps([item], 1)
            file.finish(*store.saved(maps))
            del maps  # its arrays are in the file that gets its name now
        return Maps.load(fspath(out), mapped=True)

    def _launch(self, batch: list[Encoded]) -> list[Collector]:
        """Run the model and the algebra; on a GPU the results are not there yet."""
        lens = self.lens
        recorded = lens.device.type == "cuda" and self._may_record(batch)
        given = self._padded(batch) if recorded else batch
        inputs = model_inputs(lens.adapter, given, lens.device)
        collectors = self._collectors(batch, inputs, given)
        if self.options.origin == INPUT:
            collect_whole_way(lens, collectors, batch, inputs, self.progress)
            return collectors
        if recorded:
            record = partial(Recording, partial(self._recorded, batch, given), inputs)
            key = self._recording_key(given, inputs)
            with lens.recordings.acquire(lens.model, key, record) as recording:
                if recording is not None:
                    if recording.replay(inputs, collectors):
                        return collectors
                    lens.recordings.forget()
        try:
            exclusive(lens.model, partial(self._run, collectors, inputs))
            for collector in collectors if self.transfer is not None else ():
                collector.leave()
            return collectors
        except RuntimeError as error:
            if self.transfer is not None:
                self.transfer.wait()  # what waits there takes memory that a smaller batch needs
            may_repeat = is_out_of_memory(error) and self.file is None
            if not may_repeat or not lens.recordings.forget():
                raise
        return self._launch(batch)  # with the memory that recordings took

    def _may_record(self, batch: Sequence[Encoded]) -> bool:
        """Whether a recording can stand for batches such as this one on a GPU."""
        options = self.options
        if not HAS_GRAPH_EVENTS or self.file is not None or self.progress is not None:
            return False
        if options.origin == INPUT or options.nonlinearity == SHAPLEY:
            return False
        lengths = [len(sequence) for item in batch for sequence in item.sequences]
        blocks = [layer.feed_forward for stack in self.stacks for layer in stack.layers]
        sizes = [block.down.weight.numel() for block in blocks if isinstance(block, FeedForward)]
        # Operations for one pair of tokens in the largest feed-forward block, of its last product.
        operations = sum(n * n for n in lengths) * 2 * max(sizes, default=0)
        return sum(lengths) <= TOKENS and operations <= OPERATIONS

    def _padded(self, batch: list[Encoded]) -> list[Encoded]:
        """The batch as the model reads it, padded unless results are about all of its tokens."""
        of_all = self.options.statistics or self.options.map_dtype == "float16"
        is_plain = not of_all and not any(stack.correlations for stack in self.stacks)
        return padded(self.lens, batch) if is_plain else batch

    def _recording_key(self, batch: Sequence[Encoded], inputs: Inputs) -> Hashable:
        """What batches have in common that a recording can stand for.

        The key holds the products of weights that a prepared lens keeps, so that they stay in
        memory, and others that take their place are other ones.
        """
        products, blocks = self.products, self.lens.adapter.blocks()
        return (
            repr(self.stacks),
            tuple(len(sequence) for item in batch for sequence in item.sequences),
            described(inputs),
            () if products is None else tuple(map(products.of, blocks)),
        )

    def _recorded(
        self, batch: list[Encoded], given: list[Encoded], inputs: dict[str, Tensor]
    ) -> list[Collector]:
        """Run a batch so that it can be replayed: large results stay on the device."""
        call = replace(self, buffers=Buffers(), transfer=None)
        collectors = call._collectors(batch, inputs, given)
        exclusive(self.lens.model, partial(call._run, collectors, inputs))
        for collector in collectors:
            collector.recorded()
        return collectors

    def _collectors(
        self, batch: Sequence[Encoded], inputs: Mapping[str, Tensor], given: Sequence[Encoded]
    ) -> list[Collector]:
        """What collects each stack's results; a decoder reads the encoder's tokens, too.

        `given` is the batch as the model reads it.
        """
        collectors, place, sequences = [], None, batch
        for stack in self.stacks:
            names, others = set[str](), list[TokenAxis]()
            for layer in stack.layers:
                names.update(layer.others)
            if len(names) > 1:
                raise UnsupportedModelError(
                    f"the layers of {self.lens.name} read several other sequences "
                    f"({', '.join(sorted(names))}); NormLens can label the columns of one"
                )
            if stack.name:
                which = -1 if stack.name == DECODER else 0
                sequences = [item.sequences[which] for item in batch]
                given = sequences  # pairs are not padded up to a common size
            if stack.name == DECODER:
                others = [item.sequences[0].axis for item in batch]
            elif names:
                tokens = self.lens.adapter.source_tokens(names.pop(), inputs)
                others = list(map(TokenAxis, tokens))
            if self.file is not None:
                place = self.file.under("encoder/") if stack.name == ENCODER else self.file.place
            lengths = list(map(len, given))
            collectors.append(
                Collector(self.lens, stack, sequences, others, lengths, self.transfer, place=place)
            )
        return collectors

    def _run(self, collectors: list[Collector], inputs: dict[str, Tensor]) -> None:
        """Run the model once; each layer is taken apart as soon as it has run.

        The thread must be alone with the model.
        """
        adapter, check = self.lens.adapter, self.lens.float32_check
        kept: dict[Hashable, Seen] | None = {} if check.applies else None
        with reading(adapter.model, adapter):
            consume = partial(self._decompose, collectors, kept)
            run_traced(adapter, adapter.model, inputs, self.layers, consume, spread=True)
            if kept is None:
                return
            try:
                check.layers(self.options.nonlinearity, PARTS, kept)
            except CompletenessError:
                for collector in collectors:
                    collector.checks.judge()  # says more of a module that is not what it seems
                raise

    def _decompose(
        self, collectors: list[Collector], kept: dict[Hashable, Seen] | None, traced: LayerTrace
    ) -> None:
        """Take apart a layer that the model has just run; `kept` are layers to compare later.

        None are compared of a model in float32.
        """
        place, options = traced.index, self.options
        collector = collectors[-1 if place >= collectors[-1].stack.first else 0]
        stack = collector.stack
        index = place - stack.first
        with current(traced.x.device), operands_kept():
            traced = replace(traced, index=index).to(self.lens.compute_dtype)
            collector.checks.add(traced)
            layer, ordinary = traced.layer, None
            if options.statistics:
                norm = layer.norm_behind_feed_forward
                if norm is not None and norm.gamma is not None:
                    ordinary = special_dimensions(norm.gamma)[1]
            frozen = freeze(
                layer,
                traced.x,
                traced.alphas,
                collector.lengths,
                options.nonlinearity,
                traced.sources,
                last_frozen_step(layer, stack.scopes, options),
                source_lengths=dict.fromkeys(traced.sources, collector.other_lengths),
            )
            result = layer_maps(
                frozen,
                stack.scopes,
                options,
                traced.real,
                kept=None if self.products is None else self.products.of(traced.block),
                buffers=self.buffers,
                ordinary=ordinary,
                sample_kernels=index in stack.sampled,
            )
        collector.add(result, index, layer)
        if kept is not None:
            name = f"{stack.layer_in_words} {index}"
            seen = Seen(place, name, traced.block, traced.call, collector.lengths)
            self.lens.float32_check.keep(kept, options.nonlinearity, PARTS, seen)
        if self.progress is not None:
            self.progress(self.layers.index(place) + 1, len(self.layers))

    def _packed(self, batch: list[Encoded], collectors: list[Collector]) -> list[Maps]:
        """Check a batch's results and pack them up."""
        *encoder, results = map(Collector.maps, collectors)
        if not self.lens.adapter.two_stacks:
            return results
        pairs = []
        for index, (item, maps) in enumerate(zip(batch, results, strict=True)):
            beside, worst = None, maps.completeness
            if encoder:
                beside = encoder[0][index]
                worst = float(np.fmax(worst, beside.completeness))  # NaN only if both are
            said = {**maps.provenance, "completeness": worst, "target": item.generated or "given"}
            pairs.append(replace(maps, encoder=beside, completeness=worst, provenance=said))
        return pairs

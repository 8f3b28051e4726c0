"""One call of `Lens.maps`: batches through the model and the frozen layers, checked and packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.errors import CompletenessError, UnsupportedModelError, is_out_of_memory
from normlens.explain.whole_vectors import collect_whole_way
from normlens.frozen.head_products import ProductStore
from normlens.frozen.scores import PARTS
from normlens.frozen.tiles import Buffers
from normlens.gpu.transfer import DeviceTransfer, current
from normlens.inputs.text import Encoded
from normlens.models.parts import DECODER, ENCODER
from normlens.options import AUTO, DEFAULT_LIMIT, INPUT, Request
from normlens.pipeline.batches import affordable, batches, launched, part_batch, vector_batch
from normlens.pipeline.comparisons import Seen
from normlens.pipeline.progress import Progress
from normlens.pipeline.recordings import Recording, recording_key
from normlens.pipeline.stack_run import Stack, StackRun, token_axis
from normlens.plan.costs import check_limit, check_vectors_limit
from normlens.results.axes import TokenAxis
from normlens.results.files import GrowingFile, Place
from normlens.results.maps import Maps
from normlens.trace.run import LayerTrace
from normlens.trace.run import model_inputs, trace, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# One call of a lens: batches through the model and the algebra, checked and packed up as maps.


@dataclass(frozen=True)
class Analyser:
    """What one call needs: the lens, the request, and memory that is this call's alone."""

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
        results: list[Maps | None] = [None] * len(items)
        with current(self.lens.device):
            for indices, batch in self._results(items, batch_size):
                for index, maps in zip(indices, batch, strict=True):
                    results[index] = maps
        return [maps for maps in results if maps is not None]

    def _results(
        self, items: Sequence[Encoded], batch_size: int | str
    ) -> Iterator[tuple[list[int], list[Maps]]]:
        """Each batch's places and maps. A GPU works on the next one while the last is packed up."""
        device = self.lens.device
        waiting: list[tuple[list[int], Callable[[], list[Maps]]]] = []
        for indices in batches(self.lens, items, self._batch_size(items, batch_size)):
            batch = [items[i] for i in indices]
            waiting.append((indices, launched(batch, self._launch, self._finish, device)))
            while len(waiting) > (0 if device.type == "cpu" else 1):
                places, finish = waiting.pop(0)
                yield places, finish()
        for places, finish in waiting:
            yield places, finish()

    def _batch_size(self, items: Sequence[Encoded], batch_size: int | str) -> int | str:
        """The batch size that is asked for, or fewer where vectors of sources would not fit."""
        by_source = any(layer.by_source for layer in self.lens.layers)
        if self.request.origin != INPUT and not by_source:
            return batch_size
        longest = max((sum(map(len, item.sequences)) for item in items), default=1)
        wanted = affordable(self.lens, longest) if batch_size == AUTO else int(batch_size)
        limit = self.request.settings.memory_limit or DEFAULT_LIMIT
        choose = vector_batch if self.request.origin == INPUT else part_batch
        return choose(self.lens, longest, wanted, limit)

    def _launch(self, batch: list[Encoded]) -> list[StackRun]:
        """Run the model and the algebra; on a GPU the results are not there yet."""
        inputs = self._inputs(batch)
        if self.request.origin == INPUT:
            runs = self._runs(batch, inputs)
            collect_whole_way(self.lens, runs, batch, inputs, self.progress)
            return runs
        batch_key = None
        if self.file is None:
            batch_key = recording_key(self, [item.sequences for item in batch], inputs)
        if batch_key is not None:
            record = partial(Recording, partial(self._recorded_run, batch), inputs)
            with self.lens.recordings.acquire(self.lens.model, batch_key, record) as recording:
                if recording is not None:
                    runs = self._runs(batch, inputs)
                    if recording.replay(inputs, [run.collected for run in runs]):
                        return runs
                    self.lens.recordings.forget()
        runs = self._runs(batch, inputs)
        try:
            self._trace(runs, inputs)
            for run in runs:
                run.collected.leave()
        except RuntimeError as error:
            if self.transfer is not None:
                self.transfer.wait()  # what waits there takes memory that a smaller batch needs
            may_repeat = is_out_of_memory(error) and self.file is None
            if not may_repeat or not self.lens.recordings.forget():
                raise
        else:
            return runs
        return self._launch(batch)  # with the memory that recordings took

    def _recorded_run(self, batch: list[Encoded], inputs: dict[str, Tensor]) -> list[StackRun]:
        """Run a batch so that it can be replayed: large results stay on the device."""
        runs = replace(self, buffers=Buffers(), transfer=None)._runs(batch, inputs)
        self._trace(runs, inputs)
        for run in runs:
            run.collected.stack_pending()
            run.collected.to_host()
        return runs

    def _trace(self, runs: list[StackRun], inputs: dict[str, Tensor]) -> None:
        layers = [run.stack.first + k for run in runs for k in run.stack.request.layers]
        check, rule = self.lens.float32_check, self.request.settings.rule
        kept: dict[Hashable, Seen] = {}

        def consume(traced: LayerTrace) -> None:
            run = next(run for run in reversed(runs) if traced.index >= run.stack.first)
            index = traced.index - run.stack.first
            run.consume(replace(traced, index=index))
            name = f"{run.stack.layer_in_words} {index}"
            check.keep(
                kept, rule, PARTS, Seen(traced.index, name, traced.block, traced.call, run.lengths)
            )
            if self.progress is not None:
                self.progress(layers.index(traced.index) + 1, len(layers))

        def compare() -> None:
            try:
                check.layers(rule, PARTS, kept)
            except CompletenessError:
                for run in runs:
                    run.checks.judge()  # it says more of a module that is not what it seems
                raise

        with without_autocast(self.lens.device):
            trace(self.lens.adapter, inputs, layers, consume, spread=True, then=compare)

    def _inputs(self, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        return model_inputs(self.lens.adapter, batch, self.lens.device)

    def _runs(self, batch: Sequence[Encoded], inputs: Mapping[str, Tensor]) -> list[StackRun]:
        """What each stack has to do for a batch; a decoder reads the encoder's tokens, too."""
        runs = []
        for stack in self.stacks:
            place = -1 if stack.name == DECODER else 0
            sequences = [item.sequences[place] for item in batch]
            if stack.name == DECODER:
                others = [token_axis(item.sequences[0]) for item in batch]
            else:
                others = self._other_tokens(stack, inputs)
            runs.append(StackRun(self, stack, sequences, others))
        return runs

    def place(self, stack: Stack) -> Place | None:
        """What gives a stack's arrays room in the call's file, if there is one."""
        if self.file is None:
            return None
        return self.file.place if stack.name != ENCODER else self.file.under("encoder/")

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

    def _finish(self, batch: list[Encoded], runs: list[StackRun]) -> list[Maps]:
        """Check a batch's results and pack them up."""
        *encoder, last = runs
        if not last.stack.name:
            return last.maps()
        of_encoder: list[Maps] | list[None] = [None] * len(batch)
        if encoder:
            of_encoder = encoder[0].maps()
        of_decoder = last.maps([pair.whole_text for pair in batch])
        return [
            _together(pair, decoder, encoder_maps)
            for pair, decoder, encoder_maps in zip(batch, of_decoder, of_encoder, strict=True)
        ]


def _together(pair: Encoded, decoder: Maps, encoder: Maps | None) -> Maps:
    """The decoder's maps with the encoder's, as exact as the worse of them."""
    errors = [maps.completeness for maps in (decoder, encoder) if maps is not None]
    known = [error for error in errors if not math.isnan(error)]
    worst = max(known, default=math.nan)
    said = {"completeness": worst, "target": pair.generated or "given"}
    return replace(
        decoder,
        encoder=encoder,
        completeness=worst,
        provenance={**decoder.provenance, **said},
    )


# Whether a memory limit that a user gives suffices, asked before anything runs.


def check_memory_limit(lens: Lens, stack: Stack, items: Sequence[Encoded]) -> None:
    """Raise unless the limit suffices for what is asked of a stack."""
    request, itemsize = stack.request, lens.compute_dtype.itemsize
    limit = request.settings.memory_limit or DEFAULT_LIMIT
    both = [item.sequences for item in items]
    reads_encoder = stack.name == DECODER
    lengths = [len(sequences[-1 if reads_encoder else 0]) for sequences in both]
    if request.origin == INPUT:
        # A token of a source has vectors in both stacks.
        lengths = [sum(map(len, sequences)) for sequences in both]
        check_vectors_limit(limit, lens.layers, lengths, itemsize)
        return
    check_limit(
        limit,
        [stack.layers[index] for index in request.layers],
        lengths,
        lens.scopes if request.settings.statistics else request.scopes,
        request.settings.rule,
        itemsize,
        [len(sequences[0]) for sequences in both] if reads_encoder else (),
    )

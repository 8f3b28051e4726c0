"""One call of `Lens.explain`: batches through the model and back, checked and packed up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normlens.advancing import Progress
from normlens.analysing.batches import batches
from normlens.analysing.verdicts import check_scores
from normlens.decomposition.faces import Errors
from normlens.errors import MemoryLimitError
from normlens.explain.answers import explanation
from normlens.explain.batch_run import BatchRun, OneStackRun
from normlens.explain.model_scores import ModelScores, ask_for_places
from normlens.explain.network import FrozenNetwork
from normlens.explain.packing import Said
from normlens.explain.pair_run import PairRun
from normlens.explain.questions import Question
from normlens.explain.readings import Reading, Start, start
from normlens.explain.recorded_passes import RecordedPasses, passes_key, starts_of
from normlens.explain.room import Room
from normlens.explain.sentences import text_vector
from normlens.explain_options import ExplainOptions
from normlens.heads import LAST, SENTENCES, Head
from normlens.memory_shortage import is_out_of_memory, process_limit
from normlens.models.heads import read_head
from normlens.pairs import Item, Pair
from normlens.results.explanation import Explanation
from normlens.text import Encoded
from normlens.tracing.model_inputs import without_autocast
from normlens.tracing.trace import reading
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens

#: For each text, its questions: their places, where the way back begins, what the model says.
Rows = list[list[tuple[int, Start, Said]]]
#: Answers, each with the place of its question.
Answers = list[tuple[int, Explanation]]
#: Scores of a head that are compared with float32, beside the one that is asked for.
COLUMNS = 8


@dataclass(frozen=True)
class Explainer:
    """What one call needs: the lens, the head that is read, and how."""

    lens: Lens
    head: Head
    options: ExplainOptions
    progress: Progress | None = None

    def explain(self, encoded: Sequence[Item], questions: Sequence[Question]) -> list[Explanation]:
        """The answers, in the order of the questions."""
        answers: dict[int, Explanation] = {}
        for indices in self._batches(encoded, questions):
            answers |= dict(self._answers(encoded, questions, indices))
        return [answers[index] for index in range(len(questions))]

    def _batches(
        self, encoded: Sequence[Item], questions: Sequence[Question]
    ) -> Iterator[list[int]]:
        """Questions that are answered together: about one text, or one about each of several."""
        of_text: dict[int, list[int]] = {}
        for index, question in enumerate(questions):
            of_text.setdefault(question.sequence, []).append(index)
        single = [indices[0] for indices in of_text.values() if len(indices) == 1]
        pad_id = getattr(self.lens.adapter.config, "pad_token_id", None)
        if self.head.reads == LAST and pad_id is None:
            # Such a classifier cannot tell padding from text.
            yield from ([index] for index in single)
        else:
            texts = [encoded[questions[index].sequence] for index in single]
            for places in batches(self.lens, texts, self.options.batch_size):
                yield [single[place] for place in places]
        yield from (indices for indices in of_text.values() if len(indices) > 1)

    def _answers(
        self, encoded: Sequence[Item], questions: Sequence[Question], indices: list[int]
    ) -> Answers:
        """Answer questions together; where memory runs out, the halves one after the other.

        Recordings give back theirs before.
        """
        lens = self.lens
        sequences = sorted({questions[index].sequence for index in indices})
        batch = [encoded[sequence] for sequence in sequences]
        asked = [[i for i in indices if questions[i].sequence == s] for s in sequences]

        def run() -> Answers:
            with torch.no_grad(), without_autocast(lens.device):
                answers = self._replayed(batch, questions, asked)
                if answers is not None:
                    return answers
                with reading(lens.adapter.whole, lens.adapter):
                    return self._run(batch, questions, asked)

        try:
            return alone_with_model(lens.adapter.whole, run)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
                raise
            had_recordings = lens.recordings.forget()
            if len(indices) == 1 and not had_recordings:
                raise MemoryLimitError(
                    f"an explanation of {len(batch[0])} tokens does not fit into the memory of "
                    f"{lens.device}; use a shorter text, flow=False, or another device"
                    f"{process_limit()}"
                ) from None
        if had_recordings:
            return self._answers(encoded, questions, indices)
        half = len(indices) // 2
        parts = indices[:half], indices[half:]
        return [answer for part in parts for answer in self._answers(encoded, questions, part)]

    def _run(
        self, batch: list[Item], questions: Sequence[Question], asked: list[list[int]]
    ) -> Answers:
        """Run the model on a batch once and carry back every question about it."""
        run = self.begun(batch)
        inputs, places = self._inputs(run, [questions[i] for row in asked for i in row])
        rows = self.rows(run, self.forward(run, inputs, places), questions, asked)
        errors = partial(self._head_errors, run, inputs, places, questions, asked)
        if any(questions[index].layer is None for row in asked for index in row):
            self.lens.guard.once(self.options.nonlinearity, self.head.task, "the head", errors)
        answers: Answers = []
        at_once = self._room.at_once(run.tokens, len(batch))
        for first in range(0, max(map(len, rows)), at_once):
            chunk = [row[first : first + at_once] for row in rows]
            self.carry(run, starts_of(chunk), self.progress)
            answers += self._packed(run, batch, questions, chunk)
        return answers

    def _replayed(
        self, batch: list[Item], questions: Sequence[Question], asked: list[list[int]]
    ) -> Answers | None:
        """The same by recorded kernels, where questions of this kind are recorded."""
        if self.lens.device.type != "cuda" or self.progress is not None:
            return None
        run = self.begun(batch)
        inputs, places = self._inputs(run, [questions[i] for row in asked for i in row])
        key = passes_key(self, batch, [[questions[i] for i in row] for row in asked], inputs)
        if key is None or self._room.at_once(run.tokens, len(batch)) < max(map(len, asked)):
            return None
        recordings = self.lens.recordings
        record = partial(RecordedPasses, self, batch, questions, asked, inputs, places)
        with recordings.lent(self.lens.adapter.whole, key, record) as passes:
            if passes is None:
                return None
            replayed = passes.replay(self, inputs, questions, asked)
            if replayed is not None:
                run, rows = replayed
                return self._packed(run, batch, questions, rows)
        recordings.forget()
        return None

    def rows(
        self,
        run: BatchRun,
        scores: ModelScores,
        questions: Sequence[Question],
        asked: list[list[int]],
    ) -> Rows:
        """For each text of a batch, where the way back of each question about it begins."""
        return [
            [(index, *self._start(run.read, b, questions[index], scores)) for index in row]
            for b, row in enumerate(asked)
        ]

    def carry(
        self, run: BatchRun, starts: Sequence[Sequence[Start]], progress: Progress | None = None
    ) -> None:
        """Carry scores back through the model."""
        flow = self._room.keeps_flow(run.tokens)
        run.carry(starts, flow, self.options.heads, self._scopes, progress)

    def _packed(
        self, run: BatchRun, batch: list[Item], questions: Sequence[Question], rows: Rows
    ) -> Answers:
        """Check what was carried back and pack it up."""
        lens = self.lens
        run.wait()
        run.check(lens.dtype)
        answers: Answers = []
        for b, row in enumerate(rows):
            for t, (index, began, said) in enumerate(row):
                packed = run.pack(t, b, began, said.value)
                check_scores(packed.errors, lens.dtype, run.layer_names)
                answer = explanation(
                    lens, self.head, self.options, batch[b], questions[index], said, packed
                )
                answers.append((index, answer))
        return answers

    def begun(self, batch: list[Item]) -> BatchRun:
        rule, kept = self.options.nonlinearity, self._room.kept_bytes
        pairs = [item for item in batch if isinstance(item, Pair)]
        if pairs:
            return PairRun(self.lens, pairs, rule, kept)
        sequences = [item for item in batch if isinstance(item, Encoded)]
        return OneStackRun(self.lens, sequences, rule, kept)

    def _inputs(
        self, run: BatchRun, questions: list[Question]
    ) -> tuple[dict[str, Any], list[int] | None]:
        """The model's inputs, and the positions that it is asked for where it can choose."""
        inputs: dict[str, Any] = dict(run.inputs())
        if self.head.output is None:
            return inputs, None
        whole = self.lens.adapter.whole
        return inputs, ask_for_places(whole, inputs, [q.position for q in questions])

    def forward(
        self, run: BatchRun, inputs: dict[str, Any], places: list[int] | None
    ) -> ModelScores:
        """Run the model."""
        return self._scores(run, run.forward(self._model, inputs), places)

    @property
    def _model(self) -> nn.Module:
        adapter = self.lens.adapter
        return adapter.model if self.head.output is None else adapter.whole

    def _scores(self, run: BatchRun, output: Any, places: list[int] | None) -> ModelScores:
        """The scores, or vectors, in what the model returned."""
        if self.head.output is not None:
            return ModelScores.of_output(output, places)
        vectors = output[0]
        if self.head.task == SENTENCES:
            vectors = torch.stack(
                [
                    text_vector(self._head, vectors[b, :n].to(self.lens.compute_dtype))
                    for b, n in enumerate(run.read.lengths)
                ]
            )
        return ModelScores(vectors, None)

    def _head_errors(
        self,
        run: BatchRun,
        inputs: dict[str, Any],
        places: list[int] | None,
        questions: Sequence[Question],
        asked: list[list[int]],
    ) -> Errors:
        """How far the frozen head misses the scores that its own modules give in float32."""
        output, adapter, errors = run.in_float32(self._model, inputs)
        yield from errors
        head = replace(self.head, body=tuple(adapter.end()))
        wide = replace(self, head=head if head.output is None else read_head(adapter))
        scores, last = wide._scores(run, output, places), run.read.last
        assert last is not None
        count = 0 if head.output is None else head.output.weight.shape[1]
        others = range(0, count, max(1, count // COLUMNS))
        for b, row in enumerate(asked):
            asks = [questions[i] for i in row if questions[i].layer is None]
            asks += [replace(asks[0], target=c, contrast=None) for c in others if asks]
            missed, sizes = [0.0], [torch.finfo(torch.float32).tiny]
            for question in asks:
                began, said = wide._start(run.read, b, question, scores)
                owned = float((began.gradient * last[b].to(began.gradient)).sum())
                shares = [owned, *began.unowned.values()]
                missed += [abs(began.value - said.value), abs(sum(shares) - said.value)]
                sizes += map(abs, [said.value, *began.columns, *shares])
            yield "scores", max(missed) / max(sizes)

    def _start(
        self, network: FrozenNetwork, b: int, question: Question, scores: ModelScores
    ) -> tuple[Start, Said]:
        """Where the way back of one question begins, and what the model itself says there."""
        n = network.lengths[b]
        inside = question.layer is not None and question.layer < len(network) - 1
        assert network.last is not None
        if inside and question.layer is not None:
            last = network.x(question.layer + 1)
        else:
            last = network.last.to(self.lens.compute_dtype)
        columns: list[tuple[int, float]] = []
        if question.direction is None:
            own = scores.of(b, question.position).double()
            target = int(own.argmax()) if question.target is None else question.target
            columns = [(target, 1.0)]
            if question.contrast is not None:
                columns.append((question.contrast, -1.0))
            said = Said.of(own, columns, self.head)
        asked = Reading(question.position, tuple(columns), question.direction, question.layer)
        began = start(asked, self._head, last[b, :n], network.rule, len(network))
        if question.direction is not None:
            value = began.value
            if question.layer is None:
                own = scores.of(b, question.position).double()
                value = float(own @ question.direction.to(own))
            said = Said(value)
        width = last.shape[1] - n
        gradient = torch.nn.functional.pad(began.gradient, (0, 0, 0, width))
        return replace(began, gradient=gradient), said

    @cached_property
    def _head(self) -> Head:
        return self.head.to(self.lens.compute_dtype)

    @cached_property
    def _scopes(self) -> list[str]:
        """The scopes that are asked for, as they were called."""
        scopes = self.options.scopes
        if scopes is None:
            return []
        if scopes == "all":
            return self.lens.scopes
        return [scopes] if isinstance(scopes, str) else list(scopes)

    @cached_property
    def _room(self) -> Room:
        return Room(self.lens, self.options)

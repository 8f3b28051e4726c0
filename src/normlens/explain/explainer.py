"""One call of `Lens.explain`: batches through the model and back, checked and packed."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normlens.errors import (
    MemoryLimitError,
    UnsupportedModelError,
    is_out_of_memory,
    process_limit,
)
from normlens.explain.batch_run import BatchRun, Packed, Said
from normlens.explain.cosines import text_vector
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.questions import Question, Reading, Start, label_of, start
from normlens.frozen.scores import Errors
from normlens.gpu.graphs import TELLS, Captured, Inputs, ModelState, described
from normlens.inputs.text import Item, Pair, texts_among, texts_of
from normlens.layers import LAST, SENTENCES, Head
from normlens.models.base import read_head
from normlens.models.parts import TwoStacks
from normlens.options import ExplainOptions, parse_bytes
from normlens.pipeline.batches import SCORE_TOLERANCE, batches, check_scores, provenance
from normlens.pipeline.layer_results import reads_others
from normlens.pipeline.progress import Progress
from normlens.pipeline.stack_run import token_axis
from normlens.plan.memory import DEFAULT_LIMIT
from normlens.results.explanation import Explanation
from normlens.trace.locking import alone_with_model
from normlens.trace.run import reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# How much an explanation keeps and carries back at once.


#: Flow maps of one score are kept without being asked for up to this size.
FLOW_BYTES = 1 << 27


@dataclass(frozen=True)
class Room:
    """The memory of one call's explanations."""

    lens: Lens
    options: ExplainOptions

    @property
    def limit(self) -> int:
        """The memory, in bytes, that an explanation may take beside the model's own."""
        return parse_bytes(self.options.memory_limit) or DEFAULT_LIMIT

    @property
    def kept_bytes(self) -> int:
        """How much attention the forward pass may keep; what it does not keep is computed again.

        A GPU whose memory holds the model has room for as much as half of that.
        """
        if self.options.memory_limit is None and self.lens.device.type == "cuda":
            return sum(parameter.nbytes for parameter in self.lens.model.parameters()) // 2
        return self.limit // KEPT_SHARE

    def keeps_flow(self, n: int) -> bool:
        """Whether flow maps of texts of n tokens are kept."""
        if self.options.flow is not None:
            return self.options.flow
        return self.lens.n_layers * n * n * self.lens.compute_dtype.itemsize <= FLOW_BYTES

    def at_once(self, n: int, b: int) -> int:
        """How many scores of each of b texts of n tokens are carried back together."""
        maps = self.keeps_flow(n) or self.options.heads
        layers = self.lens.layers
        widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
        heads, d = layers[0].attention.heads, layers[0].width
        each = n * (4 * widest + 8 * d)
        if maps:
            each += 3 * heads * n * n
        return max(1, self.limit // (2 * b * each * self.lens.compute_dtype.itemsize))


# Scores as the model itself returns them.


@dataclass(frozen=True)
class ModelScores:
    """What the model returned: scores or vectors of sequences, of all positions, or of some."""

    values: Tensor  # (b, c) or (b, position, c)
    places: list[int] | None  # the positions that are there; None: all of them

    @classmethod
    def of_output(cls, output: Any, places: list[int] | None) -> ModelScores:
        """What a model with a head returned."""
        logits = getattr(output, "logits", None)
        return cls(output.prediction_logits if logits is None else logits, places)

    def of(self, b: int, position: int | None) -> Tensor:
        """The scores of one sequence, at one of its positions where it has several."""
        if self.values.dim() == 2:
            return self.values[b]
        assert position is not None
        return self.values[b, position if self.places is None else self.places.index(position)]

    def of_all(self, positions: Sequence[int | None]) -> Tensor:
        """The scores (b, c) of every sequence, each at one of its positions."""
        if self.values.dim() == 2:
            return self.values
        places = [
            p if self.places is None or p is None else self.places.index(p) for p in positions
        ]
        rows = torch.arange(len(places), device=self.values.device)
        return self.values[rows, torch.tensor(places, device=self.values.device)]


def chooses_positions(model: Any) -> bool:
    """Whether a model can be asked for the scores of some positions only.

    A classifier of sequences may take the argument, too, and look for its last token among all.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    of_sequences = any(name.endswith("ForSequenceClassification") for name in kinds)
    return not of_sequences and "logits_to_keep" in inspect.signature(model.forward).parameters


def ask_for_places(
    model: Any, inputs: dict[str, Any], positions: Iterable[int | None]
) -> list[int] | None:
    """Ask a model for the scores of some positions only, if it can choose; returns which."""
    places = sorted({position for position in positions if position is not None})
    if not places or not chooses_positions(model):
        return None
    inputs["logits_to_keep"] = torch.tensor(places, device=inputs["input_ids"].device)
    return places


# From the numbers of one score to the explanation that a user gets.


def explanation(
    lens: Lens,
    head: Head,
    options: ExplainOptions,
    item: Item,
    question: Question,
    said: Said,
    packed: Packed,
) -> Explanation:
    """The answer to one question."""
    names = [label_of(column, head, lens.tokenizer) for column in said.columns]
    completeness = max(packed.errors)
    probabilities = said.probabilities or (None, None)

    def second(values: Sequence[Any]) -> Any:
        return values[1] if len(names) > 1 else None

    return Explanation(
        task="direction" if question.direction is not None else head.task,
        position=question.position,
        layer=question.layer,
        target=names[0] if names else None,
        target_id=said.columns[0] if names else None,
        contrast=second(names),
        contrast_id=second(said.columns),
        value=said.value,
        target_value=said.scores[0] if names else None,
        contrast_value=second(said.scores),
        probability=probabilities[0],
        contrast_probability=second(probabilities),
        nodes=packed.nodes,
        component_names=packed.component_names,
        components=packed.components,
        heads=packed.heads,
        biases=packed.bias,
        flows=packed.flows,
        head_flow=packed.head_flow,
        completeness=completeness,
        provenance=_provenance(lens, head, options, completeness, item),
        cross_heads=packed.cross_heads,
        **_labels(lens, item),
    )


def _labels(lens: Lens, item: Item) -> dict[str, Any]:
    """The tokens of a sequence, or of both of a pair, and which of them are whose."""
    if isinstance(item, Pair):
        assert isinstance(lens.adapter, TwoStacks)
        axis, text = token_axis(item.source).followed_by(token_axis(item.target)), texts_of(item)
        two: dict[str, Any] = {
            "encoder_tokens": len(item.source),
            "encoder_layers": len(lens.adapter.encoder_blocks()),
        }
    else:
        axis, text, two = token_axis(item), item.text, {"grid": item.grid}
    return {
        "raw_tokens": axis.raw_tokens,
        "token_ids": axis.token_ids,
        "special": axis.special,
        "token_words": axis.token_words,
        "word_labels": axis.word_labels,
        "text": text,
        **two,
    }


def _provenance(
    lens: Lens, head: Head, options: ExplainOptions, completeness: float, item: Item
) -> dict[str, Any]:
    said = provenance(lens, options.nonlinearity, completeness, SCORE_TOLERANCE[lens.dtype])
    said["head"] = type(lens.adapter.whole).__name__
    if isinstance(item, Pair):
        said["target"] = item.generated or "given"
    if head.note is not None:
        said["note"] = head.note
    return said


# Explanations of one shape on a GPU: the passes through the model and back, recorded.
#
# A short text's way through the model and back is thousands of small kernels, which take longer to
# launch than to run. Between the two passes Python reads where the way back begins.


#: Numbers of a layer's weights times tokens up to which launching takes longer than running.
WORK = 2e11
#: Tokens of a batch up to which its attention is recorded.
TOKENS = 2048


class RecordedPasses:
    """Both passes of a batch, with the tensors that they read and write."""

    pending = False  # whoever replays them reads the results before the next replay

    def __init__(
        self,
        explainer: Explainer,
        batch: list[Item],
        questions: Sequence[Question],
        asked: list[list[int]],
        inputs: Inputs,
        places: list[int] | None,
        state: ModelState,
    ):
        self.state, self.used = state, threading.Lock()

        def forward(given: dict[str, Any]) -> tuple[BatchRun, ModelScores]:
            begun = explainer.begun(batch)
            return begun, explainer.forward(begun, given, places)

        def back(given: dict[str, Any]) -> BatchRun:
            # Pinned memory must not be given back while work is captured, so each has its own.
            again = run.afresh()
            explainer.carry(again, _with(starts, given))
            return again

        adapter = explainer.lens.adapter
        with reading(adapter.whole, adapter):
            self._forward = Captured(forward, inputs)
            run, scores = self._forward.replay(inputs)
            starts = starts_of(explainer.rows(run, scores, questions, asked))
            self._back = Captured(back, _gradients(starts))
        self.bytes = self._forward.bytes + self._back.bytes

    def replay(
        self,
        explainer: Explainer,
        inputs: Inputs,
        questions: Sequence[Question],
        asked: list[list[int]],
    ) -> tuple[BatchRun, Rows] | None:
        """Start both passes on other inputs; the run has the results when the GPU is done.

        None if the model is no longer the one that was recorded, which is found out meanwhile.
        """
        run, scores = self._forward.replay(inputs)
        if not self.state.holds():
            return None
        rows = explainer.rows(run, scores, questions, asked)
        return self._back.replay(_gradients(starts_of(rows))), rows


def starts_of(rows: Rows) -> list[list[Start]]:
    """The starts by score and text; every text has as many questions as the others."""
    return [[row[t][1] for row in rows] for t in range(len(rows[0]))]


def _gradients(starts: Sequence[Sequence[Start]]) -> dict[str, Tensor]:
    return {
        f"{t}.{b}": start.gradient for t, row in enumerate(starts) for b, start in enumerate(row)
    }


def _with(starts: Sequence[Sequence[Start]], gradients: Inputs) -> list[list[Start]]:
    return [
        [replace(start, gradient=gradients[f"{t}.{b}"]) for b, start in enumerate(row)]
        for t, row in enumerate(starts)
    ]


def passes_key(
    explainer: Explainer,
    batch: Sequence[Item],
    asked: Sequence[Sequence[Question]],
    inputs: Inputs,
) -> Hashable | None:
    """What batches have in common that recorded passes can stand for; None: this one has none."""
    lens, sequences = explainer.lens, texts_among(batch)
    if not TELLS or len(sequences) < len(batch):
        return None
    tokens = sum(map(len, sequences))
    largest = max(
        sum(linear.weight.numel() for linear in layer.linear_maps) for layer in lens.layers
    )
    if tokens > TOKENS or tokens * largest > WORK:
        return None
    return (
        "passes",
        repr(explainer.options),
        explainer.head.task,
        tuple(len(sequence) for sequence in sequences),
        described(inputs),
        tuple(tuple((question.position, question.layer) for question in row) for row in asked),
    )


# One call of `Lens.explain`: batches through the model and back, checked and packed up.


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
        """A batch before the model has run."""
        lens = self.lens
        if not lens.two_stacks and any(map(reads_others, lens.layers)):
            raise UnsupportedModelError(
                f"the layers of {lens.name} read another sequence, whose tokens would own a part "
                "of the score, too; describe it as an encoder–decoder "
                "(normlens.models.parts.TwoStacks)"
            )
        return BatchRun(lens, batch, self.options.nonlinearity, self._room.kept_bytes)

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

"""One call of `Lens.explain`: batches through the model and back, checked and packed up."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens.advancing import Progress
from normlens.batches import batches
from normlens.collect import versions
from normlens.decomposition.memory import DEFAULT_LIMIT, is_out_of_memory
from normlens.errors import MemoryLimitError
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.packing import Packed, Said, pack
from normlens.explain.questions import Question
from normlens.explain.readings import Reading, Start, start
from normlens.explain.walk import Wanted, carry
from normlens.explain.words import label_of
from normlens.explain_options import ExplainOptions
from normlens.explanation import Explanation
from normlens.heads import LAST, Head
from normlens.model_inputs import model_inputs, without_autocast
from normlens.parsing import parse_bytes
from normlens.scopes import resolve_all
from normlens.text import Encoded
from normlens.trace import reading
from normlens.turns import alone_with_model
from normlens.verdicts import SCORE_TOLERANCE, check_scores

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Flow maps of one score are kept without being asked for up to this size.
FLOW_BYTES = 1 << 27

#: Answers, each with the place of its question.
Answers = list[tuple[int, Explanation]]


@dataclass(frozen=True)
class Explainer:
    """What one call needs: the lens, the head that is read, and how."""

    lens: Lens
    head: Head
    options: ExplainOptions
    progress: Progress | None = None

    def explain(
        self, encoded: Sequence[Encoded], questions: Sequence[Question]
    ) -> list[Explanation]:
        """The answers, in the order of the questions."""
        answers: dict[int, Explanation] = {}
        for indices in self._batches(encoded, questions):
            answers |= dict(self._answers(encoded, questions, indices))
        return [answers[index] for index in range(len(questions))]

    def _batches(
        self, encoded: Sequence[Encoded], questions: Sequence[Question]
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
        self, encoded: Sequence[Encoded], questions: Sequence[Question], indices: list[int]
    ) -> Answers:
        """Answer questions together; where memory runs out, the halves one after the other."""
        lens = self.lens
        sequences = sorted({questions[index].sequence for index in indices})
        batch = [encoded[sequence] for sequence in sequences]
        asked = [[i for i in indices if questions[i].sequence == s] for s in sequences]

        def run() -> Answers:
            with without_autocast(lens.device), reading(lens.adapter.whole):
                return self._run(batch, questions, asked)

        try:
            return alone_with_model(lens.adapter.whole, run)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
                raise
            if len(indices) == 1:
                raise MemoryLimitError(
                    f"an explanation of {len(batch[0])} tokens does not fit into the memory of "
                    f"{lens.device}; use a shorter text, flow=False, or another device"
                ) from None
        half = len(indices) // 2
        parts = indices[:half], indices[half:]
        return [answer for part in parts for answer in self._answers(encoded, questions, part)]

    def _run(
        self, batch: list[Encoded], questions: Sequence[Question], asked: list[list[int]]
    ) -> Answers:
        """Run the model on a batch once and carry back every question about it."""
        lens, options = self.lens, self.options
        lengths = [len(sequence) for sequence in batch]
        network = FrozenNetwork(
            lens.adapter,
            lengths,
            options.nonlinearity,
            lens.compute_dtype,
            self._kept_bytes,
        )
        scores = self._forward(network, batch, [questions[i] for row in asked for i in row])
        rows = [
            [(index, *self._start(network, b, questions[index], scores)) for index in row]
            for b, row in enumerate(asked)
        ]
        answers: Answers = []
        wanted = self._wanted(max(lengths))
        at_once = self._at_once(lengths, wanted)
        for first in range(0, max(map(len, rows)), at_once):
            chunk = [row[first : first + at_once] for row in rows]
            # Several texts have one question each, so the rows of a chunk are equally long.
            starts = [[row[t][1] for row in chunk] for t in range(len(chunk[0]))]
            carried = carry(network, starts, wanted, self.progress)
            network.check(lens.dtype)
            for b, row in enumerate(chunk):
                for t, (index, began, said) in enumerate(row):
                    packed = pack(carried, t, b, lengths[b], began, said.value)
                    check_scores(packed.errors, lens.dtype)
                    answer = self._explanation(batch[b], questions[index], said, packed)
                    answers.append((index, answer))
        return answers

    def _forward(
        self, network: FrozenNetwork, batch: list[Encoded], questions: list[Question]
    ) -> _Scores:
        """Run the model; only the positions that questions read are scored where it can choose."""
        adapter = self.lens.adapter
        inputs: dict[str, Any] = dict(model_inputs(adapter, batch, self.lens.device))
        if self.head.output is None:
            return _Scores(network.run(adapter.model, inputs)[0], None)
        places = sorted({q.position for q in questions if q.position is not None})
        chosen = places if places and _chooses_positions(adapter.whole) else None
        if chosen is not None:
            inputs["logits_to_keep"] = torch.tensor(chosen, device=self.lens.device)
        output = network.run(adapter.whole, inputs)
        logits = getattr(output, "logits", None)
        return _Scores(output.prediction_logits if logits is None else logits, chosen)

    def _start(
        self, network: FrozenNetwork, b: int, question: Question, scores: _Scores
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

    @property
    def _limit(self) -> int:
        """The memory, in bytes, that an explanation may take beside the model's own."""
        return parse_bytes(self.options.memory_limit) or DEFAULT_LIMIT

    @property
    def _kept_bytes(self) -> int:
        """How much attention the forward pass may keep; what it does not keep is computed again.

        A GPU whose memory holds the model has room for as much as half of that.
        """
        if self.options.memory_limit is None and self.lens.device.type == "cuda":
            return sum(parameter.nbytes for parameter in self.lens.model.parameters()) // 2
        return self._limit // KEPT_SHARE

    @cached_property
    def _head(self) -> Head:
        return self.head.to(self.lens.compute_dtype)

    def _wanted(self, n: int) -> Wanted:
        """What to keep on the way back of texts of n tokens."""
        scopes, flow = self.options.scopes, self.options.flow
        chosen = [] if scopes is None else resolve_all(scopes, self.lens.scopes)
        if flow is None:
            flow = self.lens.n_layers * n * n * self.lens.compute_dtype.itemsize <= FLOW_BYTES
        return Wanted(flow, self.options.heads, frozenset(chosen))

    def _at_once(self, lengths: list[int], wanted: Wanted) -> int:
        """How many scores of each text are carried back together."""
        n, b, layers = max(lengths), len(lengths), self.lens.layers
        widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
        heads, d = layers[0].attention.heads, layers[0].attention.output.weight.shape[1]
        each = n * (4 * widest + 8 * d)
        if wanted.flow or wanted.heads:
            each += 3 * heads * n * n
        return max(1, self._limit // (2 * b * each * self.lens.compute_dtype.itemsize))

    def _explanation(
        self, sequence: Encoded, question: Question, said: Said, packed: Packed
    ) -> Explanation:
        names = [label_of(column, self.head, self.lens.tokenizer) for column in said.columns]
        completeness = max(packed.errors)
        probabilities = said.probabilities or (None, None)

        def second(values: Sequence[Any]) -> Any:
            return values[1] if len(names) > 1 else None

        return Explanation(
            task="direction" if question.direction is not None else self.head.task,
            raw_tokens=sequence.tokens,
            token_ids=sequence.ids,
            special=sequence.special,
            token_words=sequence.words,
            word_labels=sequence.word_labels,
            text=sequence.text,
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
            provenance=self._provenance(completeness),
        )

    def _provenance(self, completeness: float) -> dict[str, Any]:
        lens = self.lens
        provenance = {
            "model": lens.name,
            "revision": lens.revision,
            "model_type": lens.model_type,
            "components": lens.component_sequence,
            "causal": lens.causal,
            "head": type(lens.adapter.whole).__name__,
            "nonlinearity": self.options.nonlinearity,
            "completeness": completeness,
            "tolerance": SCORE_TOLERANCE[lens.dtype],
            "dtype": str(lens.dtype).removeprefix("torch."),
            "compute_dtype": str(lens.compute_dtype).removeprefix("torch."),
            "device": str(lens.device),
            "versions": versions(),
        }
        if self.head.note is not None:
            provenance["note"] = self.head.note
        return provenance


@dataclass(frozen=True)
class _Scores:
    """What the model returned: scores or vectors of sequences, of all positions, or of some."""

    values: Tensor  # (b, c) or (b, position, c)
    places: list[int] | None  # the positions that are there; None: all of them

    def of(self, b: int, position: int | None) -> Tensor:
        """The scores of one sequence, at one of its positions where it has several."""
        if self.values.dim() == 2:
            return self.values[b]
        assert position is not None
        return self.values[b, position if self.places is None else self.places.index(position)]


def _chooses_positions(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters

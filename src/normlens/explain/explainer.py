"""One call of `Lens.explain`: batches through the model and back, checked and packed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from normlens.errors import InputError, MemoryLimitError, is_out_of_memory, process_limit
from normlens.explain import backward
from normlens.explain.network import FrozenNetwork
from normlens.explain.questions import AnswerOptions, Question, QuestionReader, Target, label_of
from normlens.frozen.scores import SCORES, Errors
from normlens.gpu.graphs import HAS_GRAPH_EVENTS, Captured, ModelState, described
from normlens.gpu.matmul import rounded_once
from normlens.inputs.text import Encoded
from normlens.layers import LAST, Head
from normlens.options import DEFAULT_LIMIT, ExplainOptions, parse_bytes
from normlens.pipeline import batches
from normlens.pipeline.recordings import padded
from normlens.results.explanation import Explanation, Explanations
from normlens.scopes import is_among, resolve
from normlens.trace import run as tracing
from normlens.trace.locking import exclusive

if TYPE_CHECKING:
    from normlens.lens import Lens


# From a call of `Lens.explain` to questions, and from their answers to its result.


#: One of a kind, or a list with one for each text.
Targets: TypeAlias = Target | Sequence[Target | None] | None
Positions: TypeAlias = int | str | Sequence[int | str | None] | None
#: Which token of the target is explained: its place from 0, a word, or "all".
Tokens: TypeAlias = int | str | Sequence[int | str | None] | None


def ask(
    lens: Lens,
    items: Sequence[Encoded],
    many: bool,
    options: ExplainOptions,
    progress: batches.Progress | None = None,
    *,
    target: Targets = None,
    contrast: Targets = None,
    position: Positions | Tokens = None,
    direction: Any = None,
    layer: int | None = None,
    answers: AnswerOptions | None = None,
) -> Any:
    """Answer what a call of `Lens.explain` asks; a list where any part of it was a list.

    Of an encoder–decoder, `position` says which token of the target is explained, and there is
    neither a `target` nor a `direction`. With `answers` a target may be an answer of several
    tokens.
    """
    if direction is not None and (target is not None or contrast is not None):
        raise InputError("give a target or a direction, not both")
    if direction is None and layer is not None:
        raise InputError("layer goes with direction=…; a target is read at the model's end")
    reader = QuestionReader(lens, items, options, direction, layer, answers)
    asked = target, contrast, position
    has_lists = any(isinstance(value, (list, tuple)) for value in asked)
    # One value for each question: a value that is none or alone in a list stands for all.
    given: list[Any] = [range(len(items) if many else 1), *asked]
    columns = [[*v] if isinstance(v, (range, list, tuple)) else [v] for v in given]
    count, *others = {len(column) for column in columns} - {1} or {1}
    if others:
        raise InputError(
            "texts, targets, contrasts, positions or tokens in lists must be equally long, not "
            f"{', '.join(map(str, sorted([count, *others])))}"
        )
    if count == 0 and has_lists:
        raise InputError("a list of targets, contrasts, positions or tokens is empty")
    columns = [column * count if len(column) == 1 else column for column in columns]
    read = [reader.read(*each) for each in zip(*columns, strict=True)]
    questions = [each for one in read for each in (one if isinstance(one, list) else [one])]
    explainer = Explainer(lens, reader.items, reader.head, options, progress)
    found = iter(explainer.explain(questions))
    explained = [
        Explanations([next(found) for _ in one]) if isinstance(one, list) else next(found)
        for one in read
    ]
    return explained if many or has_lists else explained[0]


# One call: batches through the model and back.


#: Flow maps of one score are kept without being asked for up to this size.
FLOW_BYTES = 1 << 27
#: Attention weights of one layer are formed up to this size; queries and keys of longer texts are
#: kept instead, where the model's attention hands them over.
ALPHA_BYTES = 1 << 26
#: Scores of a head that are compared with float32, beside the one that is asked for.
COLUMNS = 8
#: Recorded are batches of up to so many tokens, and tokens times numbers of a layer's weights: a
#: short text's thousands of small kernels take longer to launch than to run.
TOKENS, WORK = 2048, 2e11


class Batch(NamedTuple):
    """Questions that are answered together, and what the model is given for them."""

    questions: Sequence[Question]  # one about each of several items, or several about one
    items: Sequence[Encoded]
    given: Sequence[Encoded]  # the items as the model reads them, which may be padded
    inputs: dict[str, Any]
    places: list[int] | None  # the positions that the model is asked for, where it can choose

    @property
    def lengths(self) -> list[list[int]]:
        """The items' lengths, by stack."""
        stacks = zip(*(item.sequences for item in self.items), strict=True)
        return [[*map(len, sequences)] for sequences in stacks]


class Explainer:
    """One call: a lens, its items, the head that is read, and how."""

    def __init__(
        self,
        lens: Lens,
        items: Sequence[Encoded],
        head: Head,
        options: ExplainOptions,
        progress: batches.Progress | None = None,
    ):
        self.lens, self.items, self.options, self.progress = lens, items, options, progress
        with torch.no_grad():
            self.head = head.to(lens.compute_dtype)
        if lens.two_stacks and not isinstance(options.flow, (bool, type(None))):
            raise InputError(
                "the strongest edges are kept of models with one sequence; take flow=True"
            )
        self.rule, self.limit = options.nonlinearity, parse_bytes(options.memory_limit)
        self.model = lens.adapter.model if head.output is None else lens.adapter.whole
        self.scopes = self._scopes()
        self.alpha_bytes = ALPHA_BYTES

    def _scopes(self) -> set[str]:
        """The scopes that are meant in any stack; one that none has is an error."""
        lens, asked = self.lens, self.options.scopes or ()
        if asked == "all":
            return set(lens.scopes)
        stacks = [
            *map(batches.scopes_of, batches.layers_by_stack(lens.adapter, lens.layers).values())
        ]
        found = set()
        for name in [asked] if isinstance(asked, str) else asked:
            having = [scopes for scopes in stacks if is_among(name, scopes)]
            # In all of the model's scopes a name that no stack has raises, and lists them.
            found |= {resolve(name, scopes) for scopes in having or [lens.scopes]}
        return found

    def explain(self, questions: Sequence[Question]) -> list[Explanation]:
        """The answers, in the order of the questions.

        Where memory runs out, recordings give back theirs; then the halves of a batch go one after
        the other.
        """
        lens, answers = self.lens, dict[int, Explanation]()
        waiting = list(self._batches(questions))
        while waiting:
            indices = waiting.pop(0)
            batch = [questions[index] for index in indices]
            try:
                found = exclusive(lens.adapter.whole, partial(self._answers, batch))
            except (RuntimeError, MemoryError) as error:
                if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
                    raise
                half = len(indices) // 2
                if lens.recordings.forget():
                    waiting.insert(0, indices)
                elif half:
                    waiting[:0] = [indices[:half], indices[half:]]
                else:
                    raise MemoryLimitError(
                        f"an explanation of {self.items[batch[0].sequence].longest} tokens does "
                        f"not fit into the memory of {lens.device}; use a shorter text, "
                        f"flow=False, or another device{process_limit()}"
                    ) from None
            else:
                answers |= zip(indices, found, strict=True)
        return [answers[index] for index in range(len(questions))]

    def _batches(self, questions: Sequence[Question]) -> Iterator[list[int]]:
        """Indices of the questions that are answered together."""
        of_item: dict[int, list[int]] = {}
        for index, question in enumerate(questions):
            of_item.setdefault(question.sequence, []).append(index)
        single = [indices[0] for indices in of_item.values() if len(indices) == 1]
        size = self.options.batch_size if self._may_pad else 1
        # A number must not depend on the batch, so long texts go on their own.
        for is_long in (False, True):
            alike = [
                k for k in single if self._is_long(self.items[questions[k].sequence]) == is_long
            ]
            items = [self.items[questions[index].sequence] for index in alike]
            for places in batches.batches(self.lens, items, size):
                yield sorted(alike[place] for place in places)
        yield from (indices for indices in of_item.values() if len(indices) > 1)

    @property
    def _may_pad(self) -> bool:
        """False of a classifier of the last token that cannot tell padding from text."""
        named = getattr(self.lens.adapter.config, "pad_token_id", None)
        return self.head.reads != LAST or named is not None

    def _answers(self, questions: Sequence[Question]) -> list[Explanation]:
        """Run the model on a batch once and carry back every question about it.

        The thread must be alone with the model.
        """
        lens, places = self.lens, None
        items = [self.items[k] for k in dict.fromkeys(each.sequence for each in questions)]
        recorded = self._may_record(questions, items)
        given = padded(lens, items) if recorded and self._may_pad else items
        inputs = tracing.model_inputs(lens.adapter, given, lens.device)
        if self.head.output is not None:
            positions = [each.positions if each.answer else each.position for each in questions]
            places = backward.ask_for_places(lens.adapter.whole, inputs, positions)
        batch = Batch(questions, items, given, inputs, places)
        with torch.no_grad(), tracing.without_autocast(lens.device):
            answers = self._replayed(batch) if recorded else None
            if answers is not None:
                return answers
            is_long = self._is_long(items[0])
            # In half precision the model's own rounding is the larger error by far
            # (`benchmarks/gpu_explain.py`), and a long text is slow enough.
            rounding = rounded_once() if is_long else nullcontext()
            with (
                tracing.reading(
                    lens.adapter.whole, lens.adapter, tracing.FAST if is_long else tracing.EAGER
                ),
                rounding,
            ):
                network, output = self.forward(given, inputs)
                network.real_lengths = batch.lengths
                seeds = self.seeds(network, questions, self._rows(batch, output))
                if questions[0].layer is None:
                    errors = partial(self._head_errors, batch, network)
                    lens.float32_check.once(self.rule, self.head.task, "the head", errors)
                answers, at_once = [], self._at_once(network.tokens, network.texts)
                for first in range(0, len(seeds), at_once):
                    chunk = seeds[first : first + at_once]
                    passed = self.back(network, chunk, gradients(chunk, network))
                    answers += self._packed(network, chunk, passed)
        return answers

    def _may_record(self, questions: Sequence[Question], items: Sequence[Encoded]) -> bool:
        """Whether a recording can answer questions such as these."""
        lens, lengths = self.lens, [len(item) for item in items]
        on_gpu = lens.device.type == "cuda" and HAS_GRAPH_EVENTS
        if not on_gpu or self.progress is not None or self._is_long(items[0]) or lens.two_stacks:
            return False
        tokens, maps = sum(lengths), (layer.linear_maps for layer in lens.layers)
        numbers = max(sum(linear.weight.numel() for linear in each) for each in maps)
        few = tokens <= TOKENS and tokens * numbers <= WORK
        return few and self._at_once(max(lengths), len(lengths)) >= len(questions)

    def _replayed(self, batch: Batch) -> list[Explanation] | None:
        """The answers by recorded kernels, if questions of this kind have been recorded."""
        recordings, questions = self.lens.recordings, batch.questions
        asked = tuple((each.layer, len(each.answer)) for each in questions)
        sizes = tuple(map(len, batch.given))
        key = "passes", repr(self.options), self.head.task, sizes, described(batch.inputs), asked
        record = partial(RecordedPasses, self, batch)
        with recordings.acquire(self.lens.adapter.whole, key, record) as passes:
            if passes is None:
                return None
            network, output = passes.forward.replay(batch.inputs)
            # Whether the model is still the one that was recorded is found out meanwhile.
            if passes.state.holds():
                network.real_lengths = batch.lengths
                seeds = self.seeds(network, questions, self._rows(batch, output))
                passed = passes.back.replay({"g": gradients(seeds, network)})
                return self._packed(network, seeds, passed)
        recordings.forget()
        return None

    def forward(
        self, given: Sequence[Encoded], inputs: dict[str, Any]
    ) -> tuple[FrozenNetwork, Any]:
        """Run the model; returns the frozen network and what the model returned."""
        network = FrozenNetwork(self.lens, given, self.rule, self.limit)
        return network, network.forward(self.model, inputs, SCORES)

    def _rows(self, batch: Batch, output: Any) -> list[Tensor]:
        """The scores, or the vectors of a text, in the model's output, for each question."""
        texts, questions = len(batch.items), enumerate(batch.questions)
        if self.head.output is None:
            return [output[0][k % texts] for k, _ in questions]
        asked = (
            (k % texts, question.positions if question.answer else question.position)
            for k, question in questions
        )
        return backward.rows_read(output, batch.places, asked)

    def seeds(
        self, network: FrozenNetwork, questions: Sequence[Question], rows: Sequence[Tensor]
    ) -> list[backward.Seed]:
        """The gradient of each question's score, with which the backward pass begins."""
        seeds = []
        for k, (question, row) in enumerate(zip(questions, rows, strict=True)):
            b = k % network.texts
            vectors = network.behind(question.layer)[b, : network.real_lengths[-1][b]]
            row = row if question.layer is None else vectors
            seeds.append(backward.seed_of(question, self.head, vectors, row, self.rule))
        return seeds

    def back(
        self, network: FrozenNetwork, seeds: Sequence[backward.Seed], g: Tensor
    ) -> list[backward.Passed]:
        """Carry the gradients g (score, n, d) of scores back through the model."""
        return backward.carry(
            network,
            g.unflatten(0, (-1, network.texts)),
            seeds[0].question.layer,
            flow_maps=self._keeps_flow(network.tokens),
            by_head=self.options.heads,
            scopes=self.scopes,
            progress=self.progress,
        )

    def _head_errors(self, batch: Batch, network: FrozenNetwork) -> Errors:
        """How far the frozen head misses the scores that its own modules give in float32."""
        output = network.in_float32(self.model, batch.inputs)
        yield from network.end_errors(output)
        questions, rows = list(batch.questions), self._rows(batch, output)
        count = 0 if self.head.output is None else self.head.output.weight.shape[1]
        # Other columns, too, at the first question about each text.
        asked = list(zip(questions, rows, strict=True))[: network.texts]
        for column in range(0, count, max(1, count // COLUMNS)):
            questions += [
                replace(each, target=column, contrast=None, answer=()) for each, _ in asked
            ]
            rows += [row[-1] if each.answer else row for each, row in asked]
        seeds = self.seeds(network, questions, rows)
        for b in range(network.texts):
            missed, sizes = [0.0], [torch.finfo(torch.float32).tiny]
            for seed in seeds[b :: network.texts]:
                g = seed.gradient
                owned = float((g * network.behind()[b, : len(g)]).sum())
                shares = [owned, *seed.bias_part.values()]
                missed += [abs(seed.by_algebra - seed.value), abs(sum(shares) - seed.value)]
                sizes += map(abs, [seed.value, *seed.columns, *shares])
            yield "scores", max(missed) / max(sizes)

    def _packed(
        self,
        network: FrozenNetwork,
        seeds: Sequence[backward.Seed],
        passed: Sequence[backward.Passed],
    ) -> list[Explanation]:
        """Check what was carried back and pack it up."""
        lens, head, answers = self.lens, self.head, []
        if lens.device.type == "cuda":
            torch.cuda.synchronize(lens.device)
        backward.check_layers(network, passed)
        for k, seed in enumerate(seeds):
            fields = backward.Packer(network, passed, divmod(k, network.texts)).fields(seed)
            question, tolerance = seed.question, batches.SCORE_TOLERANCE[lens.dtype]
            said = batches.provenance(lens, self.rule, fields["completeness"], tolerance)
            said["head"] = type(lens.adapter.whole).__name__
            item = self.items[question.sequence]
            axis = item.axis
            if item.source is not None:
                said["target"] = item.generated or "given"
                axis = item.source.axis.followed_by(axis)
                fields["encoder_tokens"] = len(item.source)
                fields["encoder_layers"] = network.firsts[-1]
            if head.note is not None:
                said["note"] = head.note
            scores = zip(("target", "contrast"), question.columns, seed.scores, strict=False)
            for name, (column, _), score in scores:
                fields[name] = label_of(column, head, lens.tokenizer)
                fields |= {f"{name}_id": column, f"{name}_value": score}
            if question.answer:
                ids = list(question.answer)
                fields["target"] = question.label or label_of(ids[0], head, lens.tokenizer)
                fields |= {"answer_ids": ids, "score": question.score}
                fields["log_probability"] = seed.log_probability
                if item.generated is not None:
                    said["target"] = item.generated
            names = "probability", "contrast_probability"
            fields |= zip(names, seed.probabilities, strict=False)
            answers.append(
                Explanation(
                    task="direction" if question.direction is not None else head.task,
                    position=question.position,
                    layer=question.layer,
                    value=seed.value,
                    provenance=said,
                    text=item.whole_text,
                    grid=item.grid,
                    **axis.labels,
                    **fields,
                )
            )
        return answers

    # How much is kept and carried back at once.

    def _is_long(self, item: Encoded) -> bool:
        """Whether a text's attention weights would take too much memory, and need not be formed."""
        heads = max(attention.heads for layer in self.lens.layers for attention in layer.attentions)
        size = heads * item.longest**2 * self.lens.dtype.itemsize
        return size > self.alpha_bytes and tracing.can_keep_queries(self.lens.layers)

    def _keeps_flow(self, n: int) -> bool | int:
        """Whether flow maps of texts of n tokens are kept, or how many of their edges."""
        if self.options.flow is not None:
            return self.options.flow
        return self.lens.n_layers * n * n * self.lens.compute_dtype.itemsize <= FLOW_BYTES

    def _at_once(self, n: int, texts: int) -> int:
        """How many scores of texts of n tokens are carried back together, as many of each."""
        layers = self.lens.layers
        widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
        each = n * (4 * widest + 8 * layers[0].width)
        if (flow := self._keeps_flow(n)) or self.options.heads:
            maps = 1 if flow > 1 else layers[0].attention.heads
            each += 3 * maps * n * n
        each *= 2 * texts * self.lens.compute_dtype.itemsize
        return texts * max(1, (self.limit or DEFAULT_LIMIT) // each)


def gradients(seeds: Sequence[backward.Seed], network: FrozenNetwork) -> Tensor:
    """The gradients (score, n, d) of scores, padded."""
    longest = max(network.lengths[-1])
    if len(seeds) == 1 and len(seeds[0].gradient) == longest:
        return seeds[0].gradient[None]
    rows = pad_sequence([seed.gradient for seed in seeds], batch_first=True)
    return F.pad(rows, (0, 0, 0, longest - rows.shape[1]))


class RecordedPasses:
    """Both passes of a batch as CUDA graphs, with the tensors that they read and write.

    Between the two, Python computes the gradients that the backward pass begins with.
    """

    pending = False  # whoever replays them reads the results before the next replay

    def __init__(self, explainer: Explainer, batch: Batch, state: ModelState):
        self.state, self.used = state, threading.Lock()
        adapter = explainer.lens.adapter
        with tracing.reading(adapter.whole, adapter):
            self.forward = Captured(partial(explainer.forward, batch.given), batch.inputs)
            network, output = self.forward.replay(batch.inputs)
            network.real_lengths = batch.lengths
            seeds = explainer.seeds(network, batch.questions, explainer._rows(batch, output))
            self.back = Captured(
                lambda given: explainer.back(network, seeds, given["g"]),
                {"g": gradients(seeds, network)},
            )
        self.bytes = self.forward.bytes + self.back.bytes

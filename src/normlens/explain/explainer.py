"""One call of `Lens.explain`: batches through the model and back, checked and packed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from normlens.errors import (
    InputError,
    MemoryLimitError,
    UnsupportedModelError,
    is_out_of_memory,
    process_limit,
)
from normlens.explain.backward import (
    ModelScores,
    Packer,
    Passed,
    Start,
    ask_for_places,
    carry,
    check_layers,
    start,
)
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.questions import Question, QuestionReader, Target, label_of
from normlens.explain.whole_vectors import text_vector
from normlens.frozen.scores import SCORES, Errors
from normlens.gpu.graphs import HAS_GRAPH_EVENTS, Captured, Inputs, ModelState, described
from normlens.inputs.text import Encoded
from normlens.layers import LAST, OF_CLASSES, OF_TOKENS, SENTENCES, Head
from normlens.options import DEFAULT_LIMIT, ExplainOptions, parse_bytes
from normlens.pipeline.batches import (
    SCORE_TOLERANCE,
    batches,
    provenance,
    scopes_of,
)
from normlens.pipeline.collector import reads_others, token_axis
from normlens.pipeline.progress import Progress
from normlens.results.explanation import Explanation, Explanations
from normlens.scopes import is_among, resolve
from normlens.trace.locking import exclusive
from normlens.trace.run import model_inputs, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# From a call of `Lens.explain` to questions, and from their answers to its result.


#: One of a kind, or a list with one for each text.
Targets: TypeAlias = Target | Sequence[Target | None] | None
Positions: TypeAlias = int | str | Sequence[int | str | None] | None
#: Which token of the target is explained: its place from 0, a word, or "all".
Token: TypeAlias = int | str
Tokens: TypeAlias = Token | Sequence[Token | None] | None


def ask(
    lens: Lens,
    items: Sequence[Encoded],
    many: bool,
    options: ExplainOptions,
    progress: Progress | None = None,
    *,
    target: Targets = None,
    contrast: Targets = None,
    position: Positions | Tokens = None,
    direction: Any = None,
    layer: int | None = None,
) -> Any:
    """Answer what a call of `Lens.explain` asks; a list where any part of it was a list.

    Of an encoder–decoder, `position` says which token of the target is explained, and there is
    neither a `target` nor a `direction`.
    """
    if direction is not None and (target is not None or contrast is not None):
        raise InputError("give a target or a direction, not both")
    if direction is None and layer is not None:
        raise InputError("layer goes with direction=…; a target is read at the model's end")
    reader = QuestionReader(lens, options, direction, layer)
    given = [range(len(items)) if many else 0, target, contrast, position]
    lists = [value for value in given[1:] if isinstance(value, (list, tuple))]
    lengths = {*([len(items)] if many else []), *map(len, lists)}
    several = lengths - {1} or lengths
    if len(several) > 1:
        raise InputError(
            "texts, targets, contrasts, positions or tokens in lists must be equally long, not "
            f"{', '.join(map(str, sorted(several)))}"
        )
    if 0 in lengths and lists:
        raise InputError("a list of targets, contrasts, positions or tokens is empty")
    count = next(iter(several), 1)
    # One value for each question: a value that is none or alone in a list stands for all.
    columns: list[list[Any]] = [
        list(value) * (count if len(value) == 1 else 1)
        if isinstance(value, (list, tuple, range))
        else [value] * count
        for value in given
    ]
    read = [reader.read(index, items[index], *rest) for index, *rest in zip(*columns, strict=True)]
    flat = [each for one in read for each in (one if isinstance(one, list) else [one])]
    found = iter(Explainer(lens, reader.head, options, progress).explain(items, flat))
    answers = [
        Explanations([next(found) for _ in one]) if isinstance(one, list) else next(found)
        for one in read
    ]
    return answers if many or lists else answers[0]


# One call: batches through the model and back.


#: Questions that are answered together: one about each of several texts, or several about one.
Work = Sequence[tuple[Encoded, Question]]
#: Flow maps of one score are kept without being asked for up to this size.
FLOW_BYTES = 1 << 27
#: Scores of a head that are compared with float32, beside the one that is asked for.
COLUMNS = 8
#: Recorded are batches of up to so many tokens, and tokens times numbers of a layer's weights: a
#: short text's thousands of small kernels take longer to launch than to run.
TOKENS, WORK = 2048, 2e11


@dataclass(frozen=True)
class Score:
    """One question's number as the model itself says it, and where its way back begins."""

    question: Question  # with the target that the model chose, if it was to choose
    start: Start
    value: float
    scores: tuple[float, ...] = ()  # the target's, and the contrast's
    probabilities: tuple[float, ...] = ()


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
            work = [(encoded[questions[i].sequence], questions[i]) for i in indices]
            answers |= zip(indices, self._answers(work), strict=True)
        return [answers[index] for index in range(len(questions))]

    def _batches(
        self, encoded: Sequence[Encoded], questions: Sequence[Question]
    ) -> Iterator[list[int]]:
        """Questions that are answered together."""
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
                yield sorted(single[place] for place in places)
        yield from (indices for indices in of_text.values() if len(indices) > 1)

    def _answers(self, work: Work) -> list[Explanation]:
        """Answer questions together; where memory runs out, the halves one after the other.

        Recordings give back theirs before.
        """
        lens = self.lens

        def run() -> list[Explanation]:
            with torch.no_grad(), without_autocast(lens.device):
                answers = self._replayed(work)
                if answers is not None:
                    return answers
                with reading(lens.adapter.whole, lens.adapter):
                    return self._run(work)

        try:
            return exclusive(lens.adapter.whole, run)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
                raise
            had_recordings = lens.recordings.forget()
            if len(work) == 1 and not had_recordings:
                raise MemoryLimitError(
                    f"an explanation of {work[0][0].longest} tokens does not fit into the memory "
                    f"of {lens.device}; use a shorter text, flow=False, or another device"
                    f"{process_limit()}"
                ) from None
        if had_recordings:
            return self._answers(work)
        half = len(work) // 2
        return self._answers(work[:half]) + self._answers(work[half:])

    def _run(self, work: Work) -> list[Explanation]:
        """Run the model on a batch once and carry back every question about it."""
        inputs, places = self._inputs(work)
        network, returned = self.forward(work, inputs, places)
        scores = self.scores(network, returned, work)
        if scores[0].question.layer is None:
            errors = partial(self._head_errors, network, inputs, places, work)
            rule, task = self.options.nonlinearity, self.head.task
            self.lens.float32_check.once(rule, task, "the head", errors)
        answers: list[Explanation] = []
        at_once = self._at_once(network.tokens, network.texts)
        for first in range(0, len(scores), at_once):
            chunk = scores[first : first + at_once]
            passed = self.back(network, chunk, gradients(chunk), self.progress)
            answers += self._packed(work[first:], network, chunk, passed)
        return answers

    def _replayed(self, work: Work) -> list[Explanation] | None:
        """The same by recorded kernels, where questions of this kind are recorded."""
        recordings, model = self.lens.recordings, self.lens.adapter.whole
        if self.lens.device.type != "cuda" or not HAS_GRAPH_EVENTS or self.progress is not None:
            return None
        inputs, places = self._inputs(work)
        lengths = [len(item) for item in texts_of(work)]
        layers, tokens = self.lens.layers, sum(lengths)
        numbers = max(sum(linear.weight.numel() for linear in each.linear_maps) for each in layers)
        if self.lens.two_stacks or tokens > TOKENS or tokens * numbers > WORK:
            return None
        if self._at_once(max(lengths), len(lengths)) < len(work):
            return None
        asked = tuple((question.position, question.layer) for _, question in work)
        kind = "passes", repr(self.options), self.head.task
        key = *kind, tuple(lengths), described(inputs), asked
        record = partial(RecordedPasses, self, work, inputs, places)
        with recordings.acquire(model, key, record) as passes:
            if passes is None:
                return None
            replayed = passes.replay(self, work, inputs)
            if replayed is not None:
                return self._packed(work, *replayed)
        recordings.forget()
        return None

    def _inputs(self, work: Work) -> tuple[dict[str, Any], list[int] | None]:
        """The model's inputs, and the positions that it is asked for where it can choose."""
        adapter = self.lens.adapter
        inputs = model_inputs(adapter, texts_of(work), self.lens.device)
        if self.head.output is None:
            return inputs, None
        positions = (question.position for _, question in work)
        return inputs, ask_for_places(adapter.whole, inputs, positions)

    def forward(
        self, work: Work, inputs: dict[str, Any], places: list[int] | None
    ) -> tuple[FrozenNetwork, ModelScores]:
        """Run the model."""
        lens = self.lens
        if not lens.two_stacks and any(map(reads_others, lens.layers)):
            raise UnsupportedModelError(
                f"the layers of {lens.name} read another sequence, whose tokens would own a part "
                "of the score, too; describe it as an encoder–decoder "
                "(normlens.models.parts.TwoStacks)"
            )
        limit = parse_bytes(self.options.memory_limit)
        kept_bytes = (limit or DEFAULT_LIMIT) // KEPT_SHARE
        if limit is None and lens.device.type == "cuda":
            # A GPU whose memory holds the model has room for as much as half of that.
            kept_bytes = sum(parameter.nbytes for parameter in lens.model.parameters()) // 2
        network = FrozenNetwork(lens, texts_of(work), self.options.nonlinearity, kept_bytes)
        output = network.forward(self._model, inputs, SCORES)
        return network, self._returned(network, output, places)

    def scores(self, network: FrozenNetwork, returned: ModelScores, work: Work) -> list[Score]:
        """The score of each question."""
        return [
            self._score(network, k % network.texts, question, returned)
            for k, (_, question) in enumerate(work)
        ]

    def back(
        self,
        network: FrozenNetwork,
        scores: Sequence[Score],
        g: Tensor,
        progress: Progress | None = None,
    ) -> list[Passed]:
        """Carry the gradients g (score, n, d) of scores back through the model."""
        return carry(
            network,
            g.unflatten(0, (-1, network.texts)),
            scores[0].question.layer,
            flow_maps=self._keeps_flow(network.tokens),
            by_head=self.options.heads,
            scopes=self._scopes(network.firsts),
            progress=progress,
        )

    def _packed(
        self, work: Work, network: FrozenNetwork, scores: Sequence[Score], passed: Sequence[Passed]
    ) -> list[Explanation]:
        """Check what was carried back and pack it up."""
        if self.lens.device.type == "cuda":
            torch.cuda.synchronize(self.lens.device)
        check_layers(network, passed)
        answers = []
        for k, ((item, _), score) in enumerate(zip(work, scores, strict=False)):
            packer = Packer(network, passed, divmod(k, network.texts))
            packed = packer.fields(score.start, score.value)
            answers.append(self._explanation(item, score, packed, network.firsts[-1]))
        return answers

    def _explanation(
        self, item: Encoded, score: Score, packed: dict[str, Any], encoder_layers: int
    ) -> Explanation:
        """The answer to one question."""
        lens, question = self.lens, score.question
        tolerance, rule = SCORE_TOLERANCE[lens.dtype], self.options.nonlinearity
        said = provenance(lens, rule, packed["completeness"], tolerance)
        said["head"] = type(lens.adapter.whole).__name__
        axis, two = token_axis(item), dict[str, Any]()
        if item.source is not None:
            said["target"] = item.generated or "given"
            two = {"encoder_tokens": len(item.source), "encoder_layers": encoder_layers}
            axis = token_axis(item.source).followed_by(axis)
        if self.head.note is not None:
            said["note"] = self.head.note

        def both(values: Sequence[Any]) -> list[Any]:
            return [*values, None, None][:2]

        columns = [column for column, _ in question.columns]
        labels = [label_of(column, self.head, lens.tokenizer) for column in columns]
        target, contrast = both(labels)
        target_id, contrast_id = both(columns)
        target_value, contrast_value = both(score.scores)
        probability, contrast_probability = both(score.probabilities)
        return Explanation(
            task="direction" if question.direction is not None else self.head.task,
            position=question.position,
            layer=question.layer,
            value=score.value,
            target=target,
            target_id=target_id,
            target_value=target_value,
            probability=probability,
            contrast=contrast,
            contrast_id=contrast_id,
            contrast_value=contrast_value,
            contrast_probability=contrast_probability,
            provenance=said,
            text=item.whole_text,
            grid=item.grid,
            **axis.labels,
            **packed,
            **two,
        )

    @property
    def _model(self) -> nn.Module:
        adapter = self.lens.adapter
        return adapter.model if self.head.output is None else adapter.whole

    def _returned(
        self, network: FrozenNetwork, output: Any, places: list[int] | None
    ) -> ModelScores:
        """The scores, or vectors, in what the model returned."""
        if self.head.output is not None:
            return ModelScores.of_output(output, places)
        vectors = output[0]
        if self.head.task == SENTENCES:
            vectors = torch.stack(
                [
                    text_vector(self._head, vectors[b, :n].to(self.lens.compute_dtype))
                    for b, n in enumerate(network.lengths[-1])
                ]
            )
        return ModelScores(vectors, None)

    def _head_errors(
        self,
        network: FrozenNetwork,
        inputs: dict[str, Any],
        places: list[int] | None,
        work: Work,
    ) -> Errors:
        """How far the frozen head misses the scores that its own modules give in float32."""
        output = network.in_float32(self._model, inputs)
        yield from network.end_errors(output)
        returned = self._returned(network, output, places)
        count = 0 if self.head.output is None else self.head.output.weight.shape[1]
        others = range(0, count, max(1, count // COLUMNS))
        for b in range(network.texts):
            questions = [question for _, question in work[b :: network.texts]]
            asks = [*questions, *(replace(questions[0], target=c, contrast=None) for c in others)]
            missed, sizes = [0.0], [torch.finfo(torch.float32).tiny]
            for question in asks:
                score = self._score(network, b, question, returned)
                g, value = score.start.gradient, score.value
                owned = float((g * network.last[-1][b, : len(g)].to(g)).sum())
                shares = [owned, *score.start.bias_part.values()]
                missed += [abs(score.start.value - value), abs(sum(shares) - value)]
                sizes += map(abs, [value, *score.start.columns, *shares])
            yield "scores", max(missed) / max(sizes)

    def _score(
        self, network: FrozenNetwork, b: int, question: Question, returned: ModelScores
    ) -> Score:
        """One question's number, as the model itself says it, and where its way back begins."""
        last, layer, direction = network.last[-1], question.layer, question.direction
        if layer is not None and layer + 1 < len(network):
            last = network.x(layer + 1)
        last = last[b, : network.lengths[-1][b]].to(self.lens.compute_dtype)
        own = last if layer is not None else returned.of(b, question.position).double()
        if direction is None and question.target is None:
            question = replace(question, target=int(own.argmax()))
        began = start(question, self._head, last, network.rule)
        if direction is not None:
            said = began.value if layer is not None else float(own @ direction.to(own))
            return Score(question, began, said)
        scores = tuple(float(own[column]) for column, _ in question.columns)
        value = sum(sign * s for (_, sign), s in zip(question.columns, scores, strict=True))
        probabilities: tuple[float, ...] = ()
        # A regression has none, nor have scores that are not compared with each other.
        if self.head.task in (*OF_TOKENS, *OF_CLASSES) and self.head.exclusive and len(own) > 1:
            total = torch.logsumexp(own, 0)
            probabilities = tuple(float((own[c] - total).exp()) for c, _ in question.columns)
        return Score(question, began, value, scores, probabilities)

    @cached_property
    def _head(self) -> Head:
        return self.head.to(self.lens.compute_dtype)

    def _scopes(self, firsts: Sequence[int]) -> frozenset[str]:
        """The scopes that are meant in any stack; one that none has is an error."""
        layers, asked = self.lens.layers, self.options.scopes or ()
        if asked == "all":
            return frozenset(self.lens.scopes)
        names = [asked] if isinstance(asked, str) else list(asked)
        stacks = [scopes_of(layers[i:j]) for i, j in pairwise([*firsts, len(layers)])]
        for name in names:
            if not any(is_among(name, scopes) for scopes in stacks):
                resolve(name, self.lens.scopes)  # raises, and lists them all
        found = ((name, scopes) for scopes in stacks for name in names if is_among(name, scopes))
        return frozenset(resolve(name, scopes) for name, scopes in found)

    # How much is kept and carried back at once.

    def _keeps_flow(self, n: int) -> bool:
        """Whether flow maps of texts of n tokens are kept."""
        if self.options.flow is not None:
            return self.options.flow
        return self.lens.n_layers * n * n * self.lens.compute_dtype.itemsize <= FLOW_BYTES

    def _at_once(self, n: int, texts: int) -> int:
        """How many scores of texts of n tokens are carried back together, as many of each."""
        layers = self.lens.layers
        widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
        each = n * (4 * widest + 8 * layers[0].width)
        if self._keeps_flow(n) or self.options.heads:
            each += 3 * layers[0].attention.heads * n * n
        limit = parse_bytes(self.options.memory_limit) or DEFAULT_LIMIT
        return texts * max(1, limit // (2 * texts * each * self.lens.compute_dtype.itemsize))


def texts_of(work: Work) -> list[Encoded]:
    """The texts that questions are about, each once."""
    texts = [item for item, _ in work]
    return texts if work[0][1].sequence != work[-1][1].sequence else texts[:1]


def gradients(scores: Sequence[Score]) -> Tensor:
    """The gradients (score, n, d) of scores, padded."""
    return pad_sequence([score.start.gradient for score in scores], batch_first=True)


class RecordedPasses:
    """Both passes of a batch as CUDA graphs, with the tensors that they read and write.

    Between the two Python reads where the way back begins.
    """

    pending = False  # whoever replays them reads the results before the next replay

    def __init__(
        self,
        explainer: Explainer,
        work: Work,
        inputs: Inputs,
        places: list[int] | None,
        state: ModelState,
    ):
        self.state, self.used = state, threading.Lock()
        adapter = explainer.lens.adapter
        with reading(adapter.whole, adapter):
            self._forward = Captured(lambda given: explainer.forward(work, given, places), inputs)
            network, returned = self._forward.replay(inputs)
            scores = explainer.scores(network, returned, work)
            self._back = Captured(
                lambda given: explainer.back(network, scores, given["g"]), {"g": gradients(scores)}
            )
        self.bytes = self._forward.bytes + self._back.bytes

    def replay(
        self, explainer: Explainer, work: Work, inputs: Inputs
    ) -> tuple[FrozenNetwork, list[Score], list[Passed]] | None:
        """Start both passes on other inputs; the results are there when the GPU is done.

        None if the model is no longer the one that was recorded, which is found out meanwhile.
        """
        network, returned = self._forward.replay(inputs)
        if not self.state.holds():
            return None
        scores = explainer.scores(network, returned, work)
        return network, scores, self._back.replay({"g": gradients(scores)})

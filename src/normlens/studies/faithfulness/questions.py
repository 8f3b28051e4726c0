"""Questions (the score of one text) and the scores of a text's variants, by the real model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import InputError
from normlens.explain.backward import ask_for_places, chooses_positions, rows_read
from normlens.explain.questions import column_of, label_of, place_of
from normlens.explain.search import check_texts
from normlens.explain.whole_vectors import text_vector
from normlens.inputs.text import Encoded
from normlens.layers import ANY, CAUSAL, LAST, MASKED, SEQUENCES, Head
from normlens.models.base import read_head
from normlens.options import AUTO, DEFAULT_LIMIT
from normlens.pipeline.batches import batches, halves
from normlens.plan.costs import SHARE, device_memory
from normlens.trace.checks import check_chunks, check_weights
from normlens.trace.locking import Hooks, exclusive
from normlens.trace.run import model_inputs, plain_options, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens

# Variants of a text: some of its tokens replaced by others, or left out.


@dataclass(frozen=True)
class Variant:
    """The tokens that the model is given, and where its score is read among them."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None
    position: int | None = None  # None: the score belongs to the whole text

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError("a variant without any token cannot be scored; leave one token")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def whole(cls, encoded: Encoded, position: int | None = None) -> Variant:
        """The text as it is."""
        types = None if encoded.type_ids is None else tuple(encoded.type_ids)
        return cls(tuple(encoded.ids), types, position)

    @property
    def encoded(self) -> Encoded:
        """The variant as an encoded sequence."""
        types = None if self.type_ids is None else list(self.type_ids)
        return Encoded(list(self.ids), [""] * len(self), [False] * len(self), types)


# What the model itself says of variants: logits where they are read, and texts' vectors.


T = TypeVar("T")

#: Most variants of a batch; a processor gains nothing beyond a few.
LARGEST, LARGEST_ON_CPU = 512, 32
ROOM_ON_CPU = 1 << 30

#: Takes the vectors (b, i, d) that are about to enter the first layer and returns what does.
Entering = Callable[[Tensor], Tensor]


def alone(lens: Lens, work: Callable[[], T], *, gradients: bool = False) -> T:
    """Call `work` with exclusive use of the model, set up as for an analysis."""

    def run() -> T:
        with ExitStack() as stack:
            stack.enter_context(without_autocast(lens.device))
            stack.enter_context(reading(lens.adapter.whole, lens.adapter))
            if gradients:
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.enable_grad())
            return work()

    return exclusive(lens.adapter.whole, run)


def by_batches(
    lens: Lens,
    head: Head,
    variants: Sequence[Variant],
    batch_size: int | str,
    work: Callable[[list[int]], Tensor],
    *,
    gradients: bool = False,
) -> Tensor:
    """Run `work` over batches of variants; returns (variant, …) in float64 on the CPU.

    `work` is given the places of the variants in a batch. They are of similar length; where memory
    runs out, the halves go one after the other.
    """
    rows: dict[int, Tensor] = {}
    waiting = list(_batches(lens, head, variants, batch_size, gradients))
    while waiting:
        places = waiting.pop(0)
        try:
            done = alone(lens, partial(work, places), gradients=gradients)
        except (RuntimeError, MemoryError) as error:
            waiting[:0] = halves(lens, [variant.encoded for variant in variants], places, error)
            continue
        rows |= zip(places, done.double().cpu(), strict=True)
    return torch.stack([rows[place] for place in range(len(variants))])


def logits(lens: Lens, batch: Sequence[Variant], entering: Entering | None = None) -> Tensor:
    """The model's scores (b, word or class) where each variant is read. For use inside `alone`."""
    whole = lens.adapter.whole
    inputs: dict[str, Any] = dict(_inputs(lens, batch))
    positions = [variant.position for variant in batch]
    places = ask_for_places(whole, inputs, positions)
    output = _call(lens, whole, inputs, entering)
    return torch.stack(rows_read(output, places, enumerate(positions)))


def text_vectors(
    lens: Lens, head: Head, batch: Sequence[Variant], entering: Entering | None = None
) -> Tensor:
    """The vectors u (b, d) of texts, as `head` pools them. For use inside `alone`."""
    output = _call(lens, lens.model, _inputs(lens, batch), entering)
    last = output.last_hidden_state.to(lens.compute_dtype)  # (b, i, d)
    pooled = head.to(lens.compute_dtype)
    return torch.stack([text_vector(pooled, last[b, : len(v)]) for b, v in enumerate(batch)])


def affordable(lens: Lens, n: int, *, gradients: bool = False) -> int:
    """How many variants of n tokens go through the model together.

    The memory that happens to be free at the moment does not count: numbers must not depend on
    what ran before.
    """
    layers = lens.layers
    heads = max(layer.attention.heads for layer in layers)
    d = layers[0].attention.output.weight.shape[1]
    widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
    # Bytes of one sequence inside a layer: scores, vectors, neurons.
    each = lens.dtype.itemsize * n * (3 * heads * n + 8 * d + 3 * widest)
    if gradients:  # autograd keeps what every layer computed
        each *= 2 * lens.n_layers
    if lens.device.type == "cpu":
        return max(1, min(LARGEST_ON_CPU, ROOM_ON_CPU // each))
    weights = sum(parameter.nbytes for parameter in lens.adapter.whole.parameters())
    room = max(0, device_memory(lens.device) - weights) // SHARE
    return max(1, min(LARGEST, room // each))


def sentence_head(lens: Lens) -> Head:
    """Return the head that pools a text into one vector."""
    return lens.pooling.head(lens.adapter.end(), lens.device)


def _inputs(lens: Lens, batch: Sequence[Variant]) -> dict[str, Tensor]:
    return model_inputs(lens.adapter, [variant.encoded for variant in batch], lens.device)


def _call(lens: Lens, model: nn.Module, inputs: dict[str, Any], entering: Entering | None) -> Any:
    blocks = list(lens.adapter.blocks())
    check_weights(model, lens.layers)
    check_chunks(blocks, inputs["input_ids"].shape[1])
    with Hooks() as hooks:
        if entering is not None:
            hooks.before(blocks[0], _first_call(entering))
        return model(**inputs, **plain_options(model))


def _first_call(entering: Entering) -> Callable[..., Any]:
    """Make a hook that passes the embeddings through `entering` before the first layer.

    A block that serves as several layers is changed when it runs as the first of them.
    """
    is_changed = False

    def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal is_changed
        if is_changed:
            return None
        is_changed = True
        if args:
            return (entering(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": entering(kwargs["hidden_states"])}

    return change


def _batches(
    lens: Lens, head: Head, variants: Sequence[Variant], batch_size: int | str, gradients: bool
) -> Iterator[list[int]]:
    """The places of the variants in each batch."""
    if head.reads == LAST and getattr(lens.adapter.config, "pad_token_id", None) is None:
        # Such a classifier cannot tell padding from text.
        yield from ([place] for place in range(len(variants)))
        return
    longest = max(map(len, variants), default=1)
    size = affordable(lens, longest, gradients=gradients) if batch_size == AUTO else int(batch_size)
    if head.output is not None and head.reads == ANY and not chooses_positions(lens.adapter.whole):
        # The model returns the logits of all positions.
        each = longest * head.output.weight.shape[1] * lens.dtype.itemsize
        size = max(1, min(size, DEFAULT_LIMIT // each))
    yield from batches(lens, [variant.encoded for variant in variants], size)


# Questions: the score of one text that attributions explain and that removals change.
#
# Every method that has a direction explains the same score: logit(target) − logit(contrast), or
# the cosine with another text's vector.


CLASSES, NEXT_TOKEN, MASKED_TOKEN, COSINE = "classes", "next-token", "masked-token", "cosine"


@dataclass(frozen=True, eq=False)
class Question:
    """One number that a model gives for one text."""

    encoded: Encoded
    target: int | None = None  # class, or vocabulary id
    contrast: int | None = None  # the score is the target's logit less this one's
    position: int | None = None  # where the score is read; None: it is of the whole text
    other: NDArray[np.float64] | None = None  # unit vector v: the score is u·v / ‖u‖
    masked: bool = False  # `position` is a mask, which the target fills

    def __post_init__(self) -> None:
        if (self.target is None) == (self.other is None):
            raise InputError("a question has a target or another text's vector, one of the two")
        if self.target is not None and self.target == self.contrast:
            raise InputError("target and contrast are the same, so there is no difference")

    @property
    def kind(self) -> str:
        """What the score is about: "classes", "next-token", "masked-token" or "cosine"."""
        if self.other is not None:
            return COSINE
        if self.position is None:
            return CLASSES
        return MASKED_TOKEN if self.masked else NEXT_TOKEN

    def __len__(self) -> int:
        return len(self.encoded)

    @cached_property
    def ordinary(self) -> list[int]:
        """The tokens that may be removed: those that are not special, nor the mask to fill."""
        slot = self.position if self.masked else None
        special = self.encoded.special
        return [place for place in range(len(self)) if not special[place] and place != slot]

    # Variants of the text ----------------------------------------------------------------------

    @property
    def whole(self) -> Variant:
        """The text as it is."""
        return Variant.whole(self.encoded, self.position)

    def replaced(self, places: Collection[int], token: int | Sequence[int]) -> Variant:
        """Replace the tokens at `places` by `token`, or by one token for each place."""
        tokens = [token] * len(places) if isinstance(token, int) else token
        ids = list(self.encoded.ids)
        for place, new in zip(places, tokens, strict=True):
            ids[place] = new
        return replace(self.whole, ids=tuple(ids))

    def without(self, places: Collection[int]) -> Variant:
        """Leave the tokens at `places` out.

        Where the token that the score is read at is left out, the one before it is read; a mask
        cannot be left out.
        """
        left_out = set(places)
        kept = [place for place in range(len(self)) if place not in left_out]
        whole, position = self.whole, self.position
        if position is not None:
            if self.masked and position in left_out:
                raise InputError(f"the score is read at token {position}, which cannot be left out")
            position = sum(place <= position for place in kept) - 1
            if position < 0:
                raise InputError("no token is left that the score could be read at")
        types = whole.type_ids
        return Variant(
            tuple(whole.ids[place] for place in kept),
            None if types is None else tuple(types[place] for place in kept),
            position,
        )


def same_kind(questions: Iterable[Question]) -> str:
    """The kind of questions that are answered together; they must be of one."""
    kinds = sorted({question.kind for question in questions})
    if len(kinds) != 1:
        raise InputError(f"questions of several kinds ({', '.join(kinds)}); ask them apart")
    return kinds[0]


def mask_token(lens: Lens) -> int | None:
    """The token that stands for a removed one; None where the tokenizer has none."""
    mask: int | None = getattr(lens.tokenizer, "mask_token_id", None)
    return mask


# Making questions ---------------------------------------------------------------------------------


def class_head(lens: Lens) -> Head:
    """The head of a classifier of texts, or an error that says why there is no question for it."""
    head = read_head(lens.adapter)
    if head.task != SEQUENCES:
        raise InputError(f"{lens.name} is a {head.task}; classes are asked of a {SEQUENCES}")
    assert head.output is not None
    if head.output.weight.shape[1] < 2:
        raise InputError(f"{lens.name} gives one number for a text, no choice of classes")
    return head


def class_questions(
    lens: Lens, encoded: Sequence[Encoded], *, batch_size: int | str = AUTO
) -> list[Question]:
    """Why each text's predicted class and not the runner-up.

    Classes that do not exclude each other have no runner-up: the score is the logit alone.
    """
    head = class_head(lens)
    best = _two_best(lens, head, [Variant.whole(text) for text in encoded], batch_size)
    return [
        Question(text, target, contrast if head.exclusive else None)
        for text, (target, contrast) in zip(encoded, best, strict=True)
    ]


def next_token_questions(
    lens: Lens, encoded: Sequence[Encoded], *, batch_size: int | str = AUTO
) -> list[Question]:
    """Why each text's most probable next token and not the second."""
    texts = [Variant.whole(text, len(text) - 1) for text in encoded]
    best = _two_best(lens, word_head(lens), texts, batch_size)
    return [
        Question(text, target, contrast, len(text) - 1)
        for text, (target, contrast) in zip(encoded, best, strict=True)
    ]


def _two_best(
    lens: Lens, head: Head, texts: Sequence[Variant], batch_size: int | str
) -> list[list[int]]:
    """The two columns with the largest logits of each text, the larger first."""
    if not texts:
        return []

    def best(places: list[int]) -> torch.Tensor:
        scores = logits(lens, [texts[place] for place in places])
        # Of equal scores the first column comes first, as it does in argmax.
        order = scores.double().sort(dim=-1, descending=True, stable=True)
        return order.indices[:, :2]

    columns: list[list[int]] = by_batches(lens, head, texts, batch_size, best).long().tolist()
    return columns


def word_head(lens: Lens) -> Head:
    """The head of a language model, or an error that says what there is instead."""
    head = read_head(lens.adapter)
    if head.task not in (CAUSAL, MASKED):
        raise InputError(f"{lens.name} is a {head.task}; words are asked of a language model")
    return head


def word_question(lens: Lens, encoded: Encoded, good: str | int, bad: str | int) -> Question:
    """Why `good` and not `bad` comes next, or stands at the mask: by the first token of each.

    Behind a text of a causal model, a word that comes without its space is given one.
    """
    head = word_head(lens)
    place = place_of(lens, head, encoded)
    spaced = isinstance(encoded.text, str) and encoded.text[-1:].isspace()

    def column(word: str | int, what: str) -> int:
        if isinstance(word, str) and head.task == CAUSAL and not spaced and not word[:1].isspace():
            word = f" {word}"
        return column_of(word, head, lens.tokenizer, encoded, place, True, what)

    target, contrast = column(good, "target"), column(bad, "contrast")
    if target == contrast:
        token = label_of(target, head, lens.tokenizer)
        raise InputError(f"{good!r} and {bad!r} begin with the same token, {token}")
    return Question(encoded, target, contrast, place, masked=head.task == MASKED)


def cosine_questions(
    lens: Lens, pairs: Sequence[tuple[Encoded, Encoded]], *, batch_size: int | str = AUTO
) -> list[Question]:
    """What makes the first text of each pair similar to the second, whose vector is fixed."""
    written = [(a.text, b.text) for a, b in pairs]
    check_texts(
        [(a, b) for a, b in written if isinstance(a, str) and isinstance(b, str)], lens.pooling
    )
    head = sentence_head(lens)
    others = {Variant.whole(other): None for _, other in pairs}
    if not others:
        return []
    texts = list(others)

    def pooled(places: list[int]) -> torch.Tensor:
        return text_vectors(lens, head, [texts[place] for place in places])

    vectors = by_batches(lens, head, texts, batch_size, pooled).numpy()
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(lengths > 0):
        raise InputError("one of the texts has a vector of length 0, so there is no cosine")
    units = dict(zip(texts, vectors / lengths, strict=True))
    return [Question(text, other=units[Variant.whole(other)]) for text, other in pairs]


# What an attribution costs: rows that pass the model's layers, forward and backward.
#
# A row is one sequence. Passes are counted layer by layer, so that a method that runs single
# layers again is charged for those.


@dataclass(frozen=True)
class Passes:
    """Passes of single texts through all layers."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)

    def per(self, texts: int) -> Passes:
        """Divide by the number of texts that shared the passes."""
        return Passes(self.forward / texts, self.backward / texts)


class Counter:
    """Counts while `counted` is open."""

    def __init__(self, layers: int):
        self._layers = layers
        self._forward = self._backward = 0

    @property
    def passes(self) -> Passes:
        """The passes counted so far."""
        return Passes(self._forward / self._layers, self._backward / self._layers)

    def behind(self, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        """Count the rows of a block's call; used as a hook."""
        vectors: Tensor = output[0] if isinstance(output, (tuple, list)) else output
        rows = len(vectors)
        self._forward += rows
        if vectors.requires_grad:
            vectors.register_hook(lambda _: self._back(rows))

    def _back(self, rows: int) -> None:
        # Autograd calls it on a thread of its own.
        self._backward += rows


@contextmanager
def counted(lens: Lens) -> Iterator[Counter]:
    """Count the passes through the model that this thread causes while this is open."""
    blocks = list(lens.adapter.blocks())
    counter = Counter(len(blocks))
    with Hooks() as hooks:
        for block in {id(block): block for block in blocks}.values():
            hooks.behind(block, counter.behind)
        yield counter


# Scores of a text's variants, from plain forward passes of the real model.
#
# score = logit(target) − logit(contrast), or u·v / ‖u‖


#: What stands for a prediction where there is none, as of a cosine.
NO_PREDICTION = -1


class Scored(NamedTuple):
    """What the model says of each variant; each array is (variant,)."""

    score: NDArray[np.float64]
    probability: NDArray[np.float64]  # of the target; NaN for a cosine
    predicted: NDArray[np.int64]  # the class or token with the largest logit; −1 for a cosine


def embeddings(lens: Lens, question: Question) -> Tensor:
    """What each token owns at the start: the vectors (k, d) that enter the first layer."""
    check_gradients(lens)
    vectors: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        vectors.append(x.detach().to(lens.compute_dtype))
        return x

    alone(lens, lambda: score_rows(lens, [(question, question.whole)], keep))
    return vectors[0][0]


def differentiable(lens: Lens, question: Question, vectors: Tensor) -> Tensor:
    """The scores (b,) with vectors (b, k, d) in place of the embeddings, for autograd."""
    check_gradients(lens)
    rows = [(question, question.whole)] * len(vectors)
    entering = vectors.to
    return alone(lens, lambda: score_rows(lens, rows, entering)[:, 0], gradients=True)


def score_variants(
    lens: Lens, asked: Sequence[tuple[Question, Sequence[Variant]]], *, batch_size: int | str = AUTO
) -> list[Scored]:
    """Score variants of several texts, which share batches; a repeated variant runs once."""
    rows: dict[tuple[int, Variant], int] = {}
    places: list[list[int]] = []
    for number, (_, variants) in enumerate(asked):
        places.append([rows.setdefault((number, variant), len(rows)) for variant in variants])
    if not rows:
        return [_scored(np.empty((0, 3))) for _ in asked]
    pairs = [(asked[number][0], variant) for number, variant in rows]
    same_kind(question for question, _ in pairs)

    def work(batch: list[int]) -> Tensor:
        return score_rows(lens, [pairs[place] for place in batch])

    head = head_of(lens, pairs[0][0])
    numbers = by_batches(lens, head, [variant for _, variant in pairs], batch_size, work).numpy()
    if not np.isfinite(numbers[:, 0]).all():
        raise InputError(f"{lens.name} gives scores that are not finite; load it in float32")
    return [_scored(numbers[chosen]) for chosen in places]


def score_rows(
    lens: Lens, rows: Sequence[tuple[Question, Variant]], entering: Entering | None = None
) -> Tensor:
    """Score, probability and prediction (b, 3) of a batch; the score knows its gradient.

    For use inside `outputs.alone`.
    """
    questions, variants = [question for question, _ in rows], [variant for _, variant in rows]
    if questions[0].kind == COSINE:
        u = text_vectors(lens, sentence_head(lens), variants, entering).double()
        v = torch.from_numpy(np.stack([q.other for q in questions if q.other is not None])).to(u)
        cosines = (u * v).sum(-1) / torch.linalg.vector_norm(u, dim=-1)
        nothing = torch.full_like(cosines, float("nan"))
        return torch.stack([cosines, nothing, torch.full_like(cosines, NO_PREDICTION)], dim=-1)
    head = read_head(lens.adapter)
    own = logits(lens, variants, entering).double()  # (b, c)
    targets = torch.tensor([question.target for question in questions], device=own.device)
    target = own.gather(-1, targets[:, None])[:, 0]
    contrasts = torch.tensor([question.contrast or 0 for question in questions], device=own.device)
    against = own.gather(-1, contrasts[:, None])[:, 0]
    alone_asked = torch.tensor([question.contrast is None for question in questions])
    score = torch.where(alone_asked.to(own.device), target, target - against)
    detached = target.detach()
    if head.exclusive:
        probability = (detached - own.detach().logsumexp(-1)).exp()
    else:
        probability = detached.sigmoid()
    return torch.stack([score, probability, own.argmax(-1).to(own)], dim=-1)


def head_of(lens: Lens, question: Question) -> Head:
    """The head that gives a question's score."""
    return sentence_head(lens) if question.kind == COSINE else read_head(lens.adapter)


def check_gradients(lens: Lens) -> None:
    """Refuse models whose embeddings reach the score by other ways than through the first layer."""
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"gradients of {lens.name} would miss a way around its layers: {outside}")


def _scored(numbers: NDArray[np.float64]) -> Scored:
    return Scored(numbers[:, 0], numbers[:, 1], numbers[:, 2].astype(np.int64))

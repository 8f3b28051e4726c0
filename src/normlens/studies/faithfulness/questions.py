"""Questions (the score of one text) and the scores of a text's variants, by the real model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import InputError
from normlens.explain.backward import ask_for_places, chooses_positions, rows_read
from normlens.explain.questions import column_of, label_of
from normlens.explain.search import check_texts
from normlens.explain.whole_vectors import text_vector
from normlens.inputs.text import Encoded
from normlens.layers import ANY, CAUSAL, LAST, Head
from normlens.models.base import read_head
from normlens.options import AUTO, DEFAULT_LIMIT
from normlens.pipeline.batches import batches
from normlens.plan.costs import SHARE, device_memory
from normlens.studies.model_calls import call, first_of, on_batches, with_input
from normlens.trace.locking import Hooks
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.lens import Lens

# Variants of a text: some of its tokens replaced by others, or left out.


@dataclass(frozen=True)
class Variant:
    """The tokens that the model is given, and where its score is read among them."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None
    position: int | None = None  # None: the score belongs to the whole text

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


#: Most variants of a batch; a processor gains nothing beyond a few.
LARGEST, LARGEST_ON_CPU = 512, 32
ROOM_ON_CPU = 1 << 30

#: Takes the vectors (b, i, d) that are about to enter the first layer and returns what does.
Entering = Callable[[Tensor], Tensor]


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

    `work` is given the places of the variants in a batch, which are of similar length.
    """
    encoded = [variant.encoded for variant in variants]
    batches = _batches(lens, head, encoded, batch_size, gradients)

    def rows(batch: list[int]) -> Iterable[Tensor]:
        return work(batch).double().cpu()

    return torch.stack(on_batches(lens, encoded, batches, rows, gradients=gradients))


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
    with Hooks() as hooks:
        if entering is not None:
            hooks.before(next(iter(lens.adapter.blocks())), _first_call(entering))
        return call(lens, model, inputs)


def _first_call(entering: Entering) -> Callable[..., Any]:
    """Make a hook that passes the embeddings through `entering` before the first layer.

    A block that serves as several layers is changed when it runs as the first of them.
    """
    waiting = [entering]

    def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return with_input(waiting.pop(), args, kwargs) if waiting else None

    return change


def _batches(
    lens: Lens, head: Head, encoded: Sequence[Encoded], batch_size: int | str, gradients: bool
) -> Iterable[list[int]]:
    """The places of the sequences in each batch."""
    if head.reads == LAST and getattr(lens.adapter.config, "pad_token_id", None) is None:
        # Such a classifier cannot tell padding from text.
        return [[place] for place in range(len(encoded))]
    longest = max(map(len, encoded))
    size = affordable(lens, longest, gradients=gradients) if batch_size == AUTO else int(batch_size)
    if head.output is not None and head.reads == ANY and not chooses_positions(lens.adapter.whole):
        # The model returns the logits of all positions.
        each = longest * head.output.weight.shape[1] * lens.dtype.itemsize
        size = max(1, min(size, DEFAULT_LIMIT // each))
    return batches(lens, encoded, size)


# Questions: the score of one text that attributions explain and that removals change.
#
# Every method that has a direction explains the same score: logit(target) − logit(contrast), or
# the cosine with another text's vector.


CLASSES, NEXT_TOKEN, COSINE = "classes", "next-token", "cosine"


@dataclass(frozen=True, eq=False)
class Question:
    """One number that a model gives for one text."""

    encoded: Encoded
    target: int | None = None  # class, or vocabulary id; None for a cosine
    contrast: int | None = None  # the score is the target's logit less this one's
    position: int | None = None  # where the score is read; None: it is of the whole text
    other: NDArray[np.float64] | None = None  # unit vector v: the score is u·v / ‖u‖

    @property
    def kind(self) -> str:
        """What the score is about: "classes", "next-token" or "cosine"."""
        if self.other is not None:
            return COSINE
        return CLASSES if self.position is None else NEXT_TOKEN

    def __len__(self) -> int:
        return len(self.encoded)

    @cached_property
    def ordinary(self) -> NDArray[np.intp]:
        """The places of the tokens that may be changed: those that are not special."""
        return np.flatnonzero(~np.array(self.encoded.special, bool))

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

        A score that is read at the last token is read at the last one that is left.
        """
        kept = sorted(set(range(len(self))).difference(places))
        whole = self.whole
        types = whole.type_ids
        return Variant(
            tuple(whole.ids[place] for place in kept),
            None if types is None else tuple(types[place] for place in kept),
            None if self.position is None else len(kept) - 1,
        )


def mask_token(lens: Lens) -> int | None:
    """The token that stands for a removed one; None where the tokenizer has none."""
    mask: int | None = getattr(lens.tokenizer, "mask_token_id", None)
    return mask


# Making questions ---------------------------------------------------------------------------------


def choice_questions(
    lens: Lens, encoded: Sequence[Encoded], batch_size: int | str
) -> list[Question]:
    """Why each text's class, or next token, is the model's choice and not the runner-up.

    Classes that do not exclude each other have no runner-up: the score is the logit alone.
    """
    head = read_head(lens.adapter)
    places = [len(text) - 1 if head.task == CAUSAL else None for text in encoded]
    texts = [Variant.whole(text, place) for text, place in zip(encoded, places, strict=True)]

    def best(batch: list[int]) -> Tensor:
        scores = logits(lens, [texts[number] for number in batch])
        # Of equal scores the first column comes first, as it does in argmax.
        return scores.double().sort(dim=-1, descending=True, stable=True).indices[:, :2]

    columns = by_batches(lens, head, texts, batch_size, best).long().tolist()
    return [
        Question(text, target, contrast if head.exclusive else None, place)
        for text, place, (target, contrast) in zip(encoded, places, columns, strict=True)
    ]


def word_question(lens: Lens, encoded: Encoded, good: str, bad: str) -> Question:
    """Why `good` and not `bad` comes next, by the first token of each.

    A word that comes without its space is given one.
    """
    head, place = read_head(lens.adapter), len(encoded) - 1
    spaced = isinstance(encoded.text, str) and encoded.text[-1:].isspace()

    def column(word: str, what: str) -> int:
        word = word if spaced or word[:1].isspace() else f" {word}"
        return column_of(word, head, lens.tokenizer, encoded, place, True, what)

    target, contrast = column(good, "target"), column(bad, "contrast")
    if target == contrast:
        token = label_of(target, head, lens.tokenizer)
        raise InputError(f"{good!r} and {bad!r} begin with the same token, {token}")
    return Question(encoded, target, contrast, place)


def cosine_questions(
    lens: Lens, pairs: Sequence[tuple[Encoded, Encoded]], batch_size: int | str
) -> list[Question]:
    """What makes the first text of each pair similar to the second, whose vector is fixed."""
    written = [(a.text, b.text) for a, b in pairs]
    check_texts(
        [(a, b) for a, b in written if isinstance(a, str) and isinstance(b, str)], lens.pooling
    )
    head = sentence_head(lens)
    texts = list(dict.fromkeys(Variant.whole(other) for _, other in pairs))

    def pooled(batch: list[int]) -> Tensor:
        return text_vectors(lens, head, [texts[number] for number in batch])

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


@contextmanager
def counted(lens: Lens) -> Iterator[NDArray[np.float64]]:
    """Count the passes, forward and backward, that this thread causes while this is open."""
    blocks = list(lens.adapter.blocks())
    passes = np.zeros(2)

    def count(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
        vectors = first_of(output)
        rows = len(vectors)
        passes[0] += rows

        def back(_: Tensor) -> None:
            passes[1] += rows

        if vectors.requires_grad:
            vectors.register_hook(back)

    with Hooks() as hooks:
        for block in dict.fromkeys(blocks):
            hooks.behind(block, count)
        yield passes
    passes /= len(blocks)


# Scores of a text's variants, from plain forward passes of the real model.
#
# score = logit(target) − logit(contrast), or u·v / ‖u‖


#: What the model says of variants (variant, 3): the score, the target's probability (NaN for a
#: cosine), and the class or token with the largest logit (−1 for a cosine).
Scored: TypeAlias = NDArray[np.float64]
SCORE, PROBABILITY = 0, 1


def score_variants(
    lens: Lens, asked: Sequence[tuple[Question, Sequence[Variant]]], *, batch_size: int | str = AUTO
) -> list[Scored]:
    """Score variants of several texts, which share batches."""
    rows = [(question, variant) for question, variants in asked for variant in variants]
    numbers = np.empty((0, 3))
    if rows:
        head, variants = head_of(lens, rows[0][0]), [variant for _, variant in rows]

        def work(batch: list[int]) -> Tensor:
            return score_rows(lens, [rows[number] for number in batch])

        numbers = by_batches(lens, head, variants, batch_size, work).numpy()
    if not np.isfinite(numbers[:, SCORE]).all():
        raise InputError(f"{lens.name} gives scores that are not finite; load it in float32")
    return np.split(numbers, np.cumsum([len(variants) for _, variants in asked])[:-1])


def score_rows(
    lens: Lens, rows: Sequence[tuple[Question, Variant]], entering: Entering | None = None
) -> Tensor:
    """Score, probability and prediction (b, 3) of a batch; the score knows its gradient.

    For use inside `alone`.
    """
    questions, variants = [question for question, _ in rows], [variant for _, variant in rows]
    if questions[0].kind == COSINE:
        u = text_vectors(lens, sentence_head(lens), variants, entering).double()
        v = torch.from_numpy(np.stack([q.other for q in questions if q.other is not None])).to(u)
        cosines = (u * v).sum(-1) / torch.linalg.vector_norm(u, dim=-1)
        nothing = torch.full_like(cosines, float("nan"))
        return torch.stack([cosines, nothing, torch.full_like(cosines, -1)], dim=-1)
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

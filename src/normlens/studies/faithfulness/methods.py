"""Attribution methods, with one contract: questions in, a score per token out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.corpus.measures.user_code import imported
from normlens.errors import InputError, MissingDependencyError, NormLensError, reason_of
from normlens.explain.explainer import Explainer
from normlens.explain.network import check_one_sequence
from normlens.explain.questions import Question as Asked
from normlens.explain.questions import place_of
from normlens.explain.rollouts import PREFIX, RolloutOptions, check_method
from normlens.explain.rollouts import Method as Rollout
from normlens.explain.rollouts import method as rollout
from normlens.explain.whole_vectors import parts_of_texts, pooled
from normlens.inputs.text import Encoded
from normlens.layers import FIRST, MEAN, SENTENCES, Head
from normlens.models.base import read_head
from normlens.options import AUTO, IG, INPUT, AnalysisOptions, CosineOptions, ExplainOptions
from normlens.results.explanation import Explanation
from normlens.results.words import EMBEDDINGS, LAYERS
from normlens.scopes import resolve
from normlens.studies.faithfulness.options import checked_name
from normlens.studies.faithfulness.questions import (
    COSINE,
    SCORE,
    Question,
    affordable,
    by_batches,
    check_gradients,
    head_of,
    mask_token,
    score_rows,
    score_variants,
    sentence_head,
    text_vectors,
)
from normlens.studies.model_calls import alone

if TYPE_CHECKING:
    from normlens.lens import Lens

# The contract of a method: a lens and questions make one score for each token of each text.
#
# A higher score says that the token speaks more for the question's score. Methods with a
# direction give signed scores of that very number; the others say how much a token is mixed in.


Scores: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class MethodOptions:
    """How methods run; `seed` is that of `random`, `steps` are those of integrated gradients."""

    batch_size: int | str = AUTO
    seed: int = 0
    steps: int = 50


Compute: TypeAlias = Callable[["Lens", Sequence[Question], MethodOptions], Sequence[Any]]


@dataclass(frozen=True)
class Method:
    """A method by its name; calling it gives a score for every token of every question."""

    name: str
    compute: Compute
    #: raises, in one line, for a lens that the method cannot work with
    needs: Callable[[Lens], None] = lambda lens: None
    #: passes of the frozen network, which no hook on the model sees: forward for each token, and
    #: backward for each text
    frozen_forward: int = 0
    frozen_backward: int = 0

    def __call__(
        self, lens: Lens, questions: Sequence[Question], options: MethodOptions = MethodOptions()
    ) -> list[Scores]:
        """One score per token of each text, special tokens included, in float64."""
        given = list(self.compute(lens, questions, options))
        if len(given) != len(questions):
            raise InputError(
                f"{self.name!r} gave {len(given)} arrays for {len(questions)} questions"
            )
        return [self._checked(q, scores) for q, scores in zip(questions, given, strict=True)]

    def _checked(self, question: Question, given: Any) -> Scores:
        try:
            scores = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.name!r} gave no array but {type(given).__name__}") from error
        if scores.shape != (len(question),):
            shape = "×".join(map(str, scores.shape)) or "one number"
            raise InputError(f"{self.name!r} gave {shape} scores for {len(question)} tokens")
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise InputError(f"{self.name!r} gave {scores[place]} for token {place}")
        return scores


# ``random`` and ``first-token``: what attributions must do better than.


def random_scores(
    lens: Lens, questions: Sequence[Question], options: MethodOptions
) -> list[Scores]:
    """Scores (k,) from −1 to 1 that depend on a text's tokens and the seed alone.

    Their mean is 0: positive ones would add up to rank words of many tokens first.
    """
    scores = []
    for question in questions:
        named = ",".join(map(str, [options.seed, *question.encoded.ids]))
        seed = list(hashlib.sha256(named.encode()).digest())
        scores.append(2 * np.random.default_rng(seed).random(len(question)) - 1)
    return scores


def earliness(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """Scores (k,) that fall from 1 at the first ordinary token to 0; special tokens have 0."""
    scores = []
    for question in questions:
        places, falling = question.ordinary, np.zeros(len(question))
        falling[places] = 1 - np.arange(len(places)) / max(1, len(places))
        scores.append(falling)
    return scores


# ``leave-one-out``: how much the score drops without a token.
#
#     s(text) − s(text with token k masked)
#
# Where the tokenizer has no mask token, the token is deleted. Special tokens, which removals
# never touch, have 0.


def drops(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The drops (k,) of each text's score."""
    mask = mask_token(lens)
    # A text's only token cannot be deleted, and has 0.
    left_out = [
        question.ordinary if mask is not None or len(question) > 1 else question.ordinary[:0]
        for question in questions
    ]
    asked = []
    for question, places in zip(questions, left_out, strict=True):
        changed = [
            question.without([place]) if mask is None else question.replaced([place], mask)
            for place in places
        ]
        asked.append((question, [question.whole, *changed]))
    drops = []
    scored = score_variants(lens, asked, batch_size=options.batch_size)
    for question, places, one in zip(questions, left_out, scored, strict=True):
        scores = np.zeros(len(question))
        scores[places] = one[0, SCORE] - one[1:, SCORE]
        drops.append(scores)
    return drops


# ``gradient-x-input``: the score's gradient at a token's embedding, times that embedding.
#
# ∂s/∂e_k · e_k


def products(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The products (k,) of each text."""
    longest = max(map(len, questions))
    variants = [question.whole for question in questions]

    def work(places: list[int]) -> Tensor:
        entered: list[Tensor] = []

        def leaf(x: Tensor) -> Tensor:
            entered.append(x.detach().to(lens.compute_dtype).requires_grad_())
            return entered[0].to(x.dtype)

        scores = score_rows(lens, [(questions[p], variants[p]) for p in places], leaf)[:, 0]
        (gradient,) = torch.autograd.grad(scores.sum(), entered[0])  # (b, k, d)
        products = (gradient.double() * entered[0].detach().double()).sum(-1)
        return F.pad(products, (0, longest - products.shape[1]))

    head = head_of(lens, questions[0])
    rows = by_batches(lens, head, variants, options.batch_size, work, gradients=True).numpy()
    return [row[: len(question)] for question, row in zip(questions, rows, strict=True)]


# ``integrated-gradients`` (Sundararajan et al. 2017), by Captum.
#
#     e_k · ∫₀¹ ∂s/∂e_k (α e) dα
#
# from the baseline 0 at the embeddings' output, with 50 Gauss–Legendre steps.


def integrals(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The attributions (k,) of each text."""
    return [_integral(lens, question, options) for question in questions]


def _integral(lens: Lens, question: Question, options: MethodOptions) -> Scores:
    whole, vectors = (question, question.whole), list[Tensor]()

    def keep(x: Tensor) -> Tensor:
        vectors.append(x.detach().to(lens.compute_dtype)[:1])
        return x

    def scores(embeddings: Tensor) -> Tensor:
        rows = [whole] * len(embeddings)
        return alone(lens, lambda: score_rows(lens, rows, embeddings.to)[:, 0], gradients=True)

    alone(lens, lambda: score_rows(lens, [whole], keep))
    e, size = vectors[0], options.batch_size  # (1, k, d)
    at_once = affordable(lens, len(question), gradients=True) if size == AUTO else int(size)
    attributions = (
        _captum()
        .IntegratedGradients(scores)
        .attribute(
            e,
            baselines=torch.zeros_like(e),
            n_steps=options.steps,
            method="gausslegendre",
            internal_batch_size=min(at_once, options.steps),
        )
    )
    return attributions[0].detach().double().sum(-1).cpu().numpy()


def check_captum(lens: Lens) -> None:
    """Refuse where Captum is missing, or gradients would miss a way around the layers."""
    _captum()
    check_gradients(lens)


def _captum() -> Any:
    try:
        import captum.attr
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Captum is missing; pip install 'normlens[evaluate]'"
        ) from error
    return captum.attr


# Where a question is read behind the last layer: one token's vector, or the mean of all.


def place_read(lens: Lens, question: Question) -> int | None:
    """Return the token whose last vector gives the score, or None for the mean of all."""
    if question.position is not None:
        return question.position
    if question.kind == COSINE:
        reads = lens.pooling.reads
        return None if reads == MEAN else 0 if reads == FIRST else len(question) - 1
    return place_of(lens, read_head(lens.adapter), question.encoded)


# ``normlens``: what each token contributes to the score through the frozen network.
#
#     c_k = g_k · e_k,    Σ_k c_k + biases = score
#
# One pass of the adjoint, by the rule "ig", "gradient" or "ig-bias" for activations. Of a cosine
# with v fixed, ``c_k = u_k · v / ‖u‖``.


def contributions(
    lens: Lens,
    questions: Sequence[Question],
    options: MethodOptions,
    *,
    rule: str,
    reading: str = EMBEDDINGS,
) -> list[Scores]:
    """The contributions c_k (k,) of each text, read at the embeddings or over all layers."""
    return [
        explained.read(reading).astype(np.float64) / scale
        for explained, scale in explanations(lens, questions, options, rule=rule)
    ]


def explanations(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, rule: str
) -> list[tuple[Explanation, float]]:
    """Explain each score; for a cosine explain u·v and return ‖u‖ beside it."""
    cosine = questions[0].kind == COSINE
    head = sentence_head(lens) if cosine else read_head(lens.adapter)
    chosen = ExplainOptions(nonlinearity=rule, flow=False, batch_size=options.batch_size)
    asked = [
        Asked(
            number,
            place_read(lens, question),
            question.target,
            question.contrast,
            None if question.other is None else torch.from_numpy(question.other),
        )
        for number, question in enumerate(questions)
    ]
    encoded, texts = zip(
        *((question.encoded, question.whole) for question in questions), strict=True
    )
    explained = Explainer(lens, list(encoded), head, chosen).explain(asked)

    def lengths(places: list[int]) -> Tensor:
        u = text_vectors(lens, head, [texts[place] for place in places])
        return torch.linalg.vector_norm(u, dim=-1)

    scales = by_batches(lens, head, texts, options.batch_size, lengths).tolist() if cosine else ()
    return list(zip(explained, scales or [1.0] * len(questions), strict=True))


def check_network(lens: Lens) -> None:
    """Refuse models whose layers do not compose."""
    check_one_sequence(lens)
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"scores of {lens.name} cannot be carried through its layers: {outside}")


# ``vectors``: ‖V_k‖, the length of what a token gives to the vector that the score is read from.
#
# Of a cosine it is ‖u_k‖, the length of the token's part of the text's vector.


def lengths(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The lengths (k,) of each text's vectors."""
    encoded = [question.encoded for question in questions]
    if questions[0].kind == COSINE:
        return _pooled(lens, sentence_head(lens), encoded, options)
    places = [place_read(lens, question) for question in questions]
    if None in places:  # all of one head, which reads the mean
        return _pooled(lens, Head(SENTENCES, MEAN), encoded, options)
    chosen = AnalysisOptions(
        scopes=lens.layers[-1].scopes[-1], layers=-1, origin=INPUT, batch_size=options.batch_size
    )
    maps = lens.analyse(encoded, chosen)
    rows = (one[one.scopes[-1]][-1][place] for one, place in zip(maps, places, strict=True))
    return [row.astype(np.float64) for row in rows]


def _pooled(
    lens: Lens, head: Head, encoded: Sequence[Encoded], options: MethodOptions
) -> list[Scores]:
    chosen = CosineOptions(batch_size=options.batch_size)
    readings = [pooled(head)] * len(encoded)
    parts = parts_of_texts(lens, readings, list(encoded), chosen)
    return [np.linalg.norm(part.tokens, axis=-1) for part in parts]


# Products of layers' maps: rollout of any scope or of weights, GlobEnc, ALTI, value zeroing.


_SCOPES = {"rollout-weights": "ATTN-W"}


def rows(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, product: Rollout
) -> list[Scores]:
    """The rows (j,) of the whole model's maps that the scores are read from."""
    chosen = RolloutOptions(batch_size=options.batch_size)
    maps = product(lens, [question.encoded for question in questions], chosen)
    assert isinstance(maps, list)
    scores = []
    for question, one in zip(questions, maps, strict=True):
        (scope,) = one.scopes
        whole = one[scope][-1].astype(np.float64)  # the product up to the last layer
        place = place_read(lens, question)
        scores.append(whole.mean(axis=0) if place is None else whole[place])
    return scores


def check_product(lens: Lens, *, name: str) -> None:
    """Refuse layers that cannot be multiplied, or that do not have what the method asks for."""
    check_method(lens, name)
    if name.startswith(PREFIX):
        scope = resolve(_SCOPES.get(name, name.removeprefix(PREFIX)), lens.scopes)
        lacking = [i for i, layer in enumerate(lens.layers) if scope not in layer.scopes]
        if lacking:
            raise InputError(f"layer {lacking[0]} of {lens.name} has no {scope} for {name}")


# A user's own method: ``my_module:my_function``.
#
# def my_function(lens, question): … # → one score per token def my_function(lens, questions,
# options): … # → a list of them, for a batch


def user_method(name: str) -> Method:
    """Import a function and make a method of it."""
    function = imported(name, "method")
    if isinstance(function, Method):
        return replace(function, name=name)
    if not callable(function):
        raise InputError(f"{name!r} is a {type(function).__name__}, not a method; give a function")
    takes_batches = _arguments(name, function) == 3

    def compute(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> Sequence[Any]:
        try:
            if not takes_batches:
                return [function(lens, question) for question in questions]
            given = function(lens, questions, options)
        except (NormLensError, MemoryError):
            raise
        except Exception as error:
            raise InputError(f"{name!r}: {type(error).__name__}: {reason_of(error)}") from error
        if not hasattr(given, "__len__") or isinstance(given, (str, bytes)):
            raise InputError(f"{name!r} gave {type(given).__name__}; return a list of arrays")
        return list(given)

    return Method(name, compute)


def _arguments(name: str, function: Callable[..., Any]) -> int:
    """Return how many arguments a function takes: 2 for one question, 3 for a batch."""
    for count in (2, 3):
        with suppress(TypeError, ValueError):
            inspect.signature(function).bind(*range(count))
            return count
    raise InputError(f"{name!r} takes neither (lens, question) nor (lens, questions, options)")


# Every method by its name.


_RULES = {"": IG, "-gradient": "gradient", "-ig-bias": "ig-bias"}
_LAYERS = partial(contributions, rule=IG, reading=LAYERS)
_METHODS = {
    one.name: one
    for one in (
        *(
            Method(
                f"normlens{name}",
                partial(contributions, rule=rule),
                check_network,
                frozen_backward=1,
            )
            for name, rule in _RULES.items()
        ),
        Method("normlens-layers", _LAYERS, check_network, frozen_backward=1),
        Method("vectors", lengths, check_network, frozen_forward=1),
        Method("gradient-x-input", products, check_gradients),
        Method("integrated-gradients", integrals, check_captum),
        Method("leave-one-out", drops),
        Method("random", random_scores),
        Method("first-token", earliness),
    )
}


def method(name: str) -> Method:
    """The method of this name, ``rollout-SCOPE``, or a user's own ``my_module:my_function``."""
    wanted = checked_name(name)
    if ":" in wanted:
        return user_method(wanted)
    if wanted in _METHODS:
        return _METHODS[wanted]
    # ALTI takes the part of every source as a vector; others get norms without that.
    return Method(
        wanted,
        partial(rows, product=rollout(wanted)),
        partial(check_product, name=wanted),
        frozen_forward=int(wanted == "alti"),
    )

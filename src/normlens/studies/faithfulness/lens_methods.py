"""The methods that read maps and frozen networks, a user's own, and every method by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normlens.corpus.measures.user_code import imported
from normlens.errors import InputError, NormLensError, reason_of
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
from normlens.options import IG, INPUT, AnalysisOptions, CosineOptions, ExplainOptions
from normlens.results.explanation import Explanation
from normlens.scopes import resolve
from normlens.studies.faithfulness.methods import (
    Method,
    MethodOptions,
    Scores,
    check_captum,
    drops,
    earliness,
    integrals,
    products,
    random_scores,
)
from normlens.studies.faithfulness.options import checked_name
from normlens.studies.faithfulness.questions import (
    COSINE,
    Question,
    by_batches,
    sentence_head,
    text_vectors,
)
from normlens.studies.faithfulness.scoring import Passes, check_gradients

if TYPE_CHECKING:
    from normlens.lens import Lens

# Where a question is read behind the last layer: one token's vector, or the mean of all.


def place_read(lens: Lens, question: Question) -> int | None:
    """The token whose last vector the score is read from; None: the mean of all is."""
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
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, rule: str
) -> list[Scores]:
    """The contributions c_k (k,) of each text."""
    return [
        explained.contributions.astype(np.float64) / scale
        for explained, scale in explanations(lens, questions, options, rule=rule)
    ]


def explanations(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, rule: str
) -> list[tuple[Explanation, float]]:
    """Each score traced back; of a cosine u·v is, which ‖u‖, given beside it, divides."""
    cosine = questions[0].kind == COSINE
    head = sentence_head(lens) if cosine else read_head(lens.adapter)
    chosen = ExplainOptions(
        nonlinearity=rule,
        flow=False,
        batch_size=options.batch_size,
    )
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
    encoded = [question.encoded for question in questions]
    explained = Explainer(lens, encoded, head, chosen).explain(asked)
    scales = _lengths(lens, questions, options) if cosine else [1.0] * len(questions)
    return list(zip(explained, scales, strict=True))


def _lengths(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[float]:
    """‖u‖ of each text."""
    head, texts = sentence_head(lens), [question.whole for question in questions]

    def lengths(places: list[int]) -> torch.Tensor:
        u = text_vectors(lens, head, [texts[place] for place in places])
        return torch.linalg.vector_norm(u, dim=-1)

    lengths_of: list[float] = by_batches(lens, head, texts, options.batch_size, lengths).tolist()
    return lengths_of


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
        scopes=lens.layers[-1].scopes[-1],
        layers=-1,
        origin=INPUT,
        batch_size=options.batch_size,
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
            raise InputError(
                f"{name} needs {scope} in every layer; layer {lacking[0]} of {lens.name} has none"
            )


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
        raise InputError(
            f"{name!r} is a {type(function).__name__}, not a method; write a function "
            "my_function(lens, question) that returns one score per token"
        )
    takes_batches = _arguments(name, function) == 3

    def compute(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> Sequence[Any]:
        try:
            if not takes_batches:
                return [function(lens, question) for question in questions]
            given = function(lens, questions, options)
        except (NormLensError, MemoryError):
            raise
        except Exception as error:
            raise InputError(
                f"the method {name!r} failed: {type(error).__name__}: {reason_of(error)}"
            ) from error
        if not hasattr(given, "__len__") or isinstance(given, (str, bytes)):
            raise InputError(
                f"the method {name!r} gave {type(given).__name__} for {len(questions)} questions; "
                "return a list with one array of scores for each"
            )
        return list(given)

    return Method(name, compute)


def _arguments(name: str, function: Callable[..., Any]) -> int:
    """How many arguments a function takes: a lens with one question, or with several."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(needed) in (2, 3) and all(p in places for p in needed):
        return len(needed)
    raise InputError(
        f"the method {name!r} must take (lens, question), or (lens, questions, options) for "
        f"several at a time; it needs {', '.join(p.name for p in needed) or 'nothing'}"
    )


# Every method by its name.


def _adjoint(tokens: int) -> Passes:
    return Passes(backward=1.0)


def _every_source(tokens: int) -> Passes:
    """A pass forward for each token, which is pushed through the frozen network alone."""
    return Passes(forward=float(tokens))


_METHODS = {
    one.name: one
    for one in (
        Method("normlens", partial(contributions, rule=IG), check_network, _adjoint),
        Method(
            "normlens-gradient", partial(contributions, rule="gradient"), check_network, _adjoint
        ),
        Method("normlens-ig-bias", partial(contributions, rule="ig-bias"), check_network, _adjoint),
        Method("vectors", lengths, check_network, _every_source),
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
    made = Method(
        wanted, partial(rows, product=rollout(wanted)), partial(check_product, name=wanted)
    )
    # ALTI takes the part of every source as a vector; others get norms without that.
    return replace(made, frozen_passes=_every_source) if wanted == "alti" else made

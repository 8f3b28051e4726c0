"""Questions about encoder–decoders: a source, and the target that the decoder reads.

As in `normlens.serve.models`, what needs torch is imported by the functions that use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError, UnsupportedModelError
from normlens.explain_options import ExplainOptions
from normlens.serve.jobs import CosineQuestion, Question, WhyQuestion

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pairs import Pair
    from normlens.results.explanation import Explanation

_ALL = "all"  # what `Lens.explain` calls each token in turn


def check_servable(lens: Lens, name: str) -> None:
    """Raise for a model whose sources the page has no field for."""
    if getattr(lens.adapter, "hears", False):
        raise UnsupportedModelError(
            f"{name} hears its source, and the page takes texts; in Python, "
            "lens.maps(input_features=…, target=…) analyses sound"
        )


def check_kind(lens: Lens, question: Question) -> None:
    """Raise for a question that this kind of model has no answer to."""
    name = question.model
    if not lens.two_stacks:
        if question.target_text is not None:
            raise InputError(
                f"a target text is for encoder–decoders, and {name} reads one sequence; leave it "
                "out"
            )
        return
    if isinstance(question, CosineQuestion):
        raise InputError(
            f"a cosine is of models of one stack, and {name} is an encoder–decoder; choose Maps or "
            "Explain"
        )
    if question.pair is not None:
        raise InputError(
            f"{name} is an encoder–decoder: it takes a text and a target text, and no second text"
        )


def read_pair(lens: Lens, question: Question, most: int) -> Pair:
    """Read source and target, or generate the target; neither may be longer than `most` tokens."""
    from normlens.pair_inputs import encode_pair

    whole = lens.adapter.whole
    if question.target_text is None and not getattr(whole, "can_generate", lambda: False)():
        raise InputError(
            f"{question.model} has no head that could generate a target text; type one"
        )
    pair = encode_pair(lens, (question.text, question.target_text), truncate=False)
    for side, sequence in (("text", pair.source), ("target text", pair.target)):
        if len(sequence) > most:
            raise InputError(
                f"the {side} has {len(sequence)} tokens and {question.model} takes at most {most} "
                "here; shorten it"
            )
    return pair


def explain_pair(
    lens: Lens,
    question: WhyQuestion,
    most: int,
    memory_limit: Any,
    progress: Callable[[int, int], None],
) -> Explanation:
    """Explain one token of a target: the one that is named, by default the last."""
    from normlens.explain.ask_pairs import ask_pairs
    from normlens.models.heads import read_head

    if question.position is not None:
        raise InputError(
            f"{question.model} is an encoder–decoder: say with the target which token of the "
            "target text is explained, a word or its place, and leave the position out"
        )
    if question.target == _ALL:
        raise InputError(
            "the page explains one token at a time; in Python, lens.explain(source, token='all') "
            "explains each in turn"
        )
    read_head(lens.adapter)  # before the model generates, which it could not without one
    pair = read_pair(lens, question, most)
    options = ExplainOptions(nonlinearity=question.rule, memory_limit=memory_limit)
    why: Explanation = ask_pairs(
        lens, [pair], False, question.target, question.contrast, options, progress
    )
    return why

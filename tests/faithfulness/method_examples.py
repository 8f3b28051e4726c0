"""Questions of every kind that methods are tried on."""

from __future__ import annotations

from typing import Any

import torch
from evaluate_examples import IDS, SHORT, lens_of, text

import normlens
from normlens.layers import FIRST, LAST, MEAN, Dense, Elementwise, Linear
from normlens.loading.sentences import Pooling
from normlens.models.tiny import tiny_model
from normlens.studies.faithfulness.questions import Question, choice_questions, cosine_questions

OTHER = [50, 51, 52, 8, 9]

#: Name → family, and the head or the pooling that is asked.
CASES = {
    "pooler": ("bert", "SequenceClassification"),
    "roberta head": ("roberta", "SequenceClassification"),
    "distilbert head": ("distilbert", "SequenceClassification"),
    "last token's class": ("llama", "SequenceClassification"),
    "next token": ("llama", "CausalLM"),
    "next token, GPT-2": ("gpt2", "CausalLM"),
    "mean cosine": ("bert", MEAN),
    "first cosine": ("mpnet", FIRST),
    "last cosine": ("llama", LAST),
    "dense cosine": ("bert", "dense"),
}


def asked(case: str, dtype: torch.dtype = torch.float64) -> tuple[Any, list[Question]]:
    """A lens, and questions about texts of different lengths."""
    family, what = CASES[case]
    texts = [text(ids) for ids in (IDS, SHORT, OTHER)]
    if what in (MEAN, FIRST, LAST, "dense"):
        lens = normlens.load(tiny_model(family).to(dtype))
        lens.__dict__["pooling"] = dense_pooling() if what == "dense" else Pooling(what)
        pairs = [(one, text([7, 12, 60, 22])) for one in texts]
        return lens, cosine_questions(lens, pairs, "auto")
    lens = lens_of(family, what, dtype)
    if what == "SequenceClassification":
        return lens, choice_questions(lens, texts, "auto")
    return lens, [Question(one, 17, 5, len(one) - 1) for one in texts]


def dense_pooling() -> Pooling:
    """The mean, a Dense map and its activation."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(16, 10, generator=generator, dtype=torch.float64)
    bias = torch.randn(10, generator=generator, dtype=torch.float64)
    return Pooling(MEAN, (Dense(Linear(0.3 * weight, bias)), Elementwise("tanh")))


class Maskable:
    """As much of a tokenizer as masking needs."""

    mask_token_id = 60
    mask_token = "[MASK]"
    is_fast = False


def real_score(lens: Any, question: Question, ids: list[int] | None = None) -> float:
    """The score by one plain call of the model, without padding."""
    ids = question.encoded.ids if ids is None else ids
    with torch.no_grad():
        return float(score_of(lens, question, {"input_ids": torch.tensor([ids])}, len(ids)))


def score_of(lens: Any, question: Question, inputs: dict[str, Any], n: int) -> torch.Tensor:
    """The score of a plain call, written out for each kind."""
    if question.other is not None:
        y = lens.model(**inputs).last_hidden_state[0].double()
        u = {MEAN: y.mean(0), FIRST: y[0], LAST: y[-1]}[lens.pooling.reads]
        for step in lens.pooling.steps:
            is_dense = isinstance(step, Dense)
            u = u @ step.linear.weight + step.linear.bias if is_dense else u.tanh()
        return u @ torch.from_numpy(question.other) / u.norm()
    logits = lens.adapter.whole(**inputs).logits[0].double()
    if question.position is not None:
        logits = logits[n - 1]
    return logits[question.target] - logits[question.contrast]

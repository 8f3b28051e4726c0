"""Answers of several tokens, and dialogues: seeded at all positions, complete, and as autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frozen_copies import frozen_scores, times_input
from heads import assert_every_layer_makes_the_score, headed, in_float64
from one_case import in_one_case

import normlens
from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.questions import Question
from normlens.inputs.text import parts_of
from normlens.models.base import read_head
from normlens.options import ExplainOptions

IDS = [5, 17, 31, 8, 44, 23, 12]
TEXT, ANSWER = "The keys to the cabinet", " are on the table."
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def explain_answer(model, score: str, rule: str, count: int = 3):
    """The last `count` of IDS, explained together."""
    lens = normlens.load(model, tokenizer=False)
    options = ExplainOptions(nonlinearity=rule)
    explainer = Explainer(lens, lens.encode(input_ids=IDS), read_head(lens.adapter), options)
    question = Question(0, len(IDS) - 2, answer=tuple(IDS[-count:]), score=score)
    return explainer.explain([question])[0]


def frozen_gradient(model, score: str, rule: str, count: int = 3) -> np.ndarray:
    """Gradient × input in a network whose nonlinear parts are constants, by autograd."""
    read = slice(len(IDS) - count - 1, len(IDS) - 1)
    head = read_head(normlens.load(model, tokenizer=False).adapter)
    tokens, scores, followed = frozen_scores(model, IDS, head, rule, lambda x: x[read])
    total = followed[range(count), IDS[-count:]].sum()
    if score == "log-probability":
        total = total - (scores.detach().softmax(-1) * followed).sum()
    return times_input(total, tokens)


@in_one_case("rule", ["ig", "ig-bias", "gradient"])
@in_one_case("score", ["log-probability", "logit"])
@in_one_case("family", ["llama", "gpt2", "gemma2", "opt", "gpt_neox", "cohere"])
def test_autograd_through_a_frozen_copy_gives_the_same(family, score, rule):
    model = headed(family, "CausalLM")
    with in_float64():
        why = explain_answer(model, score, rule)
        expected = frozen_gradient(model, score, rule)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([IDS])).logits[0]
    np.testing.assert_allclose(why.contributions, expected, rtol=0, atol=1e-9)
    rows, ids = logits[-4:-1], torch.tensor(IDS[-3:])
    likely = rows.log_softmax(-1)
    value = rows[range(3), ids].sum()
    if score == "log-probability":
        value = value - (likely.exp() * rows).sum()
    assert why.value == pytest.approx(float(value), rel=1e-10)
    assert why.log_probability == pytest.approx(float(likely[range(3), ids].sum()), rel=1e-10)
    assert float(why.contributions.sum()) + why.remainder == pytest.approx(why.value, abs=1e-9)
    assert why.contributions[-1] == 0  # the last token is predicted and not read
    assert_every_layer_makes_the_score(why)


def test_an_answer_is_the_sum_of_its_tokens(smollm2):
    whole = smollm2.explain(TEXT, target=ANSWER)
    each = smollm2.explain(TEXT, target=ANSWER, by="token")
    assert whole.answer_ids == [one.answer_ids[0] for one in each]
    assert (whole.score, whole.target) == ("log-probability", ANSWER)
    np.testing.assert_allclose(each.contributions.sum(0), whole.contributions, atol=2e-4)
    assert each.values.sum() == pytest.approx(whole.value, rel=1e-5)
    total = sum(one.log_probability for one in each)
    assert total == pytest.approx(whole.log_probability, rel=1e-6)
    ids = smollm2.tokenizer(TEXT + ANSWER)["input_ids"]
    with torch.no_grad():
        rows = smollm2.adapter.whole(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    first = len(ids) - len(whole.answer_ids)
    expected = sum(float(rows[k - 1, ids[k]]) for k in range(first, len(ids)))
    assert whole.log_probability == pytest.approx(expected, rel=1e-5)
    assert whole.probability == pytest.approx(np.exp(expected), rel=1e-4)
    assert whole.completeness < 1e-5


def test_the_model_answers_first(smollm2):
    why = smollm2.explain(CHAT, generate=12)
    assert "Paris" in why.target
    assert why.provenance["target"] == "generated"
    given = smollm2.explain(CHAT, target=why.target)
    assert given.answer_ids == why.answer_ids
    np.testing.assert_allclose(given.contributions, why.contributions, atol=1e-6)
    options = {"do_sample": True, "top_k": 40, "temperature": 3.0}
    torch.manual_seed(3)
    other = smollm2.explain(CHAT, generate=12, generation=options)
    assert other.answer_ids != why.answer_ids


def test_a_dialogue_is_read_as_its_template_writes_it(smollm2):
    (item,) = smollm2.encode(CHAT)
    ids = smollm2.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert item.ids == ids
    own = [token for token, special in zip(item.tokens, item.special, strict=True) if not special]
    assert smollm2.tokenizer.convert_tokens_to_string(own) == CHAT[0]["content"]
    assert smollm2.maps(CHAT, layers=0).special == item.special
    both = smollm2.encode([CHAT, TEXT])
    assert [each.ids for each in both] == [item.ids, smollm2.encode(TEXT)[0].ids]
    system = [{"role": "system", "content": "Be brief."}, *CHAT]
    (item,) = smollm2.encode({"messages": system, "add_generation_prompt": False})
    assert [item.text[slice(*span)] for span in item.contents] == [m["content"] for m in system]
    assert not item.text.endswith("assistant\n")


@in_one_case(
    "asked",
    [
        {"target": ANSWER, "contrast": " is"},
        {"target": ANSWER, "position": 1, "by": "token"},
        {"by": "token"},
        {"generate": 0},
        {"generate": 3, "target": " are"},
        {"generation": {"top_k": 1}},
        {"generate": 3, "generation": {"num_return_sequences": 2, "num_beams": 2}},
    ],
)
def test_wrong_questions(asked, smollm2):
    with pytest.raises(InputError):
        smollm2.explain(TEXT, **asked)


SENTENCES = [
    "Dr. Smith met J. K. Rowling in the U.S.",
    "The talk was good, e.g. the end.",
    '"Why?" he asked.',
    "Was it No. 5?",
    "Yes!",
    "He won in 2007.",
    "The U.S. Army left.",
    "It cost 3.5 dollars...",
    "1. First item.",
    "彼は来た。",
]


def test_sentences():
    text = " ".join(SENTENCES)
    assert [text[slice(*span)] for span in parts_of(text, "sentence")] == SENTENCES
    low = "no capitals here. none at all."
    assert len(parts_of(low, "sentence")) == 2
    assert len(parts_of("One.\n\nTwo. Three.\n \nFour", "paragraph")) == 3
    assert parts_of("  all. of it ", "document") == [(2, 12)]
    assert parts_of(" \n ", "sentence") == []

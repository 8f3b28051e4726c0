"""Each method against its formula by hand, on every kind of question."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluate_examples import IDS, MASK, lens_of, text
from method_examples import CASES, Maskable, asked, real_score, score_of

import normlens
from normlens.errors import InputError
from normlens.models.tiny import tiny_model
from normlens.studies.faithfulness.methods import MethodOptions, explanations, method, place_read
from normlens.studies.faithfulness.options import NAMES
from normlens.studies.faithfulness.questions import Question, choice_questions

every_case = pytest.mark.parametrize("case", CASES)
EVERY_METHOD = [*NAMES, "rollout-LN1", "rollout-ATTN-N"]
#: Families whose layers are not ATTN RES LN FF RES LN.
PRE_LN = ("llama", "gpt2")


def has(lens, name: str) -> bool:
    return name != "globenc" or lens.model_type not in PRE_LN


@every_case
@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_token_has_a_score_whoever_shares_the_batch(case, name):
    if name == "integrated-gradients":
        pytest.importorskip("captum")
    lens, questions = asked(case)
    chosen = method(name)
    if not has(lens, name):
        with pytest.raises(InputError):
            chosen.needs(lens)
        return
    chosen.needs(lens)
    together = chosen(lens, questions, MethodOptions(batch_size=3, steps=8))
    for question, scores in zip(questions, together, strict=True):
        assert scores.dtype == np.float64
        assert scores.shape == (len(question),)
        (alone,) = chosen(lens, [question], MethodOptions(batch_size=1, steps=8))
        np.testing.assert_allclose(scores, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


# The frozen network -------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize(
    ("name", "rule"),
    [("normlens", "ig"), ("normlens-gradient", "gradient"), ("normlens-ig-bias", "ig-bias")],
)
def test_contributions_and_biases_are_the_real_score(case, name, rule):
    lens, questions = asked(case)
    scores = method(name)(lens, questions)
    explained = explanations(lens, questions, MethodOptions(), rule=rule)
    for question, given, (explanation, scale) in zip(questions, scores, explained, strict=True):
        total = given.sum() + explanation.remainder / scale
        assert total == pytest.approx(real_score(lens, question), abs=1e-5)


@pytest.mark.parametrize("case", ["pooler", "next token", "last token's class"])
def test_lengths_are_the_row_of_the_map_from_the_input(case):
    lens, questions = asked(case)
    places = {"pooler": 0}
    for question, scores in zip(questions, method("vectors")(lens, questions), strict=True):
        maps = lens.maps(input_ids=question.encoded.ids, origin="input")
        row = maps[lens.scopes[-1]][-1][places.get(case, len(question) - 1)]
        np.testing.assert_allclose(scores, row, rtol=1e-6)


def test_a_classifier_that_reads_the_mean_has_the_mean_of_vectors_and_rows():
    lens = lens_of("modernbert", "SequenceClassification")
    config = lens.adapter.config
    before, config.classifier_pooling = config.classifier_pooling, "mean"
    try:
        (question,) = choice_questions(lens, [text()], 1)
        assert place_read(lens, question) is None
        (norms,) = method("vectors")(lens, [question])
        (row,) = method("rollout-weights")(lens, [question])
        (contributions,) = method("normlens")(lens, [question])
        maps = lens.maps(input_ids=IDS, scopes="ATTN-W").rollout("ATTN-W")
        ((explained, _),) = explanations(lens, [question], MethodOptions(), rule="ig")
    finally:
        config.classifier_pooling = before
    np.testing.assert_allclose(row, maps["ATTN-W"][-1].mean(0), rtol=1e-6)
    # No vector is longer than the mean of its parts' lengths.
    every = lens.maps(input_ids=IDS, origin="input")[lens.scopes[-1]][-1]
    assert (norms <= every.mean(0) * (1 + 1e-6)).all()
    total = contributions.sum() + explained.remainder
    assert total == pytest.approx(explained.value, abs=1e-5)


# Products of maps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["pooler", "next token", "mean cosine", "last cosine"])
@pytest.mark.parametrize(
    "name", ["rollout-weights", "rollout-ATTN", "rollout-RES1", "globenc", "alti", "value-zeroing"]
)
def test_rows_of_a_product_are_those_that_the_score_is_read_from(case, name):
    lens, questions = asked(case)
    if not has(lens, name):
        pytest.skip(f"{lens.model_type} has no {name}")
    for question, scores in zip(questions, method(name)(lens, questions), strict=True):
        maps = normlens.rollouts.method(name)(lens, [question.encoded])[0]
        last = maps[maps.scopes[0]][-1]
        n = len(question)
        row = {"pooler": last[0], "mean cosine": last.mean(0)}.get(case, last[n - 1])
        np.testing.assert_allclose(scores, row, rtol=1e-5)


# Gradients ----------------------------------------------------------------------------------------


def by_hand(lens, question, alphas: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """∂s/∂e at α e for each α, and e: by autograd, with a hook of the test's own."""
    first, gradients, e = lens.adapter.blocks()[0], [], None
    for alpha in alphas:
        entered = []

        def scale(_, args, kwargs, alpha=alpha, entered=entered):
            if entered:
                return None
            x = args[0] if args else kwargs["hidden_states"]
            entered += [x.detach(), (alpha * x.detach()).requires_grad_()]
            if args:
                return (entered[1], *args[1:]), kwargs
            return args, kwargs | {"hidden_states": entered[1]}

        handle = first.register_forward_pre_hook(scale, with_kwargs=True)
        inputs = {"input_ids": torch.tensor([question.encoded.ids])}
        score_of(lens, question, inputs, len(question)).backward()
        handle.remove()
        gradients.append(entered[1].grad[0].numpy())
        e = entered[0][0].numpy()
    for parameter in lens.adapter.whole.parameters():
        parameter.grad = None
    return np.stack(gradients), e


@every_case
def test_gradient_times_input_is_autograds(case):
    lens, questions = asked(case)
    for question, scores in zip(
        questions, method("gradient-x-input")(lens, questions), strict=True
    ):
        (gradient,), e = by_hand(lens, question, [1.0])
        np.testing.assert_allclose(scores, (gradient * e).sum(-1), rtol=0, atol=1e-5)


@every_case
def test_integrated_gradients_are_a_direct_quadrature(case):
    pytest.importorskip("captum")
    lens, questions = asked(case)
    options = MethodOptions(steps=20, batch_size=7)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    question = questions[0]
    (scores,) = method("integrated-gradients")(lens, [question], options)
    gradients, e = by_hand(lens, question, list(0.5 * (nodes + 1)))
    mean = np.tensordot(0.5 * weights, gradients, axes=1)
    np.testing.assert_allclose(scores, (mean * e).sum(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gradient-x-input", "integrated-gradients"])
def test_gradients_refuse_a_way_around_the_layers(name):
    pytest.importorskip("captum")
    lens = normlens.load(tiny_model("deberta-v2", conv_kernel_size=3, conv_act="gelu"))
    with pytest.raises(InputError):
        method(name).needs(lens)
    with pytest.raises(InputError):
        method("normlens").needs(lens)


# Leaving out, and priors --------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("masks", [True, False])
def test_leaving_a_token_out_is_a_plain_pass_without_it(case, masks):
    lens, questions = asked(case)
    lens.tokenizer = Maskable() if masks else None
    for question, scores in zip(questions, method("leave-one-out")(lens, questions), strict=True):
        ids = question.encoded.ids
        for place in range(len(ids)):
            if question.encoded.special[place]:
                assert scores[place] == 0
                continue
            rest = [*ids[:place], *([MASK] if masks else []), *ids[place + 1 :]]
            drop = real_score(lens, question) - real_score(lens, question, rest)
            assert scores[place] == pytest.approx(drop, abs=1e-5)


def test_a_texts_only_token_cannot_be_deleted():
    lens = lens_of("llama", "CausalLM")
    lens.tokenizer = None
    question = Question(text([9], special=False), 4, 5, 0)
    assert method("leave-one-out")(lens, [question])[0].tolist() == [0.0]


def test_random_depends_on_the_text_and_the_seed_alone():
    lens, questions = asked("pooler")
    random = method("random")
    first = random(lens, questions, MethodOptions(seed=7))
    turned = random(lens, questions[::-1], MethodOptions(seed=7, batch_size=1))[::-1]
    for a, b in zip(first, turned, strict=True):
        np.testing.assert_array_equal(a, b)
    (other,) = random(lens, questions[:1], MethodOptions(seed=8))
    assert not np.array_equal(first[0], other)
    (elsewhere,) = random(lens, [Question(text([*IDS[:-1], 9]), 1)], MethodOptions(seed=7))
    assert not np.array_equal(first[0], elsewhere)


def test_the_first_token_comes_first():
    lens, questions = asked("pooler")
    scores = method("first-token")(lens, questions)
    assert scores[1].tolist() == [0.0, 1.0, 0.5, 0.0]  # between special tokens
    assert np.argsort(-scores[0], kind="stable")[:5].tolist() == [1, 2, 3, 4, 5]

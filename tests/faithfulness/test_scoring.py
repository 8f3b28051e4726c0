"""Scores of variants against plain forward passes, one text at a time and without padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluate_examples import (
    CLASSIFIERS,
    IDS,
    MASK,
    SENTENCE_ENCODERS,
    SHORT,
    lens_of,
    model_of,
    plain_logits,
    rows_run,
    text,
)

import normlens
from normlens.errors import InputError
from normlens.layers import FIRST, LAST, MEAN
from normlens.loading.sentences import Pooling
from normlens.studies.faithfulness.methods import method
from normlens.studies.faithfulness.questions import (
    NO_PREDICTION,
    Question,
    class_questions,
    cosine_questions,
    differentiable,
    embeddings,
    score_variants,
)


def scores(lens, question, variants, **how):
    """What the model says of one text's variants."""
    return score_variants(lens, [(question, variants)], **how)[0]


#: Variants of `IDS`: whole, replaced, and shorter ones.
PLACES = [[], [2], [2, 4], [1, 3, 5]]


@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("batch_size", ["auto", 1, 3])
def test_classes_are_scored_as_one_text_alone(family, batch_size):
    lens, model = (
        lens_of(family, "SequenceClassification"),
        model_of(family, "SequenceClassification"),
    )
    question = Question(text(), target=2, contrast=0)
    variants = [question.replaced(places, MASK) for places in PLACES]
    variants += [question.without(places) for places in PLACES]
    scored = scores(lens, question, batch_size=batch_size, variants=variants)
    assert scored.score.dtype == np.float64
    assert len(scored.score) == 8
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))
        assert scored.score[place] == pytest.approx(float(own[2] - own[0]), abs=1e-6)
        assert scored.probability[place] == pytest.approx(float(own.softmax(-1)[2]), abs=1e-6)
        assert scored.predicted[place] == int(own.argmax())


def test_a_classifier_without_a_padding_token_reads_the_last_token():
    lens = lens_of("gpt2", "SequenceClassification", pad_token=None)
    model = model_of("gpt2", "SequenceClassification", pad_token=None)
    question = Question(text(), target=1, contrast=2)
    variants = [question.without(places) for places in PLACES]
    scored = scores(lens, question, variants)
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))
        assert scored.score[place] == pytest.approx(float(own[1] - own[2]), abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom"])
def test_next_tokens_are_read_at_the_end_of_each_variant(family):
    lens, model = lens_of(family, "CausalLM"), model_of(family, "CausalLM")
    question = Question(text(special=False), target=17, contrast=5, position=len(IDS) - 1)
    variants = [question.replaced(places, MASK) for places in PLACES]
    variants += [question.without(places) for places in [*PLACES, [6], [5, 6]]]
    scored = scores(lens, question, variants)
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))[-1]
        assert scored.score[place] == pytest.approx(float(own[17] - own[5]), abs=1e-6)
        assert scored.probability[place] == pytest.approx(float(own.softmax(-1)[17]), abs=1e-6)
        assert scored.predicted[place] == int(own.argmax())


def test_a_mask_is_read_where_it_stands_when_tokens_before_it_go():
    lens, model = lens_of("bert", "MaskedLM"), model_of("bert", "MaskedLM")
    question = Question(text(), target=17, contrast=5, position=4, masked=True)
    assert question.kind == "masked-token"
    assert 4 not in question.ordinary
    scored = scores(lens, question, [question.whole, question.without([1, 2, 5])])
    for ids, place, score in zip((IDS, [3, 14, 5, 8]), (4, 2), scored.score, strict=True):
        own = plain_logits(model, ids)[place]
        assert score == pytest.approx(float(own[17] - own[5]), abs=1e-6)
    with pytest.raises(InputError):
        question.without([4])


def test_token_types_stay_with_their_tokens():
    lens = lens_of("bert", "SequenceClassification")
    model = model_of("bert", "SequenceClassification")
    question = Question(text(types=True), target=0, contrast=1)
    types = question.encoded.type_ids
    variants = [question.without([2]), question.without([5]), question.replaced([2], MASK)]
    scored = scores(lens, question, variants)
    kept = [[place for place in range(7) if place != left] for left in (2, 5, None)]
    for variant, places, score in zip(variants, kept, scored.score, strict=True):
        own = plain_logits(model, list(variant.ids), [types[place] for place in places])
        assert score == pytest.approx(float(own[0] - own[1]), abs=1e-9)


@pytest.mark.parametrize("reads", [MEAN, FIRST, LAST])
@pytest.mark.parametrize("family", SENTENCE_ENCODERS)
def test_cosines_are_those_of_one_text_alone(family, reads, tiny):
    lens = normlens.load(tiny(family))
    lens.__dict__["pooling"] = Pooling(reads)

    def vector(ids):
        with torch.no_grad():
            y = lens.model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
        return {MEAN: y.mean(0), FIRST: y[0], LAST: y[-1]}[reads]

    question, other = cosine_questions(lens, [(text(), text(SHORT)), (text(SHORT), text())])
    assert question.kind == "cosine"
    np.testing.assert_allclose(
        question.other, torch.nn.functional.normalize(vector(SHORT), dim=0), atol=1e-6
    )
    variants = [question.without(places) for places in PLACES]
    scored, turned = score_variants(lens, [(question, variants), (other, [other.whole])])
    for variant, score in zip(variants, scored.score, strict=True):
        expected = torch.cosine_similarity(vector(list(variant.ids)), vector(SHORT), dim=0)
        assert score == pytest.approx(float(expected), abs=1e-6)
    assert turned.score[0] == pytest.approx(scored.score[0], abs=1e-6)
    assert np.isnan(scored.probability).all()
    assert set(scored.predicted) == {NO_PREDICTION}


def test_texts_share_batches_and_repeated_variants_run_once():
    lens = lens_of("bert", "SequenceClassification")
    questions = [Question(text(), 1, 0), Question(text(SHORT), 2, 0)]
    asked = [(q, [q.whole, q.replaced([1], MASK), q.whole, q.whole]) for q in questions]
    with rows_run(lens.adapter.whole) as rows:
        together = score_variants(lens, asked)
    assert rows == [4]
    for (question, variants), scored in zip(asked, together, strict=True):
        alone = scores(lens, question, variants)
        np.testing.assert_allclose(scored.score, alone.score, atol=1e-9)
        assert scored.score[0] == scored.score[2] == scored.score[3]


def test_labels_that_do_not_exclude_each_other_have_a_probability_each():
    model = model_of("bert", "SequenceClassification")
    model.config.problem_type = "multi_label_classification"
    try:
        lens = normlens.load(model)
        (question,) = class_questions(lens, [text()])
        scored = scores(lens, question, [question.whole])
    finally:
        model.config.problem_type = None
    own = plain_logits(model, IDS)
    assert (question.target, question.contrast) == (int(own.argmax()), None)
    assert scored.score[0] == pytest.approx(float(own.max()))
    assert scored.probability[0] == pytest.approx(float(own.max().sigmoid()))


@pytest.mark.parametrize("family", ["bert", "albert", "llama", "gpt2", "distilbert", "opt"])
def test_embeddings_put_back_give_the_same_score_and_know_its_gradient(family):
    lens = lens_of(family, "SequenceClassification")
    question = Question(text(), 1, 0)
    asked = (lens, question)
    e = embeddings(*asked)
    assert e.shape[0] == len(IDS)
    assert not e.requires_grad
    vectors = torch.stack([e, e]).requires_grad_()
    values = differentiable(*asked, vectors)
    real = scores(*asked, [question.whole]).score[0]
    np.testing.assert_allclose(values.detach(), [real, real], atol=1e-6)
    (gradient,) = torch.autograd.grad(values[0], vectors)
    assert float(gradient[1].abs().max()) == 0.0
    # A central difference along one direction.
    direction = torch.randn(e.shape, generator=torch.Generator().manual_seed(1), dtype=e.dtype)
    step = 1e-3
    around = torch.stack([e + step * direction, e - step * direction])
    up, down = differentiable(*asked, around).detach()
    assert float((gradient[0] * direction).sum()) == pytest.approx(
        float(up - down) / (2 * step), rel=1e-2, abs=1e-4
    )
    assert all(parameter.grad is None for parameter in lens.model.parameters())


def test_the_model_is_left_as_it_was_also_on_errors():
    lens = lens_of("bert", "SequenceClassification")
    model = lens.adapter.whole
    question = Question(text(), 1, 0)
    asked = (lens, question)
    expected = scores(*asked, [question.whole]).score
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    model.train()
    try:
        assert scores(*asked, [question.whole]).score == expected  # no dropout
        with pytest.raises(RuntimeError):
            differentiable(*asked, torch.zeros(1, 3, 3))
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert scores(*asked, [question.whole]).score == expected


def test_scores_that_are_not_finite_are_refused():
    lens = lens_of("bert", "SequenceClassification", torch.float16)
    question = Question(text(), 1, 0)
    classifier = lens.adapter.whole.classifier
    weight = classifier.weight.detach().clone()
    with torch.no_grad():
        classifier.weight.fill_(6e4)
    try:
        with pytest.raises(InputError):
            scores(lens, question, [question.whole])
    finally:
        with torch.no_grad():
            classifier.weight.copy_(weight)


def test_questions_of_several_kinds_are_refused():
    lens = lens_of("bert", "SequenceClassification")
    asked = [Question(text(), 1, 0), Question(text(), other=np.ones(16) / 4)]
    with pytest.raises(InputError):
        score_variants(lens, [(question, [question.whole]) for question in asked])
    with pytest.raises(InputError):
        method("random")(lens, asked)

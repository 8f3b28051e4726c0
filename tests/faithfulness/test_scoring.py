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
from normlens.studies.faithfulness.questions import (
    Question,
    choice_questions,
    cosine_questions,
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
    assert scored.dtype == np.float64
    assert len(scored) == 8
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))
        assert scored[place, 0] == pytest.approx(float(own[2] - own[0]), abs=1e-6)
        assert scored[place, 1] == pytest.approx(float(own.softmax(-1)[2]), abs=1e-6)
        assert scored[place, 2] == int(own.argmax())


def test_a_classifier_without_a_padding_token_reads_the_last_token():
    lens = lens_of("gpt2", "SequenceClassification", pad_token=None)
    model = model_of("gpt2", "SequenceClassification", pad_token=None)
    question = Question(text(), target=1, contrast=2)
    variants = [question.without(places) for places in PLACES]
    scored = scores(lens, question, variants)
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))
        assert scored[place, 0] == pytest.approx(float(own[1] - own[2]), abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom"])
def test_next_tokens_are_read_at_the_end_of_each_variant(family):
    lens, model = lens_of(family, "CausalLM"), model_of(family, "CausalLM")
    question = Question(text(special=False), target=17, contrast=5, position=len(IDS) - 1)
    variants = [question.replaced(places, MASK) for places in PLACES]
    variants += [question.without(places) for places in [*PLACES, [6], [5, 6]]]
    scored = scores(lens, question, variants)
    for place, variant in enumerate(variants):
        own = plain_logits(model, list(variant.ids))[-1]
        assert scored[place, 0] == pytest.approx(float(own[17] - own[5]), abs=1e-6)
        assert scored[place, 1] == pytest.approx(float(own.softmax(-1)[17]), abs=1e-6)
        assert scored[place, 2] == int(own.argmax())


def test_token_types_stay_with_their_tokens():
    lens = lens_of("bert", "SequenceClassification")
    model = model_of("bert", "SequenceClassification")
    question = Question(text(types=True), target=0, contrast=1)
    types = question.encoded.type_ids
    variants = [question.without([2]), question.without([5]), question.replaced([2], MASK)]
    scored = scores(lens, question, variants)
    kept = [[place for place in range(7) if place != left] for left in (2, 5, None)]
    for variant, places, score in zip(variants, kept, scored[:, 0], strict=True):
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

    question, other = cosine_questions(lens, [(text(), text(SHORT)), (text(SHORT), text())], "auto")
    assert question.kind == "cosine"
    np.testing.assert_allclose(
        question.other, torch.nn.functional.normalize(vector(SHORT), dim=0), atol=1e-6
    )
    variants = [question.without(places) for places in PLACES]
    scored, turned = score_variants(lens, [(question, variants), (other, [other.whole])])
    for variant, score in zip(variants, scored[:, 0], strict=True):
        expected = torch.cosine_similarity(vector(list(variant.ids)), vector(SHORT), dim=0)
        assert score == pytest.approx(float(expected), abs=1e-6)
    assert turned[0, 0] == pytest.approx(scored[0, 0], abs=1e-6)
    assert np.isnan(scored[:, 1]).all()
    assert set(scored[:, 2]) == {-1}


def test_texts_share_batches():
    lens = lens_of("bert", "SequenceClassification")
    questions = [Question(text(), 1, 0), Question(text(SHORT), 2, 0)]
    asked = [(q, [q.whole, q.replaced([1], MASK)]) for q in questions]
    with rows_run(lens.adapter.whole) as rows:
        together = score_variants(lens, asked)
    assert rows == [4]
    for (question, variants), scored in zip(asked, together, strict=True):
        alone = scores(lens, question, variants)
        np.testing.assert_allclose(scored, alone, atol=1e-9)


def test_labels_that_do_not_exclude_each_other_have_a_probability_each():
    model = model_of("bert", "SequenceClassification")
    model.config.problem_type = "multi_label_classification"
    try:
        lens = normlens.load(model)
        (question,) = choice_questions(lens, [text()], 1)
        scored = scores(lens, question, [question.whole])
    finally:
        model.config.problem_type = None
    own = plain_logits(model, IDS)
    assert (question.target, question.contrast) == (int(own.argmax()), None)
    assert scored[0, 0] == pytest.approx(float(own.max()))
    assert scored[0, 1] == pytest.approx(float(own.max().sigmoid()))


def test_the_model_is_left_as_it_was():
    lens = lens_of("bert", "SequenceClassification")
    model, question = lens.adapter.whole, Question(text(), 1, 0)
    expected = scores(lens, question, [question.whole])
    model.train()
    try:
        again = scores(lens, question, [question.whole])
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
    np.testing.assert_array_equal(again, expected)  # no dropout


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

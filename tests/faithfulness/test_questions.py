"""Questions: what is asked of each text, and what cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluate_examples import IDS, SHORT, lens_of, model_of, plain_logits, rows_run, text
from transformers import AutoModelForSequenceClassification

import normlens
from normlens.errors import InputError
from normlens.models.tiny import tiny_config
from normlens.studies.faithfulness.measure import choose_protocols
from normlens.studies.faithfulness.options import Columns
from normlens.studies.faithfulness.questions import (
    Question,
    Variant,
    choice_questions,
    cosine_questions,
    word_question,
)


@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_classes_ask_for_the_prediction_against_the_runner_up(family):
    lens = lens_of(family, "SequenceClassification")
    model = model_of(family, "SequenceClassification")
    texts = [IDS, SHORT, [50, 51, 52, 8, 8], [2, 3]]
    for batch_size in ("auto", 1):
        asked = choice_questions(lens, [text(ids) for ids in texts], batch_size)
        for ids, question in zip(texts, asked, strict=True):
            order = plain_logits(model, ids).argsort(descending=True).tolist()
            assert [question.target, question.contrast] == order[:2]
            assert question.kind == "classes"
            assert question.position is None


def test_words_are_asked_behind_a_text(smollm2):
    (prefix,) = smollm2.encode("The keys to the cabinet")
    question = word_question(smollm2, prefix, "are", "is")
    ids = [smollm2.tokenizer(word)["input_ids"] for word in (" are", " is")]
    assert [[question.target], [question.contrast]] == ids
    assert question.position == len(prefix) - 1
    assert question.kind == "next-token"
    spaced = word_question(smollm2, prefix, " are", " is")
    assert (spaced.target, spaced.contrast) == (question.target, question.contrast)


def test_words_of_several_tokens_are_told_apart_by_the_first(smollm2):
    (prefix,) = smollm2.encode("A niece of most senators")
    question = word_question(smollm2, prefix, "hasn't", "haven't")
    names = smollm2.tokenizer.convert_ids_to_tokens([question.target, question.contrast])
    assert names == ["Ġhasn", "Ġhaven"]
    with pytest.raises(InputError):
        word_question(smollm2, prefix, "grocery store", "grocery stores")


def test_texts_of_a_pair_that_come_twice_run_once(tiny):
    lens = normlens.load(tiny("bert"))
    pairs = [(text(), text(SHORT)), (text([5, 6]), text(SHORT))]
    with rows_run(lens.model) as rows:
        questions = cosine_questions(lens, pairs, "auto")
    assert rows == [1]
    np.testing.assert_array_equal(questions[0].other, questions[1].other)
    assert np.linalg.norm(questions[0].other) == pytest.approx(1.0)


def test_a_sentence_encoder_that_lowers_its_texts_gets_them_so(minilm):
    lens = normlens.load(minilm.model, minilm.tokenizer, device="cpu")
    lens.__dict__["pooling"] = replace(lens.pooling, lower_case=True)
    a, b = lens.encode(["A man plays.", "someone plays"])
    with pytest.raises(InputError):
        cosine_questions(lens, [(a, b)], 1)


def test_variants_keep_what_belongs_to_a_token():
    question = Question(text(types=True), 1, position=6)
    assert question.whole == Variant(tuple(IDS), (0, 0, 0, 0, 1, 1, 1), 6)
    assert question.replaced([1, 3], [7, 6]).ids == (3, 7, 27, 6, 5, 33, 8)
    assert question.without([1, 5]) == Variant((3, 27, 14, 5, 8), (0, 0, 0, 1, 1), 4)
    assert question.without([6]) == Variant((3, 9, 27, 14, 5, 33), (0, 0, 0, 0, 1, 1), 5)
    with pytest.raises(ValueError, match="zip"):
        question.replaced([1, 2], [7])


def test_equal_logits_have_the_first_class_first():
    model = model_of("bert", "SequenceClassification", torch.float32)
    with torch.no_grad():
        weight, bias = model.classifier.weight.clone(), model.classifier.bias.clone()
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
    try:
        (question,) = choice_questions(normlens.load(model), [text()], 1)
    finally:
        with torch.no_grad():
            model.classifier.weight.copy_(weight)
            model.classifier.bias.copy_(bias)
    assert (question.target, question.contrast) == (0, 1)


def test_one_number_is_no_choice():
    config = tiny_config("bert", num_labels=1)
    lens = normlens.load(AutoModelForSequenceClassification.from_config(config))
    with pytest.raises(InputError):
        choose_protocols(lens, "classes", ["comprehensiveness"], Columns())

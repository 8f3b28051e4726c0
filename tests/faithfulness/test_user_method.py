"""A user's own method: found by its name, checked, and known by its source."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from evaluate_examples import lens_of, text

from normlens.errors import InputError
from normlens.studies.faithfulness.methods import MethodOptions, method
from normlens.studies.faithfulness.questions import Question

MODULE = """
import numpy as np
from normlens.studies.faithfulness.methods import Method
import helper_of_mine

NUMBER = 3

def by_id(lens, question):
    return [float(i) for i in question.encoded.ids]

def batch(lens, questions, options):
    return [np.full(len(q), options.seed) for q in questions]

def with_default(lens, question, power=2):
    return np.array(question.encoded.ids) ** power

def too_few(lens, question):
    return [1.0]

def square(lens, question):
    return np.ones((len(question), 2))

def not_a_number(lens, question):
    return [float("nan")] * len(question)

def words(lens, question):
    return question.encoded.tokens

def fails(lens, question):
    raise KeyError("no\\nluck")

def one_array(lens, questions, options):
    return [np.zeros(len(questions[0]))]

def nothing(lens, questions, options):
    return None

def no_arguments():
    return []

ready = Method("mine", batch)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_methods_here.py").write_text(MODULE)
    (tmp_path / "helper_of_mine.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_methods_here"
    for name in ("my_methods_here", "helper_of_mine"):
        sys.modules.pop(name, None)


@pytest.fixture
def lens():
    return lens_of("bert", "SequenceClassification")


QUESTIONS = [Question(text(), 1, 0), Question(text([4, 5, 6]), 1, 0)]


def test_one_question_or_several(mine, lens):
    (first, second) = method(f"{mine}:by_id")(lens, QUESTIONS)
    assert first.tolist() == QUESTIONS[0].encoded.ids
    assert second.dtype == np.float64
    for name in ("batch", "ready"):
        given = method(f"{mine}:{name}")(lens, QUESTIONS, MethodOptions(seed=4))
        assert [one.tolist() for one in given] == [[4.0] * 7, [4.0] * 3]
    assert method(f"{mine}:with_default")(lens, QUESTIONS)[1].tolist() == [16, 25, 36]


@pytest.mark.parametrize(
    "name", ["too_few", "square", "not_a_number", "words", "fails", "one_array", "nothing"]
)
def test_what_is_wrong_with_its_scores_is_an_error(mine, lens, name):
    with pytest.raises(InputError, match=name):
        method(f"{mine}:{name}")(lens, QUESTIONS)


@pytest.mark.parametrize(
    "name",
    [
        "my_methods_here:missing",
        "no_such_module_here:f",
        "my_methods_here:NUMBER",
        "my_methods_here:no_arguments",
        ":f",
    ],
)
def test_what_cannot_be_imported_is_an_error(mine, name):
    with pytest.raises(InputError):
        method(name)

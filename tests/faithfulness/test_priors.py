"""Priors are no better than chance at what they know nothing of."""

from __future__ import annotations

import numpy as np
from evaluate_examples import lens_of, text

from normlens.studies.faithfulness.methods import MethodOptions, method
from normlens.studies.faithfulness.questions import Question


def test_random_words_of_many_tokens_do_not_rank_first():
    lens = lens_of("bert", "SequenceClassification")
    questions = [Question(text([3, 9, 27, 14, seed % 50, 33, 8, 5]), 1) for seed in range(50)]
    sums = []
    for seed in range(40):
        for scores in method("random")(lens, questions, MethodOptions(seed=seed)):
            sums.append((scores[1:5].sum(), scores[5], scores[6]))  # a word of four, two of one
    first = np.argmax(np.array(sums), axis=1)
    last = np.argmin(np.array(sums), axis=1)
    # A sum of four varies more, and is the last as often as the first.
    assert abs((first == 0).mean() - (last == 0).mean()) < 0.05
    assert (first == 0).mean() < 0.6

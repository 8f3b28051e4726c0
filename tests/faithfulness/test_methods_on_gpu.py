"""Methods and scores on a GPU are those on a CPU."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from method_examples import CASES, asked

import normlens
from normlens.studies.faithfulness.methods import method
from normlens.studies.faithfulness.options import NAMES
from normlens.studies.faithfulness.questions import cosine_questions, score_variants

pytestmark = pytest.mark.gpu

#: A machine with a GPU may have no more than the core needs.
METHODS = [name for name in NAMES if name != "integrated-gradients" or find_spec("captum")]


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_gives_the_numbers_of_a_cpu(case):
    lens, questions = asked(case, torch.float32)
    there = normlens.load(copy.deepcopy(lens.adapter.whole).to("cuda"))
    there.__dict__["pooling"] = lens.pooling
    variants = [(q, [q.whole, q.without([1]), q.replaced([1], 60)]) for q in questions]
    for here, scored in zip(
        score_variants(lens, variants), score_variants(there, variants), strict=True
    ):
        np.testing.assert_allclose(scored[:, 0], here[:, 0], atol=1e-3)
    if questions[0].other is not None:
        (again,) = cosine_questions(there, [(questions[0].encoded, questions[1].encoded)], "auto")
        (here,) = cosine_questions(lens, [(questions[0].encoded, questions[1].encoded)], "auto")
        np.testing.assert_allclose(again.other, here.other, atol=1e-3)
    for name in METHODS:
        if name == "globenc" and lens.model_type in ("llama", "gpt2"):
            continue
        for here, scores in zip(
            method(name)(lens, questions), method(name)(there, questions), strict=True
        ):
            np.testing.assert_allclose(scores, here, atol=2e-3 * max(1.0, np.abs(here).max()))

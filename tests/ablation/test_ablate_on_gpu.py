"""Ablations on a GPU: the same losses as on the CPU, and layers that are passed by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablation_examples import FAMILIES, MaskTokenizer, lens_on, questions, texts

from normlens.lens import Lens
from normlens.studies.ablation.interventions import gather
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.plan import Plan

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("family", "task"), FAMILIES)
def test_a_gpu_gives_the_losses_of_the_cpu(family, task):
    lens = lens_on(family, task)
    statistics = gather(lens, texts(lens, seed=3))
    ablations = Plan(lens.layers, "tiny").ablations(draws=1)
    rows = []
    for device in ("cpu", "cuda"):
        there = Lens(lens.adapter.whole.to(device), MaskTokenizer())
        gathered = gather(there, texts(there, seed=3))
        for where, mean in statistics.means.items():
            torch.testing.assert_close(gathered.means[where], mean, rtol=1e-3, atol=1e-4)
        loss = choose_loss(there)
        keeping = Runner(there, loss, ablations, statistics=statistics)
        whole = Runner(there, loss, ablations, statistics=statistics, keep=False)
        outcomes = keeping.run(questions(loss, texts(there)))
        assert keeping.passes_by
        assert outcomes == whole.run(questions(loss, texts(there)))
        rows.append([o.loss for row in outcomes for o in row])
    np.testing.assert_allclose(rows[1], rows[0], rtol=2e-3)

"""Every intervention does what its definition says, and leaves the model as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ablation_examples import lens_on, questions, texts
from heads import in_float64
from layers_by_hand import LAYERS, Replaced, by_hand
from torch import Tensor

from normlens.lens import Lens
from normlens.measures.bootstrap import draws
from normlens.models import adapt
from normlens.studies.ablation.interventions import gather
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.options import (
    FROZEN_SIGMA,
    LEFT_OUT,
    MEAN,
    NO_AFFINE,
    RESAMPLE,
    ZERO,
    Ablation,
    is_norm,
)
from normlens.studies.ablation.plan import Plan

SEED, RESERVOIR = 11, 6
CORPUS = (4, 6, 3)


def task_of(family: str) -> str:
    return "MaskedLM" if family == "bert" else "CausalLM"


def reference_losses(lens: Lens, do: Replaced, asked: list[Any]) -> list[float]:
    """The mean negative log-likelihood of each question, one by one, by hand."""
    model = by_hand(lens.adapter.whole, lambda m: list(adapt(m).blocks()), do)
    losses = []
    for number, [question] in enumerate(asked):
        do.row = number  # type: ignore[attr-defined]
        ids = torch.tensor([question.encoded.ids])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        targets = torch.tensor(question.targets)
        losses.append(float(F.cross_entropy(logits[0, list(question.places)], targets)))
    return losses


class Corpus:
    """Vectors and deviations of a corpus, from layers by hand."""

    def __init__(self, lens: Lens, encoded: list[Any]):
        do = Replaced()
        model = by_hand(lens.adapter.whole, lambda m: list(adapt(m).blocks()), do)
        for one in encoded:
            with torch.no_grad():
                model(input_ids=torch.tensor([one.ids]), attention_mask=torch.ones(1, len(one)))
        self.vectors = {w: torch.cat([y[0] for y in seen]) for w, seen in do.seen.items()}
        self.sigmas = {w: torch.cat([s[0] for s in seen]) for w, seen in do.sigmas.items()}
        order = np.argsort(
            np.concatenate([draws(len(e), "position", SEED, i) for i, e in enumerate(encoded)])
        )
        self.sample = torch.as_tensor(order[:RESERVOIR].copy())


def replaced(ablation: Ablation, corpus: Corpus, plan: Plan, asked: list[Any]) -> Replaced:
    """The same ablation for layers by hand."""
    do = Replaced()
    for layer in ablation.layers:
        where = (layer, ablation.component)
        kind = ablation.kind
        if is_norm(ablation.component):
            do.norms[where] = norm_by_hand(ablation, where, corpus, plan)
        elif kind == ZERO and ablation.component == "LAYER":
            do.vectors[layer, "bypass"] = torch.zeros_like
        elif kind == ZERO:
            do.vectors[where] = torch.zeros_like
        elif kind == MEAN:
            do.vectors[where] = lambda y, w=where: corpus.vectors[w].mean(0).expand_as(y)
        else:
            do.vectors[where] = lambda y, w=where: resampled(y, w, do, corpus, asked)
    return do


def resampled(y: Tensor, where: Any, do: Any, corpus: Corpus, asked: list[Any]) -> Tensor:
    rows = draws(y.shape[1], "resample", SEED, asked[do.row][0].key, *where) % RESERVOIR
    return corpus.vectors[where][corpus.sample][torch.as_tensor(rows.astype(int))][None]


def norm_by_hand(ablation: Ablation, where: Any, corpus: Corpus, plan: Plan) -> Any:
    def norm(x: Tensor, centre: Tensor, sigma: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        if ablation.kind == LEFT_OUT:
            return x
        if ablation.kind == NO_AFFINE:
            return centre / sigma
        if ablation.kind == FROZEN_SIGMA:
            return centre / corpus.sigmas[where].mean() * gamma + beta
        zero = plan.dimensions(*where, ablation.kind, ablation.draw, SEED)
        keep = torch.ones_like(gamma)
        keep[zero] = 0
        return centre / sigma * (gamma * keep) + beta * keep

    return norm


@pytest.mark.parametrize("family", LAYERS)
def test_each_intervention_is_the_layer_by_hand_with_that_component_replaced(family):
    with in_float64():
        lens = lens_on(family, task_of(family), torch.float64)
        corpus = Corpus(lens, texts(lens, CORPUS, seed=5))
        statistics = gather(
            lens, texts(lens, CORPUS, seed=5), seed=SEED, reservoir=RESERVOIR, batch_size=1
        )
        plan = Plan(lens.layers, "tiny")
        ablations = plan.ablations(draws=2)
        loss = choose_loss(lens, seed=SEED)
        asked = questions(loss, texts(lens))
        runner = Runner(lens, loss, ablations, statistics=statistics, seed=SEED)
        outcomes = runner.run(asked)
        intact = reference_losses(lens, Replaced(), asked)
        np.testing.assert_allclose([o.loss for o in outcomes[0]], intact, rtol=1e-9)
        for ablation, row in zip(ablations, outcomes[1:], strict=True):
            expected = reference_losses(lens, replaced(ablation, corpus, plan, asked), asked)
            np.testing.assert_allclose(
                [o.loss for o in row], expected, rtol=1e-8, err_msg=str(ablation)
            )
            assert not np.allclose([o.loss for o in row], intact, rtol=1e-8), ablation
    assert {RESAMPLE, MEAN, ZERO, LEFT_OUT} <= {ablation.kind for ablation in ablations}

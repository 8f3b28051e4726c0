"""Losses are those of transformers, of the intact and of any ablated model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ablation_examples import KINDS, lens_on, questions, texts

from normlens.errors import InputError
from normlens.lens import Lens
from normlens.studies.ablation import losses
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.options import Ablation


def intact(lens: Lens, name: str = "auto", **asked: Any) -> tuple[list[Any], list[Any]]:
    loss = choose_loss(lens, name)
    about = questions(loss, texts(lens, **asked))
    return about, Runner(lens, loss, []).run(about)[0]


@pytest.mark.parametrize(("family", "task"), KINDS)
def test_language_models_have_the_loss_of_transformers(family, task):
    lens = lens_on(family, task)
    asked, outcomes = intact(lens)
    for [question], outcome in zip(asked, outcomes, strict=True):
        ids = torch.tensor([question.encoded.ids])
        labels = torch.full_like(ids, -100)
        places = torch.tensor(question.places)
        labels[0, places + (task == "CausalLM")] = torch.tensor(question.targets)
        with torch.no_grad():
            expected = lens.adapter.whole(input_ids=ids, labels=labels).loss
        assert outcome.loss == pytest.approx(float(expected), rel=1e-4)
        assert outcome.count == len(question.places)


def test_masks_are_seeded_by_the_sequence_and_the_same_for_all_ablations():
    lens = lens_on("bert", "MaskedLM")
    [text] = texts(lens, (40,))
    loss = choose_loss(lens, seed=1)
    one, again = loss.question(text, "a"), loss.question(text, "a")
    assert one == again
    assert len(one.places) == 5  # 12 % of 40
    assert [one.encoded.ids[place] for place in one.places] == [5] * 5
    assert one.targets == tuple(text.ids[place] for place in one.places)
    assert loss.question(text, "b").places != one.places
    assert choose_loss(lens, seed=2).question(text, "a").places != one.places


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "llama", "deberta-v2"])
def test_classifiers_have_the_loss_of_transformers(family):
    lens = lens_on(family, "SequenceClassification")
    asked, outcomes = intact(lens)
    for number, ([question], outcome) in enumerate(zip(asked, outcomes, strict=True)):
        with torch.no_grad():
            expected = lens.adapter.whole(
                input_ids=torch.tensor([question.encoded.ids]), labels=torch.tensor([number % 3])
            ).loss
        assert outcome.loss == pytest.approx(float(expected), rel=1e-4)
        assert outcome.count == 1


def test_labels_are_names_or_numbers():
    lens = lens_on("bert", "SequenceClassification")
    loss = choose_loss(lens)
    [text] = texts(lens, (4,))
    assert loss.question(text, "a", label="LABEL_2").targets == (2,)
    assert loss.question(text, "a", label="1").targets == (1,)
    for wrong in ("good", 3, -1, "1.5"):
        with pytest.raises(InputError):
            loss.question(text, "a", label=wrong)
    with pytest.raises(InputError):
        loss.question(text, "a")


def test_drift_and_cosine_are_those_of_mean_vectors():
    lens = lens_on("bert", "MaskedLM", torch.float64)
    loss = choose_loss(lens, "drift")
    a, b = texts(lens, (6, 4))
    pair = [loss.question(a, "a"), loss.question(b, "b")]
    outcomes = Runner(lens, loss, [Ablation("FF", "zero", (0,))]).run([pair])

    def vectors() -> list[torch.Tensor]:
        with torch.no_grad():
            return [
                lens.model(input_ids=torch.tensor([text.ids])).last_hidden_state[0].mean(0)
                for text in (a, b)
            ]

    before = vectors()
    block: Any = next(iter(lens.adapter.blocks()))
    block.output.dense.register_forward_hook(lambda _, __, y: 0 * y)
    after = vectors()
    drift = np.mean(
        [1 - float(F.cosine_similarity(*p, dim=0)) for p in zip(before, after, strict=True)]
    )
    [intact], [ablated] = outcomes
    assert intact.loss == pytest.approx(0, abs=1e-15)
    assert intact.cosine == pytest.approx(float(F.cosine_similarity(*before, dim=0)))
    assert ablated.loss == pytest.approx(drift, rel=1e-6)
    assert ablated.cosine == pytest.approx(float(F.cosine_similarity(*after, dim=0)))
    assert ablated.count == 2


def test_scores_in_chunks_are_the_same(monkeypatch):
    lens = lens_on("gemma2", "CausalLM", torch.float64)
    _, whole = intact(lens)
    monkeypatch.setattr(losses, "SCORES_LIMIT", 64 * 32 * 3)
    sizes: list[int] = []
    lens.adapter.whole.lm_head.register_forward_hook(lambda _, __, y: sizes.append(y.shape[1]))
    _, chunked = intact(lens)
    assert max(sizes[1:]) == 3  # the first is the check of the whole model
    assert [o.loss for o in chunked] == pytest.approx([o.loss for o in whole], rel=1e-12)


REFUSED = [
    ("gpt2", "CausalLM", "masked"),
    ("gpt2", "CausalLM", "classes"),
    ("bert", "MaskedLM", "next-token"),
    ("bert", "TokenClassification", "auto"),
    ("gpt2", "CausalLM", "nonsense"),
]


@pytest.mark.parametrize(("family", "task", "name"), REFUSED)
def test_a_loss_that_a_model_does_not_have_is_refused(family, task, name):
    with pytest.raises(InputError):
        choose_loss(lens_on(family, task), name)


def test_bare_models_drift(tiny):
    lens = Lens(tiny("bert"))
    assert choose_loss(lens).name == "drift"
    with pytest.raises(InputError):
        choose_loss(lens, "next-token")
    with pytest.raises(InputError):
        choose_loss(Lens(lens_on("bert", "MaskedLM").adapter.whole, False))


def test_sequences_without_a_loss_say_why():
    lens = lens_on("gpt2", "CausalLM")
    with pytest.raises(InputError):
        choose_loss(lens).question(texts(lens, (1,))[0], "a")
    lens = lens_on("bert", "MaskedLM")
    [special] = lens.encode(input_ids=[0, 1, 2])
    with pytest.raises(InputError):
        choose_loss(lens).question(special, "a")


def test_a_head_that_needs_more_than_vectors_is_refused(monkeypatch):
    lens = lens_on("gpt2", "CausalLM")
    real = lens.adapter.whole.lm_head.forward
    # A head that looks at all positions at once cannot be run on some of them.
    monkeypatch.setattr(
        lens.adapter.whole.lm_head, "forward", lambda x: real(x - x.mean(1)[:, None])
    )
    loss = choose_loss(lens)
    asked = [[loss.question(text, "a")] for text in texts(lens)]
    with pytest.raises(NotImplementedError):
        Runner(lens, loss, []).run(asked)

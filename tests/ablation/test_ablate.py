"""From a model and data to a page, for every loss."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from quick_reports import rendering_nothing
from run_records import forget
from tokenizers.processors import TemplateProcessing

import normlens
from normlens.corpus import Run
from normlens.errors import InputError, NormLensError
from normlens.studies.ablation.ablate import ablate
from normlens.studies.ablation.data import ABLATION, MAPS, STATISTICS, load_settings
from normlens.studies.ablation.losses import choose_loss

FEW: dict[str, Any] = {"resamples": 100, "draws": 3}
CPU: Any = {"execution": {"device": "cpu"}}
#: 18 sequences, of which a fifth are set apart.
APART, MEASURED = 3, 15
#: All figures that there are; those of the others are drawn alone.
RENDERED = ("pairs",)


@pytest.fixture(scope="module")
def made(tmp_path_factory, models, corpora):
    """An ablation for every loss, and one of pairs with gold scores."""
    folder = tmp_path_factory.mktemp("ablations")
    for name, data in corpora.items():
        model = models["drift" if name == "pairs" else name]
        with nullcontext() if name in RENDERED else rendering_nothing():
            page = ablate(model, data, folder / name, **FEW, **CPU)
        assert page == folder / name / "report.html"
    return {name: folder / name for name in corpora}


EVERY = ("next-token", "masked", "classes", "drift", "pairs")


@pytest.mark.parametrize("name", EVERY)
def test_every_sequence_has_every_ablation(name, made):
    done = Run.open(made[name] / ABLATION)
    assert done.status().complete
    assert done.status().failures == 0
    rows = done.table("ablations")
    plan = rows.groupby("ablation")[["component", "kind", "layers"]].first()
    assert plan.loc[0].tolist() == ["intact", "intact", ""]
    assert len(rows) == MEASURED * len(plan)
    assert rows["loss"].notna().all()
    assert load_settings(made[name])[1].loss == ("drift" if name == "pairs" else name)
    drift = name in ("drift", "pairs")
    intact, others = rows[rows["ablation"] == 0], rows[rows["ablation"] > 0]
    assert np.allclose(intact["loss"], 0, atol=1e-6) == drift
    assert (others["loss"].to_numpy() != 0).mean() > 0.9
    assert intact["cosine"].notna().all() == (name == "pairs")
    assert intact["gold"].notna().all() == (name == "pairs")


@pytest.mark.parametrize("name", EVERY)
def test_the_page_answers_every_question_that_applies(name, made):
    results = json.loads((made[name] / "results.json").read_text())
    absent = {one["name"] for one in results["experiments"] if one["absent"]}
    # GPT-2 has no norm behind its feed-forward block.
    assert absent == ({"special-dimensions"} if name == "next-token" else set())
    for experiment in results["experiments"]:
        for result in experiment["results"]:
            assert result["tables"]
            assert result["figures"]
    page = (made[name] / "report.html").read_text()
    assert "none exist, so nothing here is compared with a paper" in page
    assert f"the first {APART} of the 18 sequences" in page
    assert ("gold scores" in page) == (name == "pairs")


def test_losses_are_those_of_the_model(made, models):
    rows = Run.open(made["next-token"] / ABLATION).table("ablations")
    lens = normlens.load(models["next-token"], device="cpu")
    data = list(normlens.corpus.open_data(load_settings(made["next-token"])[0].data))
    loss = choose_loss(lens)
    question = loss.question(lens.encode(str(data[APART].text))[0], "any")
    intact = rows[(rows["ablation"] == 0) & (rows["index"] == 0)].iloc[0]
    ids = torch.tensor([question.encoded.ids])
    with torch.no_grad():
        expected = float(lens.adapter.whole(input_ids=ids, labels=ids).loss)
    assert intact["loss"] == pytest.approx(expected, rel=1e-5)
    assert intact["count"] == len(question.encoded) - 1


@pytest.mark.usefixtures("sketched")
def test_the_same_folder_may_have_other_resamples_alone(made, models, corpora):
    out = made["classes"]
    ablate(models["classes"], corpora["classes"], out, **{**FEW, "resamples": 120}, **CPU)
    assert load_settings(out)[0].resamples == 120
    with pytest.raises(InputError):
        ablate(models["classes"], corpora["classes"], out, resamples=100, draws=4, **CPU)


@pytest.mark.usefixtures("sketched")
def test_a_changed_statistics_file_is_refused(tmp_path, models, corpora):
    few: Any = {"kinds": ("mean",), "components": ("FF",), "resamples": 100, **CPU}
    ablate(models["drift"], corpora["drift"], tmp_path / "a", **few)
    ablate(models["drift"], corpora["drift"], tmp_path / "b", reference_size=1, **few)
    (tmp_path / "b" / STATISTICS).replace(tmp_path / "a" / STATISTICS)
    with pytest.raises(NormLensError) as raised:
        ablate(models["drift"], corpora["drift"], tmp_path / "a", **few)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("sketched")
def test_a_folder_may_move(tmp_path, models, corpora):
    few: Any = {"kinds": ("mean",), "components": ("FF",), "resamples": 100, **CPU}
    ablate(models["drift"], corpora["drift"], tmp_path / "a", **few)
    before = Run.open(tmp_path / "a" / ABLATION).table("ablations")
    (tmp_path / "a").rename(tmp_path / "b")
    forget(tmp_path / "b" / ABLATION, 0)
    ablate(models["drift"], corpora["drift"], tmp_path / "b", **few)
    after = Run.open(tmp_path / "b" / ABLATION).table("ablations")
    assert after.equals(before)


@pytest.mark.usefixtures("sketched")
def test_other_data_for_the_first_pass(tmp_path, models, corpora):
    other = tmp_path / "other.txt"
    other.write_text("ab cd ef\n" * 7)
    few: Any = {"kinds": ("mean",), "components": ("FF",), "resamples": 100, **CPU}
    ablate(
        models["drift"],
        corpora["drift"],
        tmp_path / "out",
        reference=other,
        reference_size=5,
        **few,
    )
    assert load_settings(tmp_path / "out")[1].reference.startswith("the first 5 of")
    assert Run.open(tmp_path / "out" / ABLATION).status().done == 18


@pytest.mark.usefixtures("sketched")
def test_kinds_that_need_no_first_pass_have_none(tmp_path, models, corpora):
    ablate(
        models["next-token"],
        corpora["next-token"],
        tmp_path / "out",
        kinds="zero",
        layers="all",
        resamples=100,
        **CPU,
    )
    assert not (tmp_path / "out" / STATISTICS).exists()
    done = Run.open(tmp_path / "out" / ABLATION)
    assert done.status().done == 18
    assert done.table("ablations")["layer"].isna().all()


def test_a_causal_model_reads_passages_of_wikitext(models, tmp_path):
    """As if they were texts of their own: in the first pass, in the ablations and in the maps."""
    lens = normlens.load(models["next-token"], device="cpu")
    lens.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    pairs = [(f"ab {'c' * k} d", f"ef {'gh ' * k}i") for k in range(1, 16)]
    wiki, texts = tmp_path / "wiki.raw", tmp_path / "texts.jsonl"
    wiki.write_text("".join(f"= A =\n{a}\n= = B = =\n{b}\n" for a, b in pairs))
    passages = [{"text": f"{a}\n= = B = =\n{b}"} for a, b in pairs]
    texts.write_text("\n".join(map(json.dumps, passages)))
    some: dict[str, Any] = {"components": "FF", "kinds": ("zero", "mean"), "max_length": 12}
    losses, mixed = [], []
    for data in (f"wikitext:{wiki}", str(texts)):
        folder = ablate(lens, data, tmp_path / data[-3:], page=False, **some, **FEW)
        losses.append(Run.open(folder / ABLATION).table("ablations")["loss"])
        mixed.append(Run.open(folder / MAPS).table("norms").select_dtypes("float"))
    assert losses[0].equals(losses[1])
    assert mixed[0].equals(mixed[1])

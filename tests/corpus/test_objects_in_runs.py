"""Runs of a user's objects: a model in memory, a list, a table."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers
from test_loading import tiny_tokenizer

import normlens
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.identity import weights_hash
from normlens.errors import InputError
from normlens.models.tiny import tiny_model

TEXTS = ["the cat sat", "a mat", "the cats sat on a mat"]
FAST = dict(measures="mixing")


@pytest.fixture
def pipe() -> Any:
    return transformers.pipeline(
        "feature-extraction", model=tiny_model("bert"), tokenizer=tiny_tokenizer(), device="cpu"
    )


def test_a_run_of_objects(pipe, tmp_path):
    done = normlens.run(pipe, TEXTS, tmp_path / "objects", **FAST)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    lens = normlens.load(pipe)
    named = normlens.run(lens, tmp_path / "texts.txt", tmp_path / "named", **FAST)
    found, expected = (
        run.table("mixing").drop(columns="sequence", errors="ignore") for run in (done, named)
    )
    values = [name for name in found.columns if found[name].dtype.kind == "f"]
    assert values
    assert found[values].equals(expected[values])
    manifest = json.loads((tmp_path / "objects" / "manifest.json").read_text())
    assert manifest["options"]["model"] == "BertModel (an object)"
    assert manifest["options"]["data"] == "data in memory"
    assert manifest["model"]["weights"] == weights_hash(lens)


def test_a_run_of_objects_goes_on_with_the_same_ones(pipe, tmp_path):
    out = tmp_path / "run"
    normlens.run(pipe, TEXTS, out, **FAST)
    with pytest.raises(InputError, match=r"pass the same again.*model=…, data=…"):
        normlens.resume(out)
    again = normlens.resume(out, model=pipe, data=TEXTS)
    assert again.table("mixing").equals(normlens.Run.open(out).table("mixing"))
    with pytest.raises(RunError, match="the contents of the data"):
        normlens.resume(out, model=pipe, data=[*TEXTS[:2], "a cat"])
    pipe.model.encoder.layer[0].output.dense.weight.data[0, 0] += 1
    with pytest.raises(RunError, match="the model's weights"):
        normlens.resume(out, model=pipe, data=TEXTS)


def test_objects_stay_in_their_process(pipe, tmp_path):
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        normlens.run(pipe, TEXTS, tmp_path / "run", workers=2, **FAST)
    with pytest.raises(InputError, match=r"no tokenizer.*normlens\.load\(model, tokenizer\)"):
        normlens.run(tiny_model("bert"), TEXTS, tmp_path / "other", **FAST)


def test_the_hash_of_adapters_says_which_are_at_work(tmp_path):
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = peft.get_peft_model(
        tiny_model("bert"), peft.LoraConfig(target_modules=["value"], init_lora_weights=False)
    )
    lens = normlens.load(model)
    before = weights_hash(lens)
    assert weights_hash(lens) == before
    with model.disable_adapter():
        assert weights_hash(lens) != before
    model.base_model.model.encoder.layer[0].attention.self.value.scaling["default"] *= 2
    assert weights_hash(lens) != before


def test_the_hash_of_offloaded_weights_is_that_of_the_weights():
    accelerate = pytest.importorskip("accelerate", reason="offloading: pip install accelerate")
    model = tiny_model("bert")
    accelerate.cpu_offload(model, execution_device="cpu")
    assert weights_hash(normlens.load(model)) == weights_hash(normlens.load(tiny_model("bert")))

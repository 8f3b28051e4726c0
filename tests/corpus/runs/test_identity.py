"""What makes a model or a measure another one, so that a run is not resumed with it."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import run_examples as examples
import torch
import transformers
from run_records import forget

import normlens
from normlens.corpus import resume, run
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.identity import identify, tokenizer_hash
from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import tiny_config

MEASURE = """
from normlens.corpus.measures import measure
{imports}

@measure(schema={{"length": int}})
def length(maps):
    {inside}
    return {{"length": [len(maps)]}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("identity")
    examples.tiny_checkpoint(place / "model")
    examples.corpus_file(place / "corpus.txt", 4)
    return place


@pytest.fixture
def checkpoint(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place / "model", tmp_path / "model"))


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# The model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (
            "config.json",
            {"hidden_act": "relu"},
            "the model's configuration, hidden_act: then gelu, now relu",
        ),
        ("config.json", {"layer_norm_eps": 0.1}, "the model's configuration, layer_norm_eps"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "the tokenizer: then sha256"),
        (
            "tokenizer_config.json",
            {"model_input_names": ["input_ids", "attention_mask", "token_type_ids"]},
            "the tokenizer: then sha256",
        ),
        ("tokenizer_config.json", {"cls_token": "[MASK]"}, "the tokenizer: then sha256"),
    ],
    ids=str,
)
def test_an_edited_file_of_the_model_is_refused(
    place: Path, tmp_path: Path, checkpoint: Path, file: str, values: dict[str, Any], message: str
) -> None:
    out = tmp_path / "run"
    run(checkpoint, place / "corpus.txt", out, measures="mixing", device="cpu", block_size=2)
    forget(out, 1)
    kept = (checkpoint / file).read_bytes()
    edit(checkpoint / file, **values)
    with pytest.raises(RunError, match=message):
        resume(out)
    (checkpoint / file).write_bytes(kept)
    assert resume(out).status().complete


def test_where_a_model_lies_is_no_part_of_what_it_is(place: Path, checkpoint: Path) -> None:
    here, there = (identify(normlens.load(p, device="cpu")) for p in (place / "model", checkpoint))
    assert here.pop("name") != there.pop("name")
    assert here == there


def test_slow_tokenizers_are_told_apart_by_their_files(tmp_path: Path) -> None:
    class Slow:
        merges_file = str(tmp_path / "merges.txt")

        def __init__(self, **options: Any):
            self.special_tokens_map: dict[str, str] = {}
            self.vocab_files_names = {"merges_file": "merges.txt"}
            self.init_kwargs = {**options, "name_or_path": f"/{id(self)}"}

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    (tmp_path / "merges.txt").write_text("a b")
    first = tokenizer_hash(Slow(lower=True))
    assert tokenizer_hash(Slow(lower=True)) == first
    assert tokenizer_hash(Slow(lower=False)) != first
    (tmp_path / "merges.txt").write_text("b a")
    assert tokenizer_hash(Slow(lower=True)) != first


def test_a_tokenizer_of_two_models_is_told_apart_by_either(tmp_path: Path) -> None:
    class Marian:
        special_tokens_map: ClassVar[dict[str, str]] = {}
        vocab_files_names: ClassVar[dict[str, str]] = {"source_spm": "source.spm"}
        spm_files: ClassVar[list[str]] = [str(tmp_path / name) for name in ("source", "target")]

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    for name in ("source", "target"):
        (tmp_path / name).write_text("as it was")
    first = tokenizer_hash(Marian())
    for name in ("source", "target"):
        (tmp_path / name).write_text("another")
        assert tokenizer_hash(Marian()) != first
        (tmp_path / name).write_text("as it was")
    assert tokenizer_hash(Marian()) == first


# Measures -----------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's own modules, forgotten afterwards."""
    folder = tmp_path / "modules"
    (folder / "own_package" / "deep").mkdir(parents=True)
    for name in ("own_helper", "own_second", "own_package/__init__", "own_package/deep/part"):
        (folder / f"{name}.py").write_text("value = 1\n")
    (folder / "own_unrelated.py").write_text("value = 1\n")
    (folder / "own_helper.py").write_text("import own_second\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_measure", raising=False)  # of another test
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("imports", "inside", "edited"),
    [
        ("import own_helper", "pass", "own_helper"),
        ("from own_helper import own_second", "pass", "own_second"),
        ("", "import own_helper", "own_second"),
        ("from own_package.deep.part import value", "pass", "own_package/deep/part"),
        ("from own_package.deep import part", "pass", "own_package/__init__"),
    ],
)
def test_a_measures_sources_are_followed(
    place: Path, tmp_path: Path, modules: Path, imports: str, inside: str, edited: str
) -> None:
    (modules / "own_measure.py").write_text(MEASURE.format(imports=imports, inside=inside))
    lens = normlens.load(place / "model", device="cpu")
    options: dict[str, Any] = {"measures": "own_measure:length"}
    run(lens, place / "corpus.txt", tmp_path / "run", **options)
    (modules / "own_unrelated.py").write_text("value = 2\n")
    assert resume(tmp_path / "run", model=lens, **options).status().complete
    with (modules / f"{edited}.py").open("a") as file:
        file.write("value = 2\n")
    name = edited.removesuffix("/__init__").replace("/", ".")
    with pytest.raises(RunError, match=f"the code of the measures.*{name}: then sha256:"):
        resume(tmp_path / "run", model=lens, **options)


def test_a_ready_measure_has_a_source_too(place: Path, tmp_path: Path, modules: Path) -> None:
    from importlib import import_module

    (modules / "own_ready.py").write_text(MEASURE.format(imports="", inside="pass"))
    lens = normlens.load(place / "model", device="cpu")
    ready = import_module("own_ready").length
    done = run(lens, place / "corpus.txt", tmp_path / "run", measures=[ready])
    assert done.resume(model=lens).status().complete
    (modules / "own_ready.py").write_text(MEASURE.format(imports="", inside="1 + 1"))
    with pytest.raises(RunError, match="the code of the measures, length, source, own_ready"):
        resume(tmp_path / "run", model=lens, measures=[ready])


def test_installed_packages_are_not_followed(modules: Path) -> None:
    from normlens.corpus.measures.user_code import module_sources

    (modules / "own_imports.py").write_text(
        "import json, numpy.linalg, normlens.results.maps, not_there\nfrom torch import nn\n"
        "from collections import abc\nimport own_helper\n"
    )
    found = module_sources("own_imports")
    assert set(found) == {"own_imports", "own_helper", "own_second"}
    # To look at a file is not to run it.
    assert "own_helper" not in sys.modules


# What stands behind the body ----------------------------------------------------------------------


def test_another_head_is_another_model_for_measures_that_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = transformers.LlamaForCausalLM(tiny_config("llama", tie_word_embeddings=False)).eval()
    with quiet_transformers():
        model.save_pretrained(folder)
        examples.tiny_tokenizer().save_pretrained(folder)
    lens = normlens.load(folder)
    before, plain = identify(lens, head=True), identify(lens)
    assert identify(normlens.load(folder), head=True) == before
    with torch.no_grad():
        lens.adapter.whole.lm_head.weight[0, 0] += 1
    changed = identify(lens, head=True)
    assert changed["head"] != before["head"]
    assert changed["weights"] == before["weights"]
    assert identify(lens) == plain  # maps do not depend on a head


def test_a_run_of_explanations_is_not_resumed_with_another_head(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = tmp_path / "model"
    model = transformers.LlamaForCausalLM(tiny_config("llama", tie_word_embeddings=False)).eval()
    with quiet_transformers():
        model.save_pretrained(folder)
        examples.tiny_tokenizer().save_pretrained(folder)
    corpus = examples.corpus_file(tmp_path / "corpus.txt", 3)
    run(folder, corpus, tmp_path / "run", measures="explanations")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with quiet_transformers():
        model.save_pretrained(folder)
    with pytest.raises(RunError, match="the weights of the model's head"):
        resume(tmp_path / "run")


def test_another_pooling_is_another_model(minilm: Any) -> None:
    lens = copy.copy(minilm)
    before = identify(lens, head=True)["head"]
    lens.__dict__["pooling"] = replace(minilm.pooling, reads="first")
    assert identify(lens, head=True)["head"] != before

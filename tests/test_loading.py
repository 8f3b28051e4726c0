"""Loading: what works without the network, and what each kind of damage says."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import errors
from one_case import in_one_case
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.utils import logging

import normlens
from normlens.errors import (
    InputError,
    ModelLoadError,
    UnsupportedModelError,
)
from normlens.loading import hub
from normlens.models.tiny import tiny_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "##s"]
SENTENCE = "the cats sat on a mat"


# Folders that the tests of the command line use too ----------------------------------------------


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of eleven tokens."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def save_tiny(folder: Path, model_type: str = "bert") -> Path:
    """A tiny model and tokenizer in a folder, as save_pretrained leaves them."""
    logging.disable_progress_bar()
    tiny_model(model_type).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


class Payload:
    """An object whose unpickling leaves a mark on the disk."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


Damage = Callable[[Path], Any]


def without(name: str) -> Damage:
    return lambda folder: [path.unlink() for path in folder.glob(name)]


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def configured(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def tensors(change: Callable[[dict[str, Any], str], Any]) -> Damage:
    def damage(folder: Path) -> None:
        loaded = load_file(folder / "model.safetensors")
        change(loaded, "encoder.layer.1.output.dense.weight")
        save_file(loaded, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-500])


def pickled(write: Callable[[Any, Path], Any]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        write({"embeddings": Payload(folder / "EXECUTED")}, folder / "pytorch_model.bin")

    return damage


def add_custom_code(folder: Path) -> None:
    auto = {"AutoConfig": "code_here.CustomConfig"}
    configured(lambda c: c.update(model_type="custom_bert", auto_map=auto))(folder)
    (folder / "code_here.py").write_text(
        "import os\n"
        "from transformers import BertConfig\n"
        f"os.mkdir({str(folder / 'EXECUTED')!r})\n"
        "class CustomConfig(BertConfig):\n"
        "    model_type = 'custom_bert'\n"
    )


def become(model_type: str, **settings: Any) -> Damage:
    config = {"hidden_size": 16, "vocab_size": 64, **settings}
    return lambda folder: AutoModel.from_config(
        AutoConfig.for_model(model_type, **config)
    ).save_pretrained(folder)


#: name → what happens to a good folder, and a word of what its message says.
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no weights": (without("model.safetensors"), "holds no weights"),
    "no config": (without("config.json"), "no config.json"),
    "garbled tokenizer": (written("tokenizer.json", b"{no json"), "no usable tokenizer"),
    "truncated weights": (truncate_weights, "may be damaged"),
    "garbled config": (written("config.json", b"{no json"), "may be damaged"),
    "no model type": (configured(lambda config: config.pop("model_type")), 'no "model_type"'),
    "an unknown model type": (
        configured(lambda config: config.update(model_type="newest")),
        "does not know the architecture",
    ),
    "a pickle with code": (pickled(torch.save), "run code"),
    "a plain pickle": (
        pickled(lambda value, path: path.write_bytes(pickle.dumps(value))),
        "run code",
    ),
    "custom code": (add_custom_code, "--trust-remote-code"),
    "NaN": (tensors(lambda loaded, name: loaded[name].fill_(float("nan"))), "not finite"),
    "a missing tensor": (tensors(dict.pop), "incomplete"),
    "a reshaped tensor": (
        tensors(lambda loaded, name: loaded.update({name: loaded[name][:, :3].clone()})),
        "wrong shape",
    ),
    "an encoder–decoder": (
        become("prophetnet", num_encoder_layers=1, num_decoder_layers=1),
        "encoder–decoder",
    ),
    "another architecture": (become("mamba", num_hidden_layers=1, state_size=4), "state-space"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A folder to damage."""
    return shutil.copytree(good, tmp_path / "model")


# A folder ----------------------------------------------------------------------------------------


def test_local_folder_loads_offline(good: Path) -> None:
    lens = normlens.load(good, device="cpu")
    assert (lens.name, lens.source) == (good.name, str(good))
    assert lens.dtype == torch.float32
    maps = lens.maps(SENTENCE)
    assert maps.tokens == ["[CLS]", "the", "cat", "##s", "sat", "on", "a", "mat", "[SEP]"]
    same = normlens.load(tiny_model("bert"), tiny_tokenizer()).maps(SENTENCE)
    np.testing.assert_allclose(maps["LN2"], same["LN2"], rtol=1e-6)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_folder(kind: str, folder: Path) -> None:
    damage, word = DAMAGES[kind]
    damage(folder)
    with pytest.raises((ModelLoadError, UnsupportedModelError)) as caught:
        normlens.load(folder)
    message = str(caught.value)
    assert word in message
    assert "weights_only" not in message  # nobody should be told to switch it off
    # What is missing or unknown is not called damaged.
    assert ("may be damaged" in message) == ("may be damaged" in word)
    assert not (folder / "EXECUTED").exists()


def test_custom_code_runs_only_when_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    add_custom_code(folder)
    # Trusted, it is read as far as its architecture, which has no adapter.
    with pytest.raises(UnsupportedModelError, match="custom_bert"):
        normlens.load(folder, trust_remote_code=True)
    assert (folder / "EXECUTED").exists()


def test_a_folder_without_a_tokenizer_takes_ids(folder: Path) -> None:
    """Models of proteins and molecules are often published so."""
    without("token*")(folder)
    lens = normlens.load(folder)
    assert lens.tokenizer is None
    expected = normlens.load(tiny_model("bert")).maps(input_ids=[4, 5, 6])
    np.testing.assert_array_equal(lens.maps(input_ids=[4, 5, 6])["LN2"], expected["LN2"])
    with pytest.raises(InputError):
        lens.maps("the cat")


@in_one_case(
    ("source", "options"),
    [
        ("./nowhere", {}),
        (__file__, {}),
        ("   ", {}),
        (3, {}),
        (["bert"], {}),
        (object(), {}),
        ("no name!", {}),
        ("a" * 300, {}),
        *((None, {"device": device}) for device in ("nonsense", "cuda:99", "meta")),
        (None, {"name": " "}),
    ],
)
def test_what_cannot_be_loaded(source: Any, options: dict[str, Any]) -> None:
    with pytest.raises((ModelLoadError, InputError)):
        normlens.load(source, **options)


# The hub, up to the network ----------------------------------------------------------------------


class Hub:
    """Stands for transformers' loaders, and remembers what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reachable: bool = True):
        self.calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.error: Exception | None = None
        monkeypatch.setattr(hub, "reachable", lambda: reachable)
        model = tiny_model("bert")
        for name, result in (
            ("AutoConfig", model.config),
            ("AutoModel", (model, {"missing_keys": set(), "mismatched_keys": set()})),
            ("AutoTokenizer", tiny_tokenizer()),
        ):
            monkeypatch.setattr(f"transformers.{name}.from_pretrained", self._answer(name, result))

    def _answer(self, name: str, result: Any) -> Callable[..., Any]:
        def from_pretrained(*args: Any, **options: Any) -> Any:
            self.calls[name] = args, options
            if self.error is not None:
                raise self.error
            return result

        return from_pretrained


def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Hub(monkeypatch)
    lens = normlens.load("someone/some-bert", revision="v2", device="cpu")
    assert lens.name == "someone/some-bert"
    assert lens.revision == "v2"
    for args, options in asked.calls.values():
        assert args == ("someone/some-bert",)
        assert options["revision"] == "v2"
        assert options["trust_remote_code"] is False
        assert "local_files_only" not in options
    options = asked.calls["AutoModel"][1]
    assert options["weights_only"] is True
    assert options["attn_implementation"] == "eager"
    assert options["dtype"] == torch.float32


def test_unreachable_hub_leaves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Hub(monkeypatch, reachable=False)
    normlens.load("someone/some-bert")
    assert all(options["local_files_only"] is True for _, options in asked.calls.values())


def test_unreachable_hub_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("network is unreachable")

    for name in hub.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "create_connection", refuse)
    start = time.monotonic()
    with pytest.raises(ModelLoadError) as caught:
        normlens.load("someone/some-bert")
    assert time.monotonic() - start < 5
    assert "unreachable" in str(caught.value)
    assert hub.state().startswith("unreachable")


class Answer:
    """As much of an HTTP response as the hub's errors read."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.request = None


@in_one_case(
    ("kind", "words"),
    [
        (errors.RepositoryNotFoundError, "check the name"),
        (errors.GatedRepoError, "accept them"),
        (errors.RevisionNotFoundError, "'v2'"),
    ],
)
def test_refusals_of_the_hub(kind: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:

    asked = Hub(monkeypatch)
    asked.error = OSError("a long story\nin several lines")
    asked.error.__cause__ = kind("no", response=Answer())
    with pytest.raises(ModelLoadError, match=words):
        normlens.load("someone/some-bert", revision="v2")

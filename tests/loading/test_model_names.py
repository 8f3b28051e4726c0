"""What results call a model: its name, and never the path of its folder."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import transformers
from one_case import in_one_case
from shell import Shell
from test_loading import SENTENCE, save_tiny

import normlens
from normlens.loading.hub import shown_name
from normlens.results import exports

PLACE = "home-of-someone"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder in a folder whose path tells whose it is."""
    folder = save_tiny(tmp_path_factory.mktemp(PLACE) / "my-model", "gpt2")
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lens(folder: Path) -> normlens.Lens:
    return normlens.load(folder, device="cpu")


@in_one_case(
    ("name", "shown"),
    [
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224"),
        ("/home/anna/models/sst2", "sst2"),
        ("~/models/sst2", "sst2"),
        ("runs/sst2/checkpoint-500", "checkpoint-500"),
        ("/cache/hub/models--google--vit-base/snapshots/0a1b", "google/vit-base"),
    ],
)
def test_shown_names(name: str, shown: str) -> None:
    assert shown_name(name) == shown


def test_a_lens_is_called_by_its_folders_last_part_or_as_its_user_likes(folder: Path) -> None:
    lens = normlens.load(folder)
    assert (lens.name, lens.source) == ("my-model", str(folder))
    called = normlens.load(folder, name="GPT, after an epoch")
    assert (called.name, called.source) == ("GPT, after an epoch", str(folder))
    assert called.maps(SENTENCE).provenance["model"] == "GPT, after an epoch"


def shown_in(path: Path) -> bytes:
    """The bytes of a file, and what a page's payload says."""
    data = path.read_bytes()
    payload = re.search(rb'id="normlens-payload">([^<]*)<', data)
    return data if payload is None else data + base64.b64decode(payload[1])


@in_one_case("kind", ["maps", "explain", "cosine"])
@in_one_case("ending", [".safetensors", ".html", ".csv", ".json", ".svg"])
def test_no_file_says_where_the_model_lies(kind: str, ending: str, lens, tmp_path: Path) -> None:
    texts = (SENTENCE, "a cat") if kind == "cosine" else (SENTENCE,)
    path = exports.write(getattr(lens, kind)(*texts), tmp_path / f"result{ending}")
    data = shown_in(path)
    assert PLACE.encode() not in data
    if ending in (".safetensors", ".html", ".json"):
        assert b"my-model" in data
    path.unlink()


def test_the_command_line_and_the_server_show_the_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(capsys)
    for words in (("map", SENTENCE), ("map", "--estimate", 8), ("cosine", SENTENCE, "a cat")):
        out = shell(*words, "--model", folder)
        assert "my-model" in out
        assert PLACE not in out
    again = folder.parent / "again" / "my-model"
    serve = pytest.importorskip("normlens.serve.analyses", exc_type=ImportError)
    served = serve.ServedModels([str(folder), str(again), str(folder), "minilm"], serve.Limits())
    assert served.names == ("my-model", "my-model (2)", "minilm")

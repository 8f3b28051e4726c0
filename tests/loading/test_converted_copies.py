"""Copies of embedded models: complete, checked, made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from normlens.loading.embedded import EMBEDDED, cache_folder, is_whole, writing_whole


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    with writing_whole(tmp_path / "copies" / "copy") as folder:
        (folder / "weights").write_bytes(bytes(range(256)))
        (folder / "config.json").write_text("{}")
    return tmp_path / "copies" / "copy"


def test_a_copy_appears_with_all_its_files_and_nothing_beside_it(copy: Path) -> None:
    assert is_whole(copy)
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


@pytest.mark.parametrize("damage", ["flip", "lost", "added", "checksums"])
def test_damage_is_found_and_the_copy_can_be_made_again(copy: Path, damage: str) -> None:
    if damage == "flip":
        (copy / "weights").write_bytes(bytes(255) + b"\0")
    elif damage == "lost":
        (copy / "weights").unlink()
    elif damage == "added":
        (copy / "more.json").write_text("{}")
    else:
        (copy / "sha256.json").write_text("{")
    assert not is_whole(copy)
    with writing_whole(copy) as folder:
        (folder / "weights").write_bytes(b"again")
    assert is_whole(copy)
    assert (copy / "weights").read_bytes() == b"again"


def test_a_copy_that_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with writing_whole(tmp_path / "copy") as folder:
            (folder / "weights").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_copy_of_another_process_stays(tmp_path: Path) -> None:
    with writing_whole(tmp_path / "copy") as folder:
        (folder / "weights").write_bytes(b"mine")
        with writing_whole(tmp_path / "copy") as first:
            (first / "weights").write_bytes(b"theirs")
    assert is_whole(tmp_path / "copy")
    assert (tmp_path / "copy" / "weights").read_bytes() == b"theirs"


def test_smollm2_is_what_its_gguf_holds(smollm2: Any) -> None:
    gguf = pytest.importorskip("gguf")
    model = EMBEDDED["smollm2"]
    copy = cache_folder() / f"smollm2-{model.sha256[:12]}"
    assert is_whole(copy)  # the fixture has made it, or read it
    names = {
        "blk.7.ffn_gate.weight": "model.layers.7.mlp.gate_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    weights = smollm2.adapter.whole.state_dict()
    for tensor in gguf.GGUFReader(model.locate()).tensors:
        if tensor.name in names:
            expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            assert torch.equal(weights[names.pop(tensor.name)], expected.view(-1, 576).squeeze())
    assert not names

"""Explanations on disk: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from crafted_files import save_crafted
from heads import headed
from safetensors import safe_open

import normlens
from normlens.errors import InputError, MapsFileError

IDS = [5, 17, 31, 8, 44]


@pytest.fixture(scope="module")
def lens():
    return normlens.load(headed("gpt2", "CausalLM", torch.float32), tokenizer=False)


@pytest.fixture(scope="module")
def why(lens):
    return lens.explain(input_ids=IDS, target=3, contrast=7, heads=True, scopes=["ATTN", "FF"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "why.safetensors"


# Damaged and crafted files ------------------------------------------------------------------------


def rewrite(result, path, change) -> None:
    """Save, let `change` alter tensors and header, and write them back."""
    result.save(path, overwrite=True)
    with safe_open(path, framework="numpy") as file:
        header = dict(file.metadata())
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    name = type(result).__name__.lower()
    meta = json.loads(header[name])
    change(tensors, header, meta)
    if header.get(name) not in (None, "{"):
        header[name] = json.dumps(meta)
    save_crafted(tensors, path, metadata=header)


def refused(path) -> str:
    with pytest.raises(MapsFileError, match="damaged") as raised:
        normlens.open(path)
    return str(raised.value)


def test_numbers_that_lose_their_sum_are_refused_and_rounding_is_not(why, path):
    rounded = replace(why, nodes=why.nodes.astype(np.float64) * (1 + 1e-7))
    rounded.save(path)
    assert normlens.open(path) == rounded
    with pytest.raises(InputError, match="sum to"):
        replace(why, nodes=why.nodes * 1.01).save(path, overwrite=True)
    rewrite(why, path, lambda tensors, *_: tensors.update(nodes=tensors["nodes"] * 1.01))
    assert "sum to" in refused(path)

"""Explanations on disk: numbers that do not make the score are neither written nor read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from crafted_files import save_crafted
from heads import headed
from safetensors import safe_open

import normlens
from normlens.errors import InputError, MapsFileError


def test_numbers_that_lose_their_sum_are_refused_and_rounding_is_not(tmp_path):
    lens = normlens.load(headed("gpt2", "CausalLM", torch.float32), tokenizer=False)
    why = lens.explain(input_ids=[5, 17, 31, 8, 44], target=3, contrast=7, heads=True)
    path = tmp_path / "why.safetensors"
    rounded = replace(why, nodes=why.nodes.astype(np.float64) * (1 + 1e-7))
    rounded.save(path)
    assert normlens.open(path) == rounded
    with pytest.raises(InputError):
        replace(why, nodes=why.nodes * 1.01).save(path, overwrite=True)
    with safe_open(path, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    tensors["nodes"] *= 1.01
    save_crafted(tensors, path, metadata=metadata)
    with pytest.raises(MapsFileError):
        normlens.open(path)

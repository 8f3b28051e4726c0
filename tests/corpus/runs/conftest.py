"""A tiny model and a corpus of as many sequences as a module says by its `N`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch

import normlens


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, `model`, and its data, `corpus.txt`."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("place")
    examples.tiny_checkpoint(place / "model")
    examples.corpus_file(place / "corpus.txt", request.module.N)
    return place


@pytest.fixture(scope="module")
def lens(place: Path) -> Any:
    return normlens.load(place / "model", device="cpu")

"""Tiny models in folders, and a page that serves one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_loading import save_tiny

pytest.importorskip("fastapi", reason="the page needs normlens[serve]")
pytest.importorskip("uvicorn", reason="the page needs normlens[serve]")
pytest.importorskip("httpx")

from serving import ON_CPU, Site, StepwiseModels

from normlens.serve.limits import Limits
from normlens.serve.models import ServedModels


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT of two layers, 48 positions and eleven tokens."""
    return str(save_tiny(tmp_path_factory.mktemp("serve") / "tiny"))


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(Path(save_tiny(tmp_path_factory.mktemp("serve") / "decoder", "gpt2")))


@pytest.fixture(scope="module")
def site(folder: str, decoder: str) -> Iterator[Site]:
    with Site(ServedModels([folder, decoder], Limits(), loading=ON_CPU)) as running:
        yield running


@pytest.fixture
def stepwise(folder: str) -> Iterator[Site]:
    """A page whose analyses wait behind every layer, with room for two in the queue."""
    limits = Limits(queue=2)
    models = StepwiseModels([folder], limits, loading=ON_CPU)
    with Site(models, limits) as running:
        yield running
        models.let_go()

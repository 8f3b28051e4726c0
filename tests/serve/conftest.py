"""Tiny models in folders, and a page that serves one."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from test_loading import save_tiny

pytest.importorskip("fastapi", reason="the page needs normlens[serve]")
pytest.importorskip("uvicorn", reason="the page needs normlens[serve]")
pytest.importorskip("httpx")

from serving import ON_CPU, PATIENCE, Site, StepwiseModels

from normlens.models.tiny import scramble, tiny_config
from normlens.serve.analyses import Limits, ServedModels


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny BERT of two layers, 48 positions and eleven tokens."""
    return str(save_tiny(tmp_path_factory.mktemp("serve") / "tiny"))


@pytest.fixture(scope="session")
def decoder(tmp_path_factory):
    return str(Path(save_tiny(tmp_path_factory.mktemp("serve") / "decoder", "gpt2")))


@pytest.fixture(scope="module")
def site(folder, decoder):
    with Site(ServedModels([folder, decoder], Limits(), loading=ON_CPU)) as running:
        yield running


@pytest.fixture
def stepwise(folder):
    """A page whose analyses wait behind every layer, with room for two in the queue."""
    limits = Limits(queue=2)
    models = StepwiseModels([folder], limits, loading=ON_CPU)
    with Site(models, limits) as running:
        yield running
        models.let_go()


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A tiny GPT-2 of two layers that says something."""
    folder = save_tiny(tmp_path_factory.mktemp("serve") / "speaker", "gpt2")
    model = transformers.GPT2LMHeadModel(tiny_config("gpt2")).eval()
    scramble(model)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def talking(speaker, folder):
    with Site(ServedModels([speaker, folder], Limits(), loading=ON_CPU)) as running:
        yield running


@pytest.fixture
def slow(speaker):
    """A page whose analyses wait behind every layer."""
    models = StepwiseModels([speaker], Limits(), loading=ON_CPU)
    with Site(models) as running:
        yield running
        models.let_go()


@pytest.fixture
def page(browser):
    context = browser.new_context()
    context.set_default_timeout(1000 * PATIENCE)
    yield context.new_page()
    context.close()

"""A server says at its start that it cannot show a model whose layers differ."""

from __future__ import annotations

import pytest
from serving import ON_CPU
from unlike_examples import _own_registry, unlike  # noqa: F401

import normlens
from normlens.errors import UnsupportedModelError
from normlens.serve.analyses import Limits, ServedModels


def test_layers_that_differ_are_refused_before_anybody_asks(monkeypatch):
    monkeypatch.setattr("normlens.loading.load.load_config", lambda *_, **__: None)
    monkeypatch.setattr("normlens.plan.estimate.skeleton", lambda *_: normlens.load(unlike()))
    models = ServedModels(["unlike"], Limits(), loading=ON_CPU)
    with pytest.raises(UnsupportedModelError, match=r"the layers of unlike differ.*maps\.html"):
        models.describe()

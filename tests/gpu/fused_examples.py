"""Layers for the fused kernel, and how its norms are compared."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normlens.layers import Layer

#: every order of components that the kernel knows, and what families differ in
LAYERS: dict[str, dict[str, Any]] = {
    "post": {"order": "post"},
    "pre-causal": {"order": "pre", "causal": True},
    "gated": {"order": "pre", "gated": True, "activation": "silu", "centred": False, "groups": 2},
    "both": {"order": "both"},
    "both-rms": {"order": "both", "gated": True, "activation": "gelu_new", "centred": False},
    "bare": {"order": "bare", "activation": "relu"},
}
#: both slopes of a gated block can be zero
GATED_RELU = {"order": "pre", "gated": True, "activation": "relu"}
#: the largest relative error of any entry
TOLERANCE = {"float32": 2e-5, "tf32": 3e-3, "bfloat16": 1e-2}


def moved(component: Any, device: str) -> Any:
    """A component with all its tensors on `device`."""
    if isinstance(component, Tensor):
        return component.to(device)
    if not is_dataclass(component):
        return component
    changes = {f.name: moved(getattr(component, f.name), device) for f in fields(component)}
    return replace(component, **changes)  # type: ignore[type-var]


def on(given: Any, device: str) -> Any:
    """A problem on `device`."""
    steps = [moved(step, device) for step in given.layer.steps]
    layer = Layer(steps, given.layer.reach)
    return replace(given, layer=layer, x=given.x.to(device), alpha=given.alpha.to(device))


def entry_error(found: Tensor, expected: Tensor) -> float:
    """The largest relative error of any entry; what should be 0 must be 0, and NaN is ∞."""
    found, expected = found.double().cpu(), expected.double().cpu()
    assert found.shape == expected.shape
    nothing = expected == 0
    if found[nothing].ne(0).any():
        return float("inf")
    error = ((found - expected).abs() / expected.where(~nothing, torch.ones(()).double())).max()
    return float(error) if torch.isfinite(error) else float("inf")


def force_storing(stored: bool, monkeypatch: Any) -> None:
    """Hidden rows stored or mixed anew by the method source by source, whatever that costs."""
    from normlens.gpu import feed_forward
    from normlens.plan import kernels

    for module in (feed_forward, kernels):
        monkeypatch.setattr(module, "stores_hidden_rows", lambda *_: stored)


def force_method(name: str, monkeypatch: Any) -> None:
    """One method through the stage, whatever it costs."""
    from normlens.frozen import tiles
    from normlens.gpu import feed_forward

    known = {
        "in one kernel": feed_forward.InOneKernel,
        "by pair": feed_forward.ByPair,
        "matrices": feed_forward.Matrices,
    }
    monkeypatch.setattr(tiles, "head_products_pay", lambda *sizes: True)
    monkeypatch.setattr(feed_forward, "cheapest_method", known[name])

"""Steps in one pass over rows, by Triton's interpreter or on a GPU, against PyTorch in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from one_case import in_one_case

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from reference import largest_error

import normlens
from normlens.frozen import norm_maps
from normlens.frozen import parts as steps
from normlens.frozen.parts import Parts, relative_rows
from normlens.gpu.rows import measured, normalised
from normlens.layers import Norm
from normlens.models.tiny import tiny_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@in_one_case("centred", [True, False])
@in_one_case("given", [(True, True), (True, False), (False, True), (False, False)])
@in_one_case("shape", [(2, 3, 20), (4, 2, 3, 33)])
def test_normalised_rows(shape: tuple[int, ...], given: tuple[bool, bool], centred: bool) -> None:
    """Also of several vectors for each target, with the deviation of that target."""
    d, (stretched, shifted) = shape[-1], given
    gamma, beta = random(d, seed=1) if stretched else None, random(d, seed=2) if shifted else None
    v, deviation = random(*shape) + 3, random(2, 3, seed=3).abs()
    found = normalised(
        v.to(DEVICE),
        Norm(None if gamma is None else gamma.to(DEVICE), None, 1e-5, centred),
        deviation.to(DEVICE),
        None if beta is None else beta.to(DEVICE),
    )
    exact = v.double() - (v.double().mean(-1, keepdim=True) if centred else 0)
    exact = exact * (1 if gamma is None else gamma.double()) * deviation.double()[..., None]
    exact = exact + (0 if beta is None else beta.double())
    torch.testing.assert_close(found.cpu().double(), exact, rtol=1e-5, atol=1e-5)


@in_one_case("centred", [True, False])
@in_one_case("stretched", [True, False])
def test_gradients_pass_a_norm_in_one_pass(stretched: bool, centred: bool) -> None:
    """As autograd says of the same rows."""
    deviation = random(2, 3, seed=3).abs()
    norm = Norm(random(33, seed=1) if stretched else None, None, 1e-5, centred)
    v, g = random(4, 2, 3, 33).requires_grad_(), random(4, 2, 3, 33, seed=2)
    exact = steps.FrozenNorm(norm, deviation).linear(v)
    (expected,) = torch.autograd.grad(exact, v, g)
    there = Norm(None if norm.gamma is None else norm.gamma.to(DEVICE), None, 1e-5, centred)
    found = normalised(g.to(DEVICE), there, deviation.to(DEVICE), adjoint=True)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


@in_one_case("shape", [None, (1,), (2, 3, 1)])
@in_one_case("d", [20, 1100])
def test_measured_rows(shape: tuple[int, ...] | None, d: int) -> None:
    """With and without a bias, in one piece and in two, and not of padding."""
    bias = None if shape is None else random(*shape[:-1], d)
    parts = Parts(random(2, 3, d, seed=2), bias, random(2, 3, d, seed=3))
    real = parts.total + 0.01 * random(2, 3, d, seed=4)
    there = Parts(
        parts.own.to(DEVICE),
        None if bias is None else bias.to(DEVICE),
        random(2, 3, d, seed=3).to(DEVICE),
    )
    own, mixed, errors = measured(there, real.to(DEVICE), [3, 2])
    assert errors is not None
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(own.cpu(), parts.own.norm(dim=-1), **close)
    torch.testing.assert_close(mixed.cpu(), there.mixed.cpu().norm(dim=-1), **close)
    expected = relative_rows(parts.total, real, [3, 2])
    assert expected[1, 2] == 0
    assert expected[0].min() > 0.001
    torch.testing.assert_close(errors.cpu(), expected, rtol=1e-4, atol=1e-6)
    assert measured(there, None, [3, 2])[2] is None


def test_a_vector_for_several_targets_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "takes_one_pass", lambda v: True)
    deviation = random(2, 3).abs().to(DEVICE)
    step = steps.FrozenNorm(Norm(None, None, 1e-5, False), deviation)
    v = random(1, 1, 8, seed=1).to(DEVICE)
    torch.testing.assert_close(step.linear(v), v * deviation[..., None])


@in_one_case("family", ["bert", "gpt2", "llama"])
def test_maps_are_those_of_float64(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every norm and every scope passes the kernels."""
    passed = []

    def takes(v: torch.Tensor) -> bool:
        passed.append(v.shape)
        return v.dtype == torch.float32

    for module in (steps, norm_maps):
        monkeypatch.setattr(module, "takes_one_pass", takes)
    model, ids = tiny_model(family), [5, 7, 9, 11]
    exact = normlens.load(copy.deepcopy(model).double(), device=DEVICE).maps(input_ids=ids)
    found = normlens.load(model, device=DEVICE).maps(input_ids=ids)
    assert passed
    assert found.completeness < 1e-4
    for scope in exact.scopes:
        error = largest_error(torch.tensor(found[scope]), torch.tensor(exact[scope]))
        assert error < (5e-3 if DEVICE == "cuda" else 1e-4), scope

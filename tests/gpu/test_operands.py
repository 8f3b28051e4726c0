"""Operands of the kernels, by Triton's interpreter or on a GPU, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from one_case import in_one_case
from torch import Tensor

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from normlens.gpu.operands import ScaledWeights
from normlens.gpu.sizes import PRECISIONS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


@in_one_case("precision", list(PRECISIONS))
@in_one_case("turned", [False, True])
@in_one_case("shape", [(16, 32), (70, 130), (5, 3)])
def test_down_is_divided_rounded_and_padded(
    shape: tuple[int, int], turned: bool, precision: str
) -> None:
    kind = PRECISIONS[precision]
    weight = random(*shape[::-1]).T if turned else random(*shape)
    down = ScaledWeights.of_down(weight, kind)
    (made,), size = down.weights, down.size
    assert float(size) == float(weight.abs().max())
    (m, d), (rows, columns) = shape, made.high.shape
    assert rows % 16 == columns % 16 == 0
    exact = weight.double() / size.double()
    whole = made.high.double() + (made.low.double() if kind.split else 0)
    error = 2.0**-21 if kind.split else torch.finfo(kind.operand).eps
    assert (whole[:m, :d] - exact).abs().max() <= error
    assert not whole[m:].any()
    assert not whole[:, d:].any()
    if DEVICE == "cuda" and not kind.split:  # the interpreter cuts digits off
        assert torch.equal(made.high[:m, :d], (weight / size).to(kind.operand))


@in_one_case("precision", list(PRECISIONS))
@in_one_case("shapes", [[(3, 8, 20)], [(3, 8, 32), (3, 8, 32)], [(24, 40)]])
def test_projections_share_one_size(shapes: list[tuple[int, ...]], precision: str) -> None:
    kind = PRECISIONS[precision]
    given = [random(*shape) * (1 + number) for number, shape in enumerate(shapes)]
    made = ScaledWeights.of(given, kind)
    for weight, operand in zip(given, made.weights, strict=True):
        *_, e, m = weight.shape
        whole = operand.high.double() + (operand.low.double() if kind.split else 0)
        exact = weight.double().view(-1, e, m) / made.size.double()
        assert whole.shape[:2] == exact.shape[:2]
        assert (whole[..., :m] - exact).abs().max() <= (2.0**-21 if kind.split else 2.0**-10)
        assert not whole[..., m:].any()


def test_nothing_is_divided_by_zero() -> None:
    made = ScaledWeights.of_down(torch.zeros(16, 16, device=DEVICE), PRECISIONS["tf32"])
    assert float(made.size) == 1
    assert not made.weights[0].high.any()

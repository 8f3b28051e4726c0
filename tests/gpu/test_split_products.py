"""Float32 products from float16 numbers, by Triton's interpreter or on a GPU, against float64."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from reference import reference

from normlens.gpu import matmul, split_products
from normlens.gpu.split_products import SplitRows, multiply
from normlens.models.tiny import tiny_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else [pytest.mark.slow]
#: The interpreter cuts digits off where a GPU rounds.
ERROR = {22: 1e-6, 11: 1e-3 if DEVICE == "cuda" else 2e-3}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    missed = torch.linalg.vector_norm(found.cpu().double() - exact, dim=-1)
    return missed / torch.linalg.vector_norm(exact, dim=-1)


@pytest.mark.parametrize("digits", [22, 11])
@pytest.mark.parametrize("shape", [(5, 16, 7), (70, 72, 130), (1, 8, 64), (64, 128, 65)])
def test_products_have_their_digits(shape: tuple[int, int, int], digits: int) -> None:
    """In each row by itself, however different the rows' sizes are."""
    rows, inner, columns = shape
    v = random(rows, inner) * 10.0 ** torch.linspace(-12, 12, rows)[:, None]
    weight = random(inner, columns, seed=1) * 10.0 ** torch.linspace(-3, 3, columns)
    made = multiply(v.to(DEVICE), SplitRows.of(weight.T.to(DEVICE)), digits=digits)
    assert relative_errors(made, v.double() @ weight.double()).max() < ERROR[digits]


@pytest.mark.parametrize("shape", [(5, 3, 16, 7), (70, 2, 72, 130), (9, 4, 40, 64)])
def test_products_of_each_head(shape: tuple[int, ...]) -> None:
    """Also where a head's numbers are no multiple of those that are multiplied at a time."""
    rows, heads, inner, columns = shape
    v = random(rows, heads, inner) * 10.0 ** torch.linspace(-6, 6, heads)[:, None]
    weights = random(heads, inner, columns, seed=1)
    split = SplitRows.of(weights.transpose(1, 2).reshape(-1, inner).to(DEVICE))
    made = multiply(v.flatten(1).to(DEVICE), split, heads=heads).view(rows, heads, columns)
    exact = torch.einsum("jhe,hed->jhd", v.double(), weights.double())
    assert relative_errors(made, exact).max() < ERROR[22]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_miss_nothing(dtype: torch.dtype) -> None:
    """So the product with what they miss is left out, and no digit is another one."""
    v, weight = random(70, 72), random(130, 72, seed=1).to(dtype).float()
    split = SplitRows.of(weight.to(DEVICE))
    assert not split.missed.any()
    made = multiply(v.to(DEVICE), split)
    assert relative_errors(made, v.double() @ weight.double().T).max() < ERROR[22]
    whole = replace(split, missed=torch.ones_like(split.missed))
    assert torch.equal(made, multiply(v.to(DEVICE), whole))


def test_nothing_and_what_is_not_finite() -> None:
    v = torch.zeros(4, 8)
    v[1, 2], v[2, 3], v[3] = float("inf"), float("nan"), 1e-30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, by which the interpreter computes
        made = multiply(v.to(DEVICE), SplitRows.of(torch.ones(5, 8, device=DEVICE))).cpu()
    assert (made[0] == 0).all()
    assert not made[1:3].isfinite().any()
    assert torch.allclose(made[3], torch.tensor(8e-30), rtol=1e-6)


# Where products are split -----------------------------------------------------------------------


@pytest.fixture
def split_everywhere(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Every product with a float32 matrix is split; the shapes of those that were."""
    shapes: list[tuple[int, ...]] = []

    def of(given: torch.Tensor) -> SplitRows:
        shapes.append(tuple(given.shape))
        return real(given)

    def is_split(v: torch.Tensor, weight: torch.Tensor, *_: int) -> bool:
        whole = v.dtype == weight.dtype == torch.float32 and weight.dim() == 2
        return whole and v.numel() > 0 and weight.shape[0] % matmul.ALIGNED == 0

    real = SplitRows.of
    monkeypatch.setattr(split_products.SplitRows, "of", staticmethod(of))
    monkeypatch.setattr(matmul, "is_split", is_split)
    return shapes


def test_a_weight_is_split_once_while_operands_are_kept(split_everywhere: Any) -> None:
    v, weight = random(4, 16).to(DEVICE), random(16, 24).to(DEVICE)
    bias = torch.zeros(24, device=DEVICE)
    with matmul.operands_kept():
        products = [matmul.times(v, weight) for _ in range(2)]
        products.append(matmul.times_plus(v, weight, bias))
        matmul.forget_operands()
        products.append(matmul.times(v, weight))
    assert split_everywhere.count((24, 16)) == 2
    assert all(torch.equal(product, products[0]) for product in products)
    matmul.times(v, weight)
    matmul.times(v, weight)
    assert split_everywhere.count((24, 16)) == 4  # nothing is kept outside


@pytest.mark.skipif(DEVICE == "cuda", reason="the layer is a CPU's")
@pytest.mark.parametrize("order", ["post", "pre", "both"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_with_split_products_gives_the_reference(
    order: str, gated: bool, problem: Any, split_everywhere: Any
) -> None:
    given = problem(order, n=3, d=16, m=24, heads=4, gated=gated, dtype=torch.float32)
    found = given.solve()
    expected = reference(given.layer, given.x[0], given.alpha[0])
    assert split_everywhere
    for scope, norms in expected.maps.items():
        error = (found.norms[scope][0].double() - norms).abs().max()
        assert error < 1e-5 * norms.max(), scope


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_models_own_products_may_be_split(
    family: str, monkeypatch: pytest.MonkeyPatch, split_everywhere: Any
) -> None:
    monkeypatch.setattr(matmul, "MANY", 1)
    model = tiny_model(family).to(DEVICE)
    ids = torch.tensor([[3, 1, 4, 1, 5]], device=DEVICE)
    with torch.no_grad():
        plain = model(input_ids=ids).last_hidden_state
        with matmul.split_linears():
            found = model(input_ids=ids).last_hidden_state
    assert split_everywhere
    assert relative_errors(found, plain.cpu().double()).max() < 1e-5
    assert not torch.equal(found, plain)

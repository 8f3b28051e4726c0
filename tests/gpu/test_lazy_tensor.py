"""Tensors whose values are formed when they are needed."""

from __future__ import annotations

import torch
from one_case import in_one_case

from normlens.gpu.matmul import LazyTensor, formed, lazy_tensor


class Recipe:
    """Forms a tensor and counts how often."""

    def __init__(self, *shape: int):
        self.values = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        self.count = 0

    def __call__(self) -> torch.Tensor:
        self.count += 1
        return self.values

    def lazy_tensor(self) -> LazyTensor:
        return lazy_tensor(self.values.shape, self.values.dtype, self)


VIEWS = {
    "transposed": lambda t: t.T,
    "columns": lambda t: t[..., 2:4],
    "interleaved": lambda t: t.unflatten(-1, (3, 2))[..., -1, :].flatten(-2),
    "detached": lambda t: t.detach(),
    "scaled": lambda t: t * 3.0 + torch.ones(6),
    "from the left": lambda t: 1.0 + 2.0 * t,
}


@in_one_case("name", VIEWS)
def test_views_and_sums_stay_late(name):
    recipe = Recipe(4, 6)
    view = VIEWS[name](recipe.lazy_tensor())
    expected = VIEWS[name](recipe.values)
    assert isinstance(view, LazyTensor)
    assert (view.shape, view.dtype, view.numel()) == (
        expected.shape,
        expected.dtype,
        expected.numel(),
    )
    assert recipe.count == 0
    assert torch.equal(formed(view), expected)
    assert recipe.count == 1


def test_what_needs_values_forms_them():
    recipe = Recipe(4, 6)
    tensor = recipe.lazy_tensor()
    x = torch.ones(2, 4)
    assert torch.equal(x @ tensor, x @ recipe.values)
    assert torch.equal(tensor[:, torch.tensor([1, 3])], recipe.values[:, [1, 3]])
    assert torch.equal(tensor.double(), recipe.values.double())
    assert recipe.count == 3  # nothing is kept
    assert not isinstance(tensor.double(), LazyTensor)


def test_a_plain_tensor_is_itself():
    tensor = torch.ones(2)
    assert formed(tensor) is tensor

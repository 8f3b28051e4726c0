"""Whole vectors: the adjoint and autograd through a frozen copy agree with them everywhere."""

from __future__ import annotations

import pytest
import torch
from frozen_copies import frozen_outputs, times_input
from heads import tried_families
from whole_examples import everything, frozen_network

from normlens.explain.backward import carry
from normlens.layers import Reach
from normlens.models import adapt

IDS = [3, 9, 27, 14, 5, 33, 8]
# Not shorter: padding that sees no token through its window makes some models compute NaN there,
# and such sequences are run alone (`padding_spoils`).
BATCH = [IDS, [40, 41, 3, 6, 17, 20], [7, 12, 60, 22, 51]]

every_family = pytest.mark.parametrize("family", tried_families())


def direction(shape: torch.Size, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-300)
    assert float(error) <= tolerance


@every_family
def test_forward_and_backward_agree_with_autograd_behind_every_step(family, tiny):
    """Autograd goes through a frozen copy of the model, with every rule."""
    for rule in ("ig", "ig-bias", "gradient"):
        with frozen_network(tiny(family), [IDS], rule) as network:
            found = everything(network)
            for layer in range(len(network)):
                w = direction(network.x(0)[0].shape, layer)
                last = max(step for place, step in found.vectors if place == layer)
                forward = torch.einsum("id,kid->k", w, found.vectors[layer, last][:, 0])
                back = carry(network, w[None, None], layer)
                assert_close(forward, back[0].nodes[0][0, 0])
                bias = sum(float(part.sum()) for each in back for part in each.bias_part.values())
                owned = float((w * found.biases[layer, last][0]).sum())
                assert owned == pytest.approx(bias, abs=1e-9)
            real = [ran.real for ran in network.visited]
        tokens, outputs = frozen_outputs(tiny(family), IDS, rule, real)
        assert {layer for layer, _ in found.vectors} == set(range(len(outputs)))
        for (layer, step), vectors in found.vectors.items():
            w = direction(outputs[layer][step].shape, step)
            score = (w * outputs[layer][step]).sum()
            expected = torch.from_numpy(times_input(score, tokens))
            assert_close(torch.einsum("id,kid->k", w, vectors[:, 0]), expected)


@every_family
def test_batches_chunks_and_causality(family, tiny):
    """Parts and bias are the model's own vectors, and those of each sequence alone."""
    with frozen_network(tiny(family), BATCH) as network:
        together = everything(network)
        (lengths,) = network.lengths
        assert {layer for layer, _ in together.real} == set(range(len(network)))
    # RMSNorm and some softmaxes compute in float32 whatever the model is in.
    tolerance = 1e-9 if family in ("bert", "gpt2", "opt") else 1e-5
    for place, real in together.real.items():
        total = together.vectors[place].sum(0) + together.biases[place]
        for b, n in enumerate(lengths):
            assert_close(total[b, :n], real[b, :n].double(), tolerance)

    with frozen_network(tiny(family), BATCH, limit=1) as network:
        cut = everything(network, limit=1)
        assert not any(ran.alphas or ran.real for ran in network.visited)
    for place, vectors in together.vectors.items():
        torch.testing.assert_close(cut.vectors[place], vectors, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            cut.biases[place], together.biases[place], rtol=1e-10, atol=1e-12
        )

    for b, ids in enumerate(BATCH):
        with frozen_network(tiny(family), [ids]) as network:
            alone = everything(network, limit=1)
            causal = network.lens.causal
        n = len(ids)
        assert alone.widest == n - causal
        if not adapt(tiny(family)).padding_leaks:  # else its texts are never padded
            for place, vectors in alone.vectors.items():
                assert_close(together.vectors[place][:n, b, :n], vectors[:, 0], 1e-6)
                assert_close(together.biases[place][b, :n], alone.biases[place][0], 1e-6)
                assert not together.vectors[place][n:, b, :n].any()
        for vectors in alone.vectors.values():
            sizes = vectors[:, 0].norm(dim=-1)
            earlier, later = sizes.triu(1), sizes.tril(-1)  # sources before and behind targets
            # A norm before the first attention has mixed nothing yet.
            assert bool(later.any()) == (bool(earlier.any()) and not causal)
        assert bool(earlier.any())


def test_reaches_behind_each_other_add_up():
    assert Reach(2, 0).then(Reach(3, 0)) == Reach(5, 0)
    assert Reach(None, 1).then(Reach(3, 1)) == Reach(None, 2)
    n, a, b = 12, Reach(2, 1), Reach(3, 0)
    product = (a.mask(n).double() @ b.mask(n).double()) > 0
    assert torch.equal(product, a.then(b).mask(n))

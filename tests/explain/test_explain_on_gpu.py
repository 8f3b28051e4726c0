"""Explanations on a CUDA device; run alone with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from heads import every_head, headed
from pair_models import FAMILIES, TARGET, generating, source_of

import normlens
from normlens.heads import ANY
from normlens.matmul import times, weighted
from normlens.models.heads import read_head

pytestmark = pytest.mark.gpu

IDS = [5, 17, 31, 8, 44, 23, 12]


def explained(model, **asked):
    lens = normlens.load(model, tokenizer=False)
    head = read_head(lens.adapter)
    if head.reads == ANY and head.task != "causal language model":
        asked.setdefault("position", 3)
    return lens.explain(input_ids=IDS, target=2, contrast=1, heads=True, **asked)


@pytest.mark.parametrize(("family", "task"), every_head())
def test_float32_on_cuda_is_close_to_float64(family, task):
    model = headed(family, task)
    exact = explained(model)
    found = explained(copy.deepcopy(model).float().cuda())
    scale = np.abs(exact.nodes).max() + abs(exact.value)
    for name in ("contributions", "components", "heads", "flow", "head_flow"):
        error = np.abs(getattr(found, name) - getattr(exact, name)).max()
        assert error < 1e-4 * scale, name
    assert found.completeness < 1e-5


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "gpt_neox", "qwen2"])
def test_bfloat16_on_cuda_is_close_to_the_cpu(family):
    """Weights are exact in bfloat16, so split products lose little beside float32 ones."""
    model = headed(family, "CausalLM", torch.bfloat16)
    on_cpu = explained(model)
    found = explained(copy.deepcopy(model).cuda())
    scale = np.abs(on_cpu.nodes).max() + abs(on_cpu.value)
    # The forward passes themselves differ in their last bfloat16 digits.
    assert np.abs(found.contributions - on_cpu.contributions).max() < 0.05 * scale
    assert found.completeness < 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_decoders_on_cuda_are_close_to_float64(family):
    model = generating(family)
    asked = dict(source_of(family), decoder_input_ids=TARGET, token=3, contrast=1, heads=True)
    exact = normlens.load(model, tokenizer=False).explain(**asked)
    on_cuda = copy.deepcopy(model).float().cuda()
    found = normlens.load(on_cuda, tokenizer=False).explain(**asked)
    scale = np.abs(exact.nodes).max() + abs(exact.value)
    for name in ("nodes", "components", "heads", "cross_heads", "flow", "head_flow"):
        error = np.nanmax(np.abs(getattr(found, name) - getattr(exact, name)))
        assert error < 1e-4 * scale, name
    assert found.completeness < 1e-5


def test_split_products():
    generator = torch.Generator("cuda").manual_seed(0)
    v = torch.randn(3, 5, 512, device="cuda", generator=generator)
    w = torch.randn(512, 96, device="cuda", generator=generator).bfloat16()
    exact = v.double() @ w.double()
    for weight in (w, w.T.contiguous().T):
        error = (times(v, weight).double() - exact).abs().max() / exact.abs().max()
        assert error < 2e-5
    alpha = torch.rand(2, 4, 33, 33, device="cuda", generator=generator).bfloat16()
    x = torch.randn(3, 2, 4, 33, 16, device="cuda", generator=generator)
    exact = alpha.double() @ x.double()
    for some, right in ((x, exact), (x[0], exact[0])):
        error = (weighted(alpha, some).double() - right).abs().max() / right.abs().max()
        assert error < 2e-5
    turned = weighted(alpha.transpose(-1, -2), x[0]).double()
    right = alpha.double().transpose(-1, -2) @ x[0].double()
    assert (turned - right).abs().max() / right.abs().max() < 2e-5


def test_batches_on_cuda_equal_one_by_one():
    model = headed("llama", "CausalLM", torch.float32).cuda()
    lens = normlens.load(model, tokenizer=False)
    together = lens.explain(input_ids=[IDS, IDS[:3], IDS[2:]], target=2)
    for ids, answer in zip([IDS, IDS[:3], IDS[2:]], together, strict=True):
        alone = lens.explain(input_ids=ids, target=2)
        np.testing.assert_allclose(answer.contributions, alone.contributions, atol=1e-4)

"""The estimate for a GPU describes what the kernels do there."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from fused_examples import force_storing

import normlens
from normlens.frozen import stage as engine
from normlens.models.tiny import tiny_model
from normlens.plan.estimate import Analysis, PlannedLayer, SourceGroup, estimate, sizes_of
from normlens.plan.method import KernelPlan

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from normlens.gpu import choice, matrices
from normlens.gpu.stage import Stage
from normlens.plan import costs as kernels
from normlens.plan.costs import CHUNK_BYTES

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="the GPU runs the kernels itself here"
    ),
    pytest.mark.filterwarnings("ignore"),  # NumPy's, about what the interpreter does
]


class Caught(Exception):
    pass


@pytest.fixture
def first_stage(monkeypatch):
    """The stage of the first layer of a run, and the plan that was made for it."""

    def make(lens: normlens.Lens, ids: list[list[int]], **options: Any) -> tuple[Stage, KernelPlan]:
        stages: list[Stage] = []
        plans: list[KernelPlan] = []
        choose, cheapest = choice.choose_kernel_plan, choice.cheapest_method

        def planned(*args: Any, **sizes: Any) -> KernelPlan:
            plans.append(choose(*args, **sizes))
            raise Caught

        def caught(stage: Stage) -> Any:
            stages.append(stage)
            return cheapest(stage)

        with monkeypatch.context() as patched:
            patched.setattr(engine, "has_kernels", lambda weight: weight.dtype == torch.float32)
            patched.setattr(choice, "choose_kernel_plan", planned)
            patched.setattr(choice, "cheapest_method", caught)
            with pytest.raises(Caught):
                lens.maps(input_ids=ids, batch_size=len(ids), scopes=lens.scopes[-1:], **options)
        return stages[0], plans[0]

    return make


def on_gpu(lens: normlens.Lens, tokens: int, batch: int, precision: str) -> Analysis:
    layers, scopes = tuple(range(lens.n_layers)), tuple(lens.scopes[-1:])
    return Analysis(
        tokens,
        layers,
        scopes,
        batch=batch,
        device="cuda",
        precision=precision,
        memory_limit=1 << 28,
    )


def first_group(lens: normlens.Lens, analysis: Analysis) -> SourceGroup:
    sizes = sizes_of(lens)
    return PlannedLayer(sizes.layers[0], sizes, analysis).groups[0]


@pytest.mark.parametrize("launches", [0.0, kernels.LAUNCHES], ids=["free", "as on a GPU"])
@pytest.mark.parametrize(("tokens", "batch"), [(2, 1), (20, 1), (20, 3), (40, 2)])
@pytest.mark.parametrize("family", ["bert", "llama", "opt", "gpt2"])
def test_the_method_is_that_of_the_run(family, tokens, batch, launches, first_stage, monkeypatch):
    for name in ("LAUNCHES", "STORED_BYTE"):
        monkeypatch.setattr(kernels, name, launches and getattr(kernels, name))
    lens = normlens.load(tiny_model(family, dtype=torch.float32))
    stage, plan = first_stage(lens, [[5] * tokens] * batch, precision="tf32")
    analysis = on_gpu(lens, tokens, batch, "tf32")
    found = estimate(sizes_of(lens), analysis)
    assert found.plan == plan
    assert found.tiles == 0
    # The costs are the same numbers, not only the choice that follows from them.
    costs = first_group(lens, analysis).kernel_costs
    run = kernels.KernelCosts(stage.shape, stage.precision)
    assert (costs.by_source, costs.matrices) == (run.by_source, run.matrices)


def test_the_methods_differ(monkeypatch):
    """Both methods are met above."""
    for name in ("LAUNCHES", "STORED_BYTE"):
        monkeypatch.setattr(kernels, name, 0.0)
    found = set()
    for family, tokens in (("bert", 2), ("bert", 40), ("opt", 20)):
        lens = normlens.load(tiny_model(family, dtype=torch.float32))
        found.add(estimate(sizes_of(lens), on_gpu(lens, tokens, 1, "tf32")).plan)
    assert {plan.method for plan in found} == {"by source", "matrices"}


@pytest.fixture(params=["bert", "llama"])
def lens(request) -> normlens.Lens:
    return normlens.load(tiny_model(request.param, dtype=torch.float32))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [False, True], ids=["anew", "stored"])
def test_memory_by_source_is_that_of_the_run(stored, precision, lens, first_stage, monkeypatch):
    force_storing(stored, monkeypatch)
    stage, _ = first_stage(lens, [[5] * 30] * 2, precision=precision)
    memory = first_group(lens, on_gpu(lens, 30, 2, precision)).kernel_memory
    method = choice.by_source(stage)
    assert memory.slots == stage.slots.count
    assert method.stored == stored
    sums = stage.prepare_sums(method.tiling.dims)
    rows = stage.rows.take(0, stage.tokens)
    held = [sums, stage.down, *stage.slopes, *stage.rows.weights, *rows]
    if stored:
        held.append(method.room(method.pairs_at_once(CHUNK_BYTES, len(method.pairs))))
    assert memory.by_source == sum(operand.nbytes for operand in held)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_memory_of_matrices_is_that_of_the_run(precision, lens, first_stage, monkeypatch):
    stage, _ = first_stage(lens, [[5] * 30] * 2, precision=precision)
    memory = first_group(lens, on_gpu(lens, 30, 2, precision)).kernel_memory
    method = choice.Matrices(stage)
    # What is allocated counts, not what the kernels write there.
    monkeypatch.setattr(matrices, "launch", lambda *_, **__: None)
    at = matrices.Launch(first_tile=0, tiles=2, source_first=0, sources=30)  # all of it at once
    products, parts = method._matrices(0, at.tiles, 1 << 28), method._parts(at)
    bypassed = [made for made in method._bypassed(at)[:2] if made is not None]
    sums = stage.prepare_sums(method.tiling.dims, targets_first=True)
    held = [sums, stage.down, method._down, *stage.slopes, *stage.value_rows.weights, products]
    fixed = sum(operand.nbytes for operand in held)
    # The copy of W_down that split operands are multiplied by is W_down itself where there is one.
    fixed -= 0 if stage.precision.split else method._down.nbytes
    pairs = parts.nbytes + sum({made.data_ptr(): made.nbytes for made in bypassed}.values())
    scaled = method._scaled_projections(slice(0, at.tiles * method.tiling.tile)).nbytes
    assert fixed + max(pairs, scaled) <= memory.matrices <= 1.8 * (fixed + max(pairs, scaled))

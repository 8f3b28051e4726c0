"""The estimate for a GPU describes what the kernels do there."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from fused_examples import force_storing

import normlens
from normlens.frozen import norm_maps as engine
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.plan.estimate import Estimate, SourceGroup

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from normlens.gpu import feed_forward
from normlens.gpu.stage import Stage
from normlens.plan import kernels
from normlens.plan.kernels import CHUNK_BYTES

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
    """The stage of the first layer of a run."""

    def make(lens: normlens.Lens, ids: list[list[int]], **options: Any) -> Stage:
        stages: list[Stage] = []

        def caught(stage: Stage) -> Any:
            stages.append(stage)
            raise Caught

        with monkeypatch.context() as patched:
            patched.setattr(engine, "has_kernels", lambda weight: weight.dtype == torch.float32)
            patched.setattr(feed_forward, "cheapest_method", caught)
            with pytest.raises(Caught):
                lens.maps(input_ids=ids, batch_size=len(ids), scopes=lens.scopes[-1:], **options)
        return stages[0]

    return make


def first_group(lens: normlens.Lens, tokens: int, batch: int, precision: str) -> SourceGroup:
    """The first group of sources of a call on a GPU."""
    asked = AnalysisOptions(scopes=lens.scopes[-1:], precision=precision, memory_limit=1 << 28)
    return Estimate(lens, tokens, asked, batch=batch, device="cuda").stages[0]


@pytest.mark.parametrize("launches", [0.0, kernels.LAUNCHES], ids=["free", "as on a GPU"])
@pytest.mark.parametrize(("tokens", "batch"), [(2, 1), (20, 1), (20, 3), (40, 2)])
@pytest.mark.parametrize("family", ["bert", "llama", "opt", "gpt2"])
def test_the_method_is_that_of_the_run(family, tokens, batch, launches, first_stage, monkeypatch):
    for name in ("LAUNCHES", "STORED_BYTE"):
        monkeypatch.setattr(kernels, name, launches and getattr(kernels, name))
    lens = normlens.load(tiny_model(family, dtype=torch.float32))
    stage = first_stage(lens, [[5] * tokens] * batch, precision="tf32")
    group = first_group(lens, tokens, batch, "tf32")
    run = kernels.KernelStage(stage.shape, stage.precision)
    assert group.plan.method == run.method
    assert group.tiles == 0
    # The costs are the same numbers, not only the choice that follows from them.
    costs = group.kernels
    assert (costs.by_source, costs.matrices) == (run.by_source, run.matrices)


@pytest.fixture(params=["bert", "llama"])
def lens(request) -> normlens.Lens:
    return normlens.load(tiny_model(request.param, dtype=torch.float32))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [False, True], ids=["anew", "stored"])
def test_memory_by_source_is_that_of_the_run(stored, precision, lens, first_stage, monkeypatch):
    force_storing(stored, monkeypatch)
    stage = first_stage(lens, [[5] * 30] * 2, precision=precision)
    memory = first_group(lens, 30, 2, precision).kernels
    method = feed_forward.by_source(stage)
    assert memory.slots == stage.slots["SLOTS"]
    assert method.stored == stored
    sums = stage.prepare_sums(method.tiling.dims)
    rows = stage.rows.take(0, stage.tokens)
    held = [sums, stage.down, *stage.slopes, *stage.rows.weights, *rows]
    if stored:
        held.append(method.room(method.pairs_at_once(CHUNK_BYTES, len(method.pairs))))
    assert memory.source_memory == sum(operand.nbytes for operand in held)

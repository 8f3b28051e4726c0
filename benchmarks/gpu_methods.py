"""The methods of the feed-forward stage on a GPU, measured beside the cost model's expectation.

Times are GPU times of all kernels of the stage together. `gpu.py` prints these tables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from gpu_stage import Shape, job_of
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from normlens.frozen.stage import tail_of
from normlens.frozen.tiles import Job
from normlens.gpu.feed_forward import ByPair, InOneKernel, by_source
from normlens.gpu.matrices import Matrices
from normlens.gpu.sizes import PRECISIONS
from normlens.gpu.stage import Stage
from normlens.plan.kernels import KernelStage, hidden_row_costs

LONG = [Shape("BERT-base", n) for n in (512, 1024, 2048, 4096)]
SMOL = Shape("SmolLM2", 256, d=576, m=1536, heads=9, gated=True, causal=True, batch=4)
HIDDEN = [
    Shape("BERT-base", 13, batch=512),
    Shape("BERT-base", 32, batch=256),
    Shape("BERT-base", 100, batch=64),
    Shape("BERT-base", 128, batch=64),
    Shape("BERT-base", 16),
    *(Shape("GPT-2", n, causal=True, batch=b) for n, b in ((128, 16), (256, 4), (512, 2))),
    Shape("GPT-2", 1024, causal=True),
    Shape("MiniLM", 13, d=384, m=1536, batch=512),
    Shape("MiniLM", 128, d=384, m=1536, batch=64),
    SMOL,
    replace(SMOL, n=1024, batch=1),
]
METHODS = {
    "by source": by_source,
    "in one kernel": InOneKernel,
    "by pair": ByPair,
    "matrices": Matrices,
}


def stage_of(job: Job, precision: str) -> Stage:
    tail = tail_of(job)
    assert tail is not None
    b, n = job.factors.scale.shape
    return Stage(job, tail, [n] * b, PRECISIONS[precision])


def run(job: Job, precision: str, method: str) -> dict[str, torch.Tensor]:
    stage = stage_of(job, precision)
    METHODS[method](stage).run()
    return stage.norms()[0]


def busy(call: Callable[[], object], times: int = 3) -> float:
    """Milliseconds that the GPU works for a call, the median of some."""
    call()
    samples = []
    for _ in range(times):
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            call()
            torch.cuda.synchronize()
        kernels = [e.time_range.elapsed_us() for e in profiled.events() if _on_gpu(e)]
        samples.append(sum(kernels) / 1e3)
    return statistics.median(samples)


def _on_gpu(event: object) -> bool:
    return event.device_type == DeviceType.CUDA  # type: ignore[attr-defined]


def crossing(places: Sequence[float], ratios: Sequence[float]) -> str:
    """Where a ratio passes 1, on a line between logarithms; else on which side of all places."""
    for (a, b), (x, y) in zip(pairwise(places), pairwise(ratios), strict=True):
        if (x - 1) * (y - 1) <= 0 and x != y:
            part = math.log(x) / (math.log(x) - math.log(y))
            place = math.exp(math.log(a) + part * (math.log(b) - math.log(a)))
            return f"{place:.2g}" if place < 10 else f"{round(place, -2):.0f}"
    return f"beyond {places[-1]:g}" if abs(ratios[-1] - 1) < abs(ratios[0] - 1) else "before"


def long_inputs(quick: bool = False) -> list[str]:
    """One matrix per target against one kernel per source, by the length of the input."""
    shapes = LONG[:2] if quick else LONG
    precisions = ["bfloat16"] if quick else ["float32", "bfloat16"]
    lengths = [shape.n for shape in shapes]
    lines = [
        f"Long inputs, {shapes[0].name}: the time source by source ÷ the time with one matrix M_i "
        "per target, in brackets what the cost model expects; and the length from which M_i takes "
        "less time, measured, expected, and by operations alone:",
        "",
        "| precision | " + " | ".join(f"n = {n}" for n in lengths) + " | from | expected | alone |",
        "|---|" + "---|" * len(lengths) + "---|---|---|",
    ]
    for precision in precisions:
        measured, expected = [], []
        for shape in shapes:
            job = job_of(shape)
            times_by_method = [
                busy(partial(run, job, precision, method)) for method in ("by source", "matrices")
            ]
            stage = stage_of(job, precision)
            costs = KernelStage(stage.shape, stage.precision)
            measured.append(times_by_method[0] / times_by_method[1])
            expected.append(costs.by_source / costs.matrices)
        cells = [f"{m:.2f} ({e:.2f})" for m, e in zip(measured, expected, strict=True)]
        d, m = shapes[0].d, shapes[0].m
        line = [precision, *cells, crossing(lengths, measured), crossing(lengths, expected)]
        lines.append("| " + " | ".join([*line, str(d * m // (m - d))]) + " |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def hidden_rows(quick: bool = False) -> list[str]:
    """Hidden rows stored against mixed anew, by shape and length."""
    shapes, precisions = (HIDDEN[:1] if quick else HIDDEN), ["float32", "tf32"]
    lines = [
        "Hidden rows, source by source: the time of mixing them anew for each block of dimensions "
        "÷ the time of storing them (GPU time of one layer's stage), in brackets what the cost "
        "model expects:",
        "",
        "| shape | texts × n | " + " | ".join(precisions) + " |",
        "|---|---|" + "---|" * len(precisions),
    ]
    for shape in shapes:
        job, cells = job_of(shape), []
        for precision in precisions:
            times_by_method = [
                busy(partial(run, job, precision, method))
                for method in ("in one kernel", "by pair")
            ]
            stage = stage_of(job, precision)
            mixing, storing = hidden_row_costs(stage.texts, stage.shape, stage.precision)
            expected = mixing / storing
            cells.append(f"{times_by_method[0] / times_by_method[1]:.2f} ({expected:.2f})")
        causal = ", causal" if shape.causal else ""
        cells = [shape.name, f"{shape.batch} × {shape.n}{causal}", *cells]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return [*lines, ""]

"""Speed, memory and error of the feed-forward stage on a GPU: the kernel beside other ways.

The stage goes from factored parts to the norms behind the feed-forward block and the steps that
follow it. Layers have random weights; all times are medians between CUDA events in one run:

    published   parts as an n×n×H×d tensor, then n×n×d through both feed-forward products
    unfused     the PyTorch tiles, in float32
    fused       the kernel, in each precision, its operands' preparation included
    ceiling     one cuBLAS product with the same 2·pairs·m·d operations

`gpu.py` prints the table.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.head_products import ProductStore
from normlens.frozen.layer import freeze
from normlens.frozen.norm_maps import layer_maps
from normlens.frozen.stage import stage_by_kernels
from normlens.frozen.tiles import Job, feed_forward_norms
from normlens.gpu.sizes import PRECISIONS
from normlens.layers import Attention, Branch, FeedForward, Layer, Linear, Norm, Reach, Residual
from normlens.options import AnalysisOptions
from normlens.plan import costs as method

#: Tiles that suit a GPU: the standard ones are cut for a CPU's cache.
UNFUSED_TILE = {"SOURCES": 128, "TARGETS": 128}
MIB = 1 << 20
OWN = r"feed_forward_sums|pair_sums|store_hidden"


@dataclass(frozen=True)
class Shape:
    """The sizes of one layer and input."""

    name: str
    n: int
    d: int = 768
    m: int = 3072
    heads: int = 12
    gated: bool = False
    causal: bool = False
    batch: int = 1

    @property
    def activation(self) -> str:
        return "silu" if self.gated else "gelu"

    @property
    def pairs(self) -> int:
        return self.batch * (self.n * (self.n + 1) // 2 if self.causal else self.n**2)

    @property
    def operations(self) -> int:
        return 2 * self.pairs * self.m * self.d


BERT = [Shape("BERT-base", n) for n in (128, 512)]
LLAMA = [Shape("Llama-like", 1024, d=2048, m=8192, heads=32, gated=True, causal=True)]


def random_layer(shape: Shape, seed: int = 0) -> tuple[Layer, torch.Tensor, torch.Tensor]:
    """A post-LN layer, or a pre-LN one with RMSNorm and gates, with an input and attention."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device="cuda")

    def linear(rows: int, columns: int) -> Linear:
        return Linear(draw(rows, columns) / rows**0.5, 0.02 * draw(columns))

    d, m = shape.d, shape.m

    def norm() -> Norm:
        return Norm(1 + 0.1 * draw(d), 0.1 * draw(d), 1e-6, centred=not shape.gated)

    attention = Attention(linear(d, d), linear(d, d), shape.heads, shape.heads)
    gate, up = linear(d, m) if shape.gated else None, linear(d, m)
    ff = FeedForward(up, linear(m, d), shape.activation, gate)
    start, end = Branch(), Residual()
    steps: list[Any] = [start, attention, end, norm(), start, ff, end, norm()]
    if shape.causal:
        steps = [start, norm(), attention, end, start, norm(), ff, end]
    scores = 2 * draw(shape.batch, shape.heads, shape.n, shape.n)
    if shape.causal:
        hidden = torch.ones(shape.n, shape.n, dtype=torch.bool, device="cuda").triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    reach = Reach(None, 0) if shape.causal else Reach()
    return Layer(steps, reach), draw(shape.batch, shape.n, d), scores.softmax(-1)


def job_of(shape: Shape, dtype: torch.dtype = torch.float32) -> Job:
    """The feed-forward stage of a random layer, caught on its way through the walk."""
    caught: list[Job] = []

    class Caught(Exception):
        pass

    def catch(job: Job, *_: object) -> None:
        caught.append(job)
        raise Caught

    made, x, alpha = random_layer(shape)
    with (
        patch("normlens.frozen.norm_maps.stage_by_kernels", catch),
        patch("normlens.frozen.norm_maps.feed_forward_norms", catch),
        suppress(Caught),
    ):
        lengths = [shape.n] * shape.batch
        layer_maps(freeze(made.to(dtype), x.to(dtype), alpha.to(dtype), lengths), made.scopes)
    # As a prepared lens does, which keeps products of weights from text to text.
    store = ProductStore(1 << 31)
    store.refresh({0: made}, {0}, dtype)
    return replace(caught[0], kept=store.of(0))


@contextmanager
def large_tiles() -> Iterator[None]:
    before = {name: getattr(method, name) for name in UNFUSED_TILE}
    for name, value in UNFUSED_TILE.items():
        setattr(method, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(method, name, value)


def milliseconds(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Median time between CUDA events, after a warm-up; at least five times."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - started < seconds and len(times) < 200):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def replayed(run: Callable[[], object]) -> float:
    """Milliseconds of the same launches from a CUDA graph, without the gaps between them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay)


def kernels(run: Callable[[], object], times: int = 5) -> float:
    """Milliseconds that the stage's own kernels take of a run, the median of some."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    found = []
    for _ in range(times):
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            run()
            torch.cuda.synchronize()
        own = [
            event.time_range.elapsed_us() / 1e3
            for event in profiled.events()
            if event.device_type == DeviceType.CUDA and re.search(OWN, event.name)
        ]
        found.append(sum(own))
    return statistics.median(found)


def peak(run: Callable[[], object]) -> float:
    """MiB that a run takes at its peak beyond what was there before it."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def ceiling(shape: Shape, dtype: torch.dtype) -> float:
    """TFLOP/s of one cuBLAS product with the stage's operations, in pieces that fit."""
    rows = min(shape.pairs, 1 << 18)
    a = torch.randn(rows, shape.m, device="cuda").to(dtype)
    b = torch.randn(shape.m, shape.d, device="cuda").to(dtype)
    out = torch.empty(rows, shape.d, device="cuda", dtype=dtype)
    return 2 * rows * shape.m * shape.d / milliseconds(lambda: torch.mm(a, b, out=out)) / 1e9


def worst_error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The largest relative error of any entry; NaN counts as infinite."""
    worst = 0.0
    for scope, norms in exact.items():
        counts = norms > 0
        error = ((found[scope].double() - norms).abs() / norms)[counts].max()
        worst = max(worst, float(error) if torch.isfinite(error) else float("inf"))
    return worst


def published(shape: Shape) -> Callable[[], object]:
    """The stage as the papers' code does it: every part in memory, in float32."""
    job = job_of(shape)
    assert isinstance(job.block, FrozenFeedForward)
    ff, slopes, tail = job.block.ff, job.block.neurons.slopes, list(job.tail.values())
    weights = job.factors.weights[0]  # (j, i, h)
    values, scale = job.factors.values[0], job.factors.scale[0]

    def run() -> None:
        heads = weights[..., None] * values[:, None]  # (j, i, h, d)
        parts = heads.sum(2) * scale[:, None]
        del heads
        hidden = (parts @ ff.up.weight) * slopes[-1][0]
        out = hidden @ ff.down.weight
        del hidden
        out.norm(dim=-1)
        out += parts
        out.norm(dim=-1)
        if len(tail) > 1:
            out -= out.mean(-1, keepdim=True)
            out *= tail[1].norm.gamma  # type: ignore[union-attr]
            out.norm(dim=-1)

    return run


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    shape: Shape
    way: str
    milliseconds: float
    kernels: float
    ceiling: float | None
    memory: float
    error: float | None

    @property
    def rate(self) -> float:
        """TFLOP/s of the kernels alone."""
        return self.shape.operations / self.kernels / 1e9

    def __str__(self) -> str:
        share = "" if self.ceiling is None else f"{self.rate / self.ceiling:.0%}"
        error = "" if self.error is None else f"{self.error:.0e}"
        return (
            f"| {self.shape.name} | {self.shape.n} | {self.way} | {self.kernels:.2f} "
            f"| {self.rate:.0f} | {share} | {self.milliseconds:.2f} | {self.memory:.0f} | {error} |"
        )


HEADER = (
    "| shape | n | way | kernel ms | TFLOP/s | of cuBLAS | stage ms | peak MiB | error |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def measure(shape: Shape) -> Iterator[Row]:
    """Every way of doing one stage."""
    lengths = [shape.n] * shape.batch
    job = job_of(shape)
    exact = None
    if shape.batch == 1:
        with large_tiles():
            exact = feed_forward_norms(job_of(shape, torch.float64), lengths).norms
    ceilings = {dtype: ceiling(shape, dtype) for dtype in (torch.float32, torch.bfloat16)}
    ceilings[torch.float16] = ceiling(shape, torch.float16)

    for precision in (PRECISIONS["float32"], PRECISIONS["tf32"]):

        def fused(name: str = precision.name) -> Any:
            return stage_by_kernels(
                job, lengths, AnalysisOptions(precision=name), sample=False
            ).norms

        error = None if exact is None else worst_error(fused(), exact)
        limit = ceilings[precision.operand] / (3 if precision.split else 1)
        way = f"fused, {precision.name}"
        yield Row(shape, way, replayed(fused), kernels(fused), limit, peak(fused), error)

    def unfused() -> Any:
        with large_tiles():
            return feed_forward_norms(job, lengths).norms

    if shape.batch == 1:
        error = worst_error(unfused(), exact or {})
        limit = ceilings[torch.float32]
        eager = milliseconds(unfused)
        yield Row(shape, "unfused, float32", eager, eager, limit, peak(unfused), error)
    bytes_needed = 4 * shape.n**2 * shape.heads * shape.d
    if shape.batch == 1 and bytes_needed < 0.4 * torch.cuda.mem_get_info()[0]:
        run = published(shape)
        eager = milliseconds(run)
        yield Row(shape, "published, float32", eager, eager, None, peak(run), None)


def stage_table(shapes: list[Shape]) -> list[str]:
    """Every way of doing each stage."""
    import triton

    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}; "
        "one layer's feed-forward stage: the kernels alone, and the stage with its preparation; "
        "the kernels' speed as a share of cuBLAS's in the operands' type (for `float32` of a third "
        "of it); the worst relative error of an entry.",
        "",
        HEADER,
    ]
    for shape in shapes:
        for row in measure(shape):
            lines.append(str(row))
            print(row, flush=True)
        torch.cuda.empty_cache()
    return [*lines, ""]

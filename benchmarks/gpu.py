"""Speed, memory and error of the feed-forward stage on a GPU, and of a whole experiment.

The stage goes from factored parts to the norms behind the feed-forward block and the steps that
follow it. Layers have random weights; all times are medians between CUDA events in one run:

    published   parts as an n×n×H×d tensor, then n×n×d through both feed-forward products
    unfused     the PyTorch tiles, in float32
    fused       the kernel, in each precision, its operands' preparation included
    ceiling     one cuBLAS product with the same 2·pairs·m·d operations

`gpu_ways` adds the ways target by target: silent neurons left out, and one matrix per target.

    python benchmarks/gpu.py            # prints the tables
    python benchmarks/gpu.py --docs     # and writes them into docs/performance.md
    python benchmarks/gpu.py --quick    # one size, a small experiment
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from normlens.components import Attention, Branch, FeedForward, Layer, Linear, Norm, Reach, Residual
from normlens.decomposition import decompose_layer, layer, plan
from normlens.decomposition.engine import DEFAULT_PRECISION, run_feed_forward
from normlens.decomposition.feedforward import FeedForwardJob, feed_forward_norms
from normlens.decomposition.fused.operands import PRECISIONS
from normlens.decomposition.projections import ProjectionCache

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: Tiles that suit a GPU: the standard ones are cut for a CPU's cache.
UNFUSED_TILE = {"SOURCES": 128, "TARGETS": 128}
MIB = 1 << 20
OWN = r"feed_forward_sums|store_hidden"


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
    active: float | None = None  # the share of active neurons, in a ReLU layer

    @property
    def activation(self) -> str:
        return "relu" if self.active is not None else "silu" if self.gated else "gelu"

    @property
    def pairs(self) -> int:
        return self.batch * (self.n * (self.n + 1) // 2 if self.causal else self.n**2)

    @property
    def operations(self) -> int:
        return 2 * self.pairs * self.m * self.d


BERT = [Shape("BERT-base", n) for n in (128, 256, 512)]
LLAMA = [Shape("Llama-like", 1024, d=2048, m=8192, heads=32, gated=True, causal=True)]
BATCH = [Shape("BERT-base, 64 texts", 128, batch=64)]


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
    if shape.active is not None:
        # Behind a norm, what the neurons add up is about normal.
        threshold = statistics.NormalDist().inv_cdf(1 - shape.active)
        up = Linear(up.weight, torch.full_like(draw(m), -threshold))
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


def job_of(shape: Shape, dtype: torch.dtype = torch.float32) -> FeedForwardJob:
    """The feed-forward stage of a random layer, caught on its way through the walk."""
    caught: list[FeedForwardJob] = []

    class Caught(Exception):
        pass

    def catch(job: FeedForwardJob, *_: object) -> None:
        caught.append(job)
        raise Caught

    made, x, alpha = random_layer(shape)
    before = layer.run_feed_forward
    layer.run_feed_forward = catch  # type: ignore[assignment]
    try:
        decompose_layer(
            made.to(dtype), x.to(dtype), alpha.to(dtype), [shape.n] * shape.batch, made.scopes
        )
    except Caught:
        pass
    finally:
        layer.run_feed_forward = before
    # As a lens does, which keeps products of weights from text to text.
    caught[0].remembered = ProjectionCache(1 << 31).of(0, None)
    return caught[0]


@contextmanager
def large_tiles() -> Iterator[None]:
    before = {name: getattr(plan, name) for name in UNFUSED_TILE}
    for name, value in UNFUSED_TILE.items():
        setattr(plan, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(plan, name, value)


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
    ff, tail = job.ff, job.tail
    weights = job.factors.weights[0]  # (j, i, h)
    values, scale = job.factors.values[0], job.factors.scale[0]

    def run() -> None:
        heads = weights[..., None] * values[:, None]  # (j, i, h, d)
        parts = heads.sum(2) * scale[:, None]
        del heads
        hidden = (parts @ ff.up.weight) * job.slopes[-1][0]
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
    from_python: float
    kernels: float
    ceiling: float | None
    memory: float
    error: float | None

    @property
    def rate(self) -> float:
        """TFLOP/s of the kernels alone."""
        return self.shape.operations / self.kernels / 1e9

    def __str__(self) -> str:
        share = stage = ""
        if self.ceiling is not None:
            share = f"{self.rate / self.ceiling:.0%}"
            stage = f"{self.rate / self.ceiling * self.kernels / self.milliseconds:.0%}"
        error = "" if self.error is None else f"{self.error:.0e}"
        limit = "" if self.ceiling is None else f"{self.ceiling:.0f}"
        return (
            f"| {self.shape.name} | {self.shape.n} | {self.way} | {self.kernels:.2f} "
            f"| {self.rate:.0f} | {limit} | {share} | {self.milliseconds:.2f} | {stage} "
            f"| {self.from_python:.2f} | {self.memory:.0f} | {error} |"
        )


HEADER = (
    "| shape | n | way | kernel ms | TFLOP/s | ceiling | share | stage ms | share "
    "| from Python | peak MiB | error |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
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

    for precision in PRECISIONS.values():

        def fused(name: str = precision.name) -> Any:
            return run_feed_forward(job, lengths, name, None)[0].norms

        error = None if exact is None else worst_error(fused(), exact)
        limit = ceilings[precision.operand] / (3 if precision.split else 1)
        way = f"fused, {precision.name}"
        memory, eager = peak(fused), milliseconds(fused)
        yield Row(shape, way, replayed(fused), eager, kernels(fused), limit, memory, error)

    def unfused() -> Any:
        with large_tiles():
            return feed_forward_norms(job, lengths).norms

    if shape.batch == 1:
        error = worst_error(unfused(), exact or {})
        limit = ceilings[torch.float32]
        eager = milliseconds(unfused)
        yield Row(shape, "unfused, float32", eager, eager, eager, limit, peak(unfused), error)
    bytes_needed = 4 * shape.n**2 * shape.heads * shape.d
    if shape.batch == 1 and bytes_needed < 0.4 * torch.cuda.mem_get_info()[0]:
        run = published(shape)
        eager = milliseconds(run)
        yield Row(shape, "published, float32", eager, eager, eager, None, peak(run), None)


def spearman_errors(model: str) -> list[str]:
    """How far each precision moves the correlations of a real model's maps from float64's."""
    import numpy as np

    import normlens
    from normlens.corpus.sample import FOLDER
    from normlens.measures.similarity import correlate

    lines = [line for path in sorted(FOLDER.glob("*.jsonl")) for line in path.open()]
    texts = [" ".join(json.loads(line)["words"]) for line in lines]
    exact = normlens.load(model, device="cuda", dtype="float64").maps(texts)
    expected = [correlate(maps).rho for maps in exact]
    lens = normlens.load(model, device="cuda", dtype="float32")
    lines = [
        f"Correlations of real maps, {lens.n_layers} layers of {Path(model).name}, {len(texts)} "
        "texts, all pairs of scopes, against those of float64 maps:",
        "",
        "| precision | worst entry | worst ρ of one layer and text | worst mean ρ |",
        "|---|---|---|---|",
    ]
    for precision in PRECISIONS:
        found = lens.maps(texts, precision=precision)
        moved = [correlate(maps).rho - rho for maps, rho in zip(found, expected, strict=True)]
        entry = max(
            float((np.abs(maps[scope] - true[scope]) / true[scope])[true[scope] > 0].max())
            for maps, true in zip(found, exact, strict=True)
            for scope in true.scopes
        )
        worst = max(float(np.nanmax(np.abs(difference))) for difference in moved)
        mean = float(np.nanmax(np.abs(np.nanmean(np.stack(moved), axis=0))))
        lines.append(f"| {precision} | {entry:.0e} | {worst:.0e} | {mean:.0e} |")
    return [*lines, ""]


def limits(shape: Shape, rate: float, bandwidth: float) -> str:
    """The two limits of the stage: its operations, and the bytes that must move at least."""
    item = 2
    given = shape.n * shape.heads * shape.m * item * (2 if shape.gated else 1)
    given += shape.n * shape.m * item + shape.m * shape.d * item + 4 * shape.n**2 * shape.heads
    moved = shape.batch * given + 3 * 4 * shape.pairs
    return (
        f"{shape.name}, n = {shape.n}: {shape.operations / 1e12:.2f} TFLOP at {rate:.0f} TFLOP/s "
        f"are {shape.operations / rate / 1e9:.2f} ms; {moved / 1e6:.0f} MB at "
        f"{bandwidth / 1e12:.1f} TB/s are {moved / bandwidth * 1e3:.3f} ms"
    )


def copy_bandwidth() -> float:
    """Bytes per second of a device-to-device copy, read and written."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) * 1e3


def experiment(sequences: int, tokens: int = 128) -> list[str]:
    """The papers' similarity experiment, from token ids to a table."""
    import pyarrow as pa
    from transformers import BertConfig, BertModel

    import normlens
    from normlens.measures.base import Item
    from normlens.measures.similarity import Similarity
    from normlens.text import Encoded

    torch.manual_seed(0)
    model = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False).eval()
    lens = normlens.load(model, device="cuda")
    scopes = [scope for scope in lens.scopes if scope != "ATTNRES-W"]
    ids = torch.randint(1000, 30000, (sequences, tokens)).tolist()
    encoded = [Encoded(row, [str(token) for token in row], [False] * tokens) for row in ids]
    measure = Similarity()

    def run(wanted: list[Any], precision: str) -> tuple[float, float, int]:
        start = time.perf_counter()
        found = lens.analyse(
            wanted, scopes=scopes, arrays=False, correlations=True, precision=precision
        )
        analysed = time.perf_counter()
        rows = [
            measure.rows(Item(str(index), index, maps, sequence))["similarity"]
            for index, (maps, sequence) in enumerate(zip(found, wanted, strict=True))
        ]
        table = pa.concat_tables(rows).combine_chunks()
        return analysed - start, time.perf_counter() - analysed, table.num_rows

    lines = [
        f"{sequences} sequences of {tokens} tokens, 12 layers of BERT-base shape, seven scopes, 21 "
        f"correlations per layer and sequence, from token ids to a table, in seconds "
        f"(`{DEFAULT_PRECISION}` is the default):",
        "",
        "| precision | all | maps and ranks | table | rows |",
        "|---|---|---|---|---|",
    ]
    shares: dict[str, dict[str, float]] = {}
    for precision in PRECISIONS:
        run(encoded[: min(sequences, 64)], precision)  # compiles the kernels, fills the caches
        analysed, tabled, count = run(encoded, precision)
        lines.append(
            f"| {precision} | **{analysed + tabled:.2f}** | {analysed:.2f} | {tabled:.2f} "
            f"| {count} |"
        )
        print(lines[-1], flush=True)
        shares[precision] = profiled(partial(run, encoded[:128], precision))
    lines += [
        "",
        f"| where the GPU's time goes | {' | '.join(shares)} |",
        f"|---|{'---|' * len(shares)}",
    ]
    purposes = sorted(shares[DEFAULT_PRECISION], key=lambda name: -shares[DEFAULT_PRECISION][name])
    for name in purposes:
        lines.append(f"| {name} | {' | '.join(f'{s.get(name, 0):.0%}' for s in shares.values())} |")
    return [*lines, ""]


#: What a kernel's name says about its purpose; the first that fits counts.
PURPOSES = (
    ("the feed-forward kernel", OWN),
    ("its operands, and norms from its sums", r"project_rows|slopes|sources|of_sums|of_totals"),
    ("norms of factored parts", r"norms_of_factors"),
    ("ranking: sort, ties, products of ranks", r"[Ss]ort|cummax|cummin|scan|scatter|double"),
    ("float32 products: forward pass, token-wise products", r"gemm|gemv"),
    ("transfers", r"[Mm]emcpy"),
    ("elementwise", r""),
)


def profiled(run: Callable[[], object]) -> dict[str, float]:
    """Shares of the GPU's busy time by purpose."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        run()
        torch.cuda.synchronize()
    spent: dict[str, float] = {}
    for event in found.events():
        if event.device_type == DeviceType.CUDA:
            purpose = next(name for name, words in PURPOSES if re.search(words, event.name))
            spent[purpose] = spent.get(purpose, 0.0) + event.time_range.elapsed_us()
    total = sum(spent.values())
    return {name: t / total for name, t in spent.items()}


def report(shapes: list[Shape], sequences: int, model: str | None, quick: bool) -> str:
    import gpu_ways
    import triton

    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}; "
        "one layer's feed-forward stage in one run: the kernels alone, the stage with all its "
        "preparation replayed from a graph, and the same launched from Python, in ms; the ceiling "
        "is "
        "cuBLAS in the operands' type, for `float32` a third of it (three products for one) or, "
        "unfused, cuBLAS float32; the error is the worst relative one of any entry.",
        "",
        HEADER,
    ]
    bandwidth = copy_bandwidth()
    notes = []
    for shape in shapes:
        for row in measure(shape):
            lines.append(str(row))
            print(row, flush=True)
        notes.append(limits(shape, ceiling(shape, torch.bfloat16), bandwidth))
        torch.cuda.empty_cache()
    lines += ["", "The two limits in bfloat16:", "", *(f"- {note}" for note in notes), ""]
    real = spearman_errors(model) if model else []
    ways = gpu_ways.tables(quick)
    return "\n".join(lines + real + experiment(sequences) + ways).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="update docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="one size and few sequences")
    parser.add_argument("--model", help="a real model, by name or folder, to compare ρ with")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    torch.set_grad_enabled(False)
    shapes = BERT[:1] if options.quick else [*BERT, *BATCH, *LLAMA]
    text = report(shapes, 128 if options.quick else 992, options.model, options.quick)
    print(text)
    if options.out:
        options.out.write_text(text)
    if options.docs:
        page = DOCS / "performance.md"
        block = f"\\1\n{text}\n\n\\2"
        page.write_text(
            re.sub(r"(<!-- gpu:.*?-->\n).*?(<!-- /gpu -->)", block, page.read_text(), flags=re.S)
        )


if __name__ == "__main__":
    main()

"""Speed and memory on a CPU: NormLens beside the published way, the bare floor and a forward pass.

All of it on BERT-base shapes with random weights, in one run on one machine, because only ratios
of times that were measured together mean anything:

    normlens      all scopes of all layers, from token ids to arrays
    prepared      the same by a lens that was prepared (`Lens.prepare`)
    published     parts as an n×n×H×d tensor, then n×n×d through both feed-forward products
    floor         the one matrix product of 2·n²·m·d operations per layer
    forward       the model's plain forward pass
    normlens-ln   the scopes up to ATTNRESLN-N alone, of layers whose forward pass is done
    published-ln  the same the published way

    python benchmarks/cpu.py                     # prints the table
    python benchmarks/cpu.py --docs              # and writes it and its plot into docs/
    python benchmarks/cpu.py --prepared [--docs] # what preparing gains, on short texts
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

H, D, M = 12, 768, 3072
SLOW_REPEATS = 3  # of the published way, which takes longest and whose ratios are large
DOCS = Path(__file__).resolve().parents[1] / "docs"
BEFORE_FF = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N"]
WAYS = ("normlens", "prepared", "published", "floor", "forward", "normlens-ln", "published-ln")


def bert(layers: int):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, attn_implementation="eager")
    return BertModel(config, add_pooling_layer=False).eval()


def published_layer(layer, x: torch.Tensor, alpha: torch.Tensor, feed_forward: bool) -> list:
    """One post-LN layer the way the papers' code and its successors do it: every part in memory."""
    attention, first, second = layer.attention, *layer_norms(layer)
    n, d = x.shape
    v = attention.value(x).view(n, H, -1)
    f = torch.einsum("jhe,hed->jhd", v, attention.output.weight.view(H, -1, d))
    heads = alpha.permute(1, 2, 0)[..., None] * f[None]  # (i, j, h, d)
    parts = heads.sum(2)  # (i, j, d)
    del heads
    norms = [alpha.mean(0), parts.norm(dim=-1)]
    parts[range(n), range(n)] += x
    norms.append(parts.norm(dim=-1))
    bias = attention.output.bias.expand(n, d)
    parts, bias, y = normalise(parts, bias, first)
    norms.append(parts.norm(dim=-1))
    if feed_forward:
        ff = layer.feed_forward
        z = ff.up(y)
        slope = 0.5 * torch.erfc(-z / 2**0.5)  # (i, m)
        out = ((parts @ ff.up.weight) * slope[:, None]) @ ff.down.weight
        norms.append(out.norm(dim=-1))
        bias = bias + ff.down(ff.up(bias) * slope)
        out = out + parts
        norms.append(out.norm(dim=-1))
        norms.append(normalise(out, bias, second)[0].norm(dim=-1))
    return norms


def layer_norms(layer):
    from normlens.layers import Norm

    return [step for step in layer.steps if isinstance(step, Norm)]


def normalise(parts, bias, norm):
    y = parts.sum(1) + bias
    sigma = (y.var(-1, correction=0) + norm.eps).sqrt()[:, None]
    parts = (parts - parts.mean(-1, keepdim=True)) / sigma[:, None] * norm.gamma
    bias = (bias - bias.mean(-1, keepdim=True)) / sigma * norm.gamma + norm.beta
    return parts, bias, parts.sum(1) + bias


def tasks(n: int, layers: int, names: tuple[str, ...] = WAYS) -> dict[str, Callable[[], object]]:
    """Each way as a function of no arguments, on the same model and tokens."""
    import normlens
    from normlens.frozen.layer import freeze
    from normlens.frozen.norm_maps import last_frozen_step, layer_maps
    from normlens.options import AnalysisOptions
    from normlens.trace.run import trace

    model = bert(layers)
    lens, prepared_lens = normlens.load(model), normlens.load(model)
    ids = torch.randint(1000, 30000, (1, n), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)

    inputs = {"input_ids": ids, "attention_mask": mask}

    def ours() -> None:
        lens.maps(input_ids=ids[0].tolist())

    def prepared() -> Callable[[], object]:
        prepared_lens.prepare()
        return lambda: prepared_lens.maps(input_ids=ids[0].tolist())

    def published() -> None:
        trace(lens.adapter, inputs, range(layers), lambda traced: by_publication(traced, True))

    def by_publication(traced, feed_forward: bool) -> None:
        published_layer(traced.layer, traced.x[0], traced.alphas[0][0], feed_forward)

    def before_ff(analyse: Callable) -> Callable[[], object]:
        done: list = []
        trace(lens.adapter, inputs, range(layers), done.append)
        return lambda: [analyse(traced) for traced in done]

    def by_normlens(traced) -> None:
        until = last_frozen_step(traced.layer, BEFORE_FF, AnalysisOptions())
        frozen = freeze(traced.layer, traced.x, traced.alphas, [n], until=until)
        layer_maps(frozen, BEFORE_FF, real=traced.real)

    def floor() -> Callable[[], object]:
        # In as many pieces as keep the operand in memory; more would only make it slower.
        pieces = max(1, n * n // 8192)
        rows = torch.randn(n * n // pieces, M)
        w, out = torch.randn(M, D), torch.empty(n * n // pieces, D)

        def run() -> None:
            for _ in range(layers * pieces):
                torch.mm(rows, w, out=out)

        return run

    def forward() -> None:
        model(input_ids=ids, attention_mask=mask)

    make = {
        "normlens": lambda: ours,
        "prepared": prepared,
        "published": lambda: published,
        "floor": floor,
        "forward": lambda: forward,
        "normlens-ln": lambda: before_ff(by_normlens),
        "published-ln": lambda: before_ff(lambda traced: by_publication(traced, False)),
    }
    return {name: make[name]() for name in names}


def measure(
    n: int,
    layers: int,
    repeats: int,
    names: tuple[str, ...] = WAYS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Best seconds of each way; the ways take turns so that noise hits them alike."""
    ways = tasks(n, layers, names)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for name in ways:
        ways[name]()
    for turn in range(repeats):
        for name, run in ways.items():
            if name.startswith("published") and turn >= SLOW_REPEATS:
                continue
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: min(times) for name, times in seconds.items()}


def peak_memory(way: str, n: int, layers: int) -> float:
    """MiB that one way takes at its peak beyond the loaded model, in a process of its own."""
    command = [sys.executable, __file__, "--peak-of", way, "--sizes", str(n)]
    output = subprocess.run(
        [*command, "--layers", str(layers)], check=True, capture_output=True, text=True
    )
    return float(output.stdout.split()[-1])


def print_peak(way: str, n: int, layers: int) -> None:
    run = tasks(n, layers, (way,))[way]
    tasks(8, 1, ("normlens",))["normlens"]()  # what libraries load on first use is not the method's
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak that loading reached
    before = _status("VmRSS")
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def report(results: dict) -> str:
    """The table as Markdown."""
    lines = [
        described(results),
        "",
        "| n | whole layer: published ÷ NormLens | up to ATTNRESLN-N: published ÷ NormLens "
        "| NormLens ÷ floor | NormLens ÷ forward pass | peak MiB: NormLens | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for n, row in results["sizes"].items():
        t, peak = row["seconds"], row.get("peak", {})
        lines.append(
            f"| {n} | {t['published'] / t['prepared']:.2f} "
            f"| {t['published-ln'] / t['normlens-ln']:.1f} | {t['prepared'] / t['floor']:.2f} "
            f"| {t['prepared'] / t['forward']:.1f} | {peak.get('normlens', float('nan')):.0f} "
            f"| {peak.get('published', float('nan')):.0f} |"
        )
    return "\n".join(lines)


def described(results: dict) -> str:
    return (
        f"{results['cpu']}, {results['threads']} threads, torch {results['torch']}; "
        f"BERT-base shapes, {results['layers']} layers, float32; ratios of the best of "
        f"{results['repeats']} times, measured in turn in one run."
    )


def report_prepared(results: dict) -> str:
    """What preparing gains, as Markdown."""
    sizes = {n: row["seconds"] for n, row in results["sizes"].items()}
    return "\n".join(
        [
            described(results).replace("times,", "CPU times,"),
            "",
            "| n | " + " | ".join(str(n) for n in sizes) + " |",
            "|---" * (1 + len(sizes)) + "|",
            "| not prepared ÷ prepared | "
            + " | ".join(f"{t['normlens'] / t['prepared']:.2f}" for t in sizes.values())
            + " |",
        ]
    )


def write_block(name: str, text: str) -> None:
    """Put a text between its marks in docs/performance.md."""
    page = DOCS / "performance.md"
    pattern = rf"(<!-- {name}:.*?-->\n).*?(<!-- /{name} -->)"
    page.write_text(re.sub(pattern, f"\\1\n{text}\n\n\\2", page.read_text(), flags=re.S))


def plot(results: dict, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    time_axes, memory_axes = figure.subplots(1, 2)
    sizes = [int(n) for n in results["sizes"]]
    rows = list(results["sizes"].values())
    unit = rows[0]["seconds"]["prepared"]
    styles = {"published": "o--", "prepared": "s-", "floor": "^:", "forward": "d-."}
    for name, style in styles.items():
        time_axes.plot(sizes, [row["seconds"][name] / unit for row in rows], style, label=name)
    for name in ("published", "normlens"):  # the others take next to nothing
        style = styles.get(name, "s-")
        memory_axes.plot(sizes, [row["peak"][name] for row in rows], style, label=name)
    time_axes.set(ylabel=f"time (1 = NormLens at n = {sizes[0]})", title="Growth with length")
    memory_axes.set(ylabel="peak memory beyond the model (MiB)", title="Memory")
    for axes in (time_axes, memory_axes):
        axes.set(xlabel="tokens n", xscale="log", yscale="log")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", help="numbers of tokens")
    parser.add_argument("--prepared", action="store_true", help="only what preparing gains")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--docs", action="store_true", help="update docs/performance.md")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--peak-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    usual = "8,16,32,64,128" if options.prepared else "64,128,256"
    sizes = [int(n) for n in (options.sizes or usual).split(",")]
    if options.peak_of:
        print_peak(options.peak_of, sizes[0], options.layers)
        return
    results: dict = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "layers": options.layers,
        "repeats": options.repeats,
        "sizes": {},
    }
    if options.prepared:
        for n in sizes:
            # Both do the same work but for the products, so CPU time will do, and it is quieter.
            names = ("normlens", "prepared")
            seconds = measure(n, options.layers, options.repeats, names, time.process_time)
            results["sizes"][n] = {"seconds": seconds}
        print(report_prepared(results))
        if options.docs:
            write_block("prepared", report_prepared(results))
        return
    for n in sizes:
        row: dict = {"seconds": measure(n, options.layers, options.repeats)}
        if not options.no_memory and os.path.exists("/proc/self/clear_refs"):
            row["peak"] = {
                way: peak_memory(way, n, options.layers)
                for way in ("normlens", "published", "forward")
            }
        results["sizes"][n] = row
        print(report(results).splitlines()[-1], flush=True)
    print(report(results))
    if options.docs:
        plot(results, DOCS / "images" / "cpu.svg")
        write_block("cpu", f"{report(results)}\n\n![Time and memory](images/cpu.svg)")


if __name__ == "__main__":
    main()

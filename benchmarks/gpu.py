"""Everything measured on a GPU, as tables.

stage        the feed-forward stage: published, unfused and fused; memory, error
calls        the whole call of one text
streams      texts of different lengths, and the first call of a process
explain      one explanation beside a forward pass
spearman     correlations of real maps in each precision (of --model)
experiment   the papers' experiment
corpus       how busy a corpus run keeps the GPU
methods      one matrix per target against one kernel per source
rows         hidden rows stored or mixed anew

python benchmarks/gpu.py                          # prints the tables
python benchmarks/gpu.py --docs                   # and writes them into docs/performance.md
python benchmarks/gpu.py --parts calls,explain    # some of them
python benchmarks/gpu.py --quick                  # one size, a small experiment
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gpu_methods
import torch
from gpu_calls import CALLS, call_table, stream_table
from gpu_corpus import corpus_table
from gpu_experiment import experiment, spearman_errors
from gpu_explain import explain_table
from gpu_stage import BERT, LLAMA, stage_table

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="update docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="one size and few sequences")
    parser.add_argument("--model", help="a real model, by name or folder, to compare ρ with")
    parser.add_argument("--parts", help="which tables, separated by commas; otherwise all")
    parser.add_argument("--out", type=Path, help="also write docs/performance.md's page here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    torch.set_grad_enabled(False)
    shapes = BERT[:1] if options.quick else [*BERT, *LLAMA]
    parts: dict[str, Callable[[], list[str]]] = {
        "stage": partial(stage_table, shapes),
        "calls": partial(call_table, CALLS[:2] if options.quick else CALLS),
        "streams": stream_table,
        "explain": explain_table,
        "experiment": partial(experiment, 128 if options.quick else 992),
        "corpus": partial(corpus_table, 1_000 if options.quick else 10_000),
        "methods": partial(gpu_methods.long_inputs, options.quick),
        "rows": partial(gpu_methods.hidden_rows, options.quick),
    }
    if options.model:
        parts["spearman"] = partial(spearman_errors, options.model)
    page = DOCS / "performance.md"
    text = page.read_text()
    for part in options.parts.split(",") if options.parts else parts:
        table = "\n".join(parts[part]()).rstrip()
        print(table, flush=True)
        marks = rf"(<!-- gpu {part}:.*?-->\n).*?(<!-- /gpu {part} -->)"
        text = re.sub(
            marks, lambda found, t=table: f"{found[1]}\n{t}\n\n{found[2]}", text, flags=re.S
        )
        if options.out:
            options.out.write_text(text)
    if options.docs:
        page.write_text(text)


if __name__ == "__main__":
    main()

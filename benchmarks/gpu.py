"""Everything measured on a GPU, as tables.

gpu_stage        the feed-forward stage: published, unfused and fused; limits, memory, error
gpu_experiment   correlations of real maps in each precision; the papers' experiment
gpu_calls        the whole call of one text
gpu_methods      silent neurons left out, and one matrix per target

python benchmarks/gpu.py            # prints the tables
python benchmarks/gpu.py --docs     # and writes them into docs/performance.md
python benchmarks/gpu.py --quick    # one size, a small experiment
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import gpu_methods
import torch
from gpu_calls import CALLS, call_table
from gpu_experiment import experiment, spearman_errors
from gpu_stage import BATCH, BERT, LLAMA, stage_table

DOCS = Path(__file__).resolve().parents[1] / "docs"


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
    sequences = 128 if options.quick else 992
    lines = stage_table(shapes) + call_table(CALLS[:2] if options.quick else CALLS)
    lines += spearman_errors(options.model) if options.model else []
    lines += experiment(sequences) + gpu_methods.tables(options.quick)
    text = "\n".join(lines).rstrip()
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

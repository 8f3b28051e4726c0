"""A whole experiment on a GPU, where its time goes, and what a precision does to correlations.

`gpu.py` prints these tables.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_stage import OWN

from normlens.frozen.stage import DEFAULT_PRECISION
from normlens.gpu.sizes import PRECISIONS


def spearman_errors(model: str) -> list[str]:
    """How far each precision moves the correlations of a real model's maps from float64's."""
    import numpy as np

    import normlens
    from normlens.corpus.data.readers import FOLDER
    from normlens.corpus.measures.rows import correlate

    lines = [line for path in sorted(FOLDER.glob("*.jsonl")) for line in path.open()]
    texts = [" ".join(json.loads(line)["words"]) for line in lines]
    exact = normlens.load(model, device="cuda", dtype="float64").maps(texts)
    expected = [correlate(maps).rho for maps in exact]
    lens = normlens.load(model, device="cuda", dtype="float32").prepare()
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


def experiment(sequences: int, tokens: int = 128) -> list[str]:
    """The papers' similarity experiment, from token ids to a table."""
    import pyarrow as pa
    from transformers import BertConfig, BertModel

    import normlens
    from normlens.corpus.measures.base import Item
    from normlens.corpus.measures.rows import Similarity
    from normlens.inputs.text import Encoded
    from normlens.options import AnalysisOptions

    torch.manual_seed(0)
    model = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False).eval()
    lens = normlens.load(model, device="cuda").prepare()  # as a corpus run does
    scopes = [scope for scope in lens.scopes if scope != "ATTNRES-W"]
    ids = torch.randint(1000, 30000, (sequences, tokens)).tolist()
    encoded = [Encoded(row, [str(token) for token in row], [False] * tokens) for row in ids]
    measure = Similarity()

    def run(wanted: list[Any], precision: str) -> tuple[float, float, int]:
        start = time.perf_counter()
        options = AnalysisOptions(scopes=scopes, precision=precision)
        found = lens.analyse(wanted, options, arrays=False, correlations=True)
        analysed = time.perf_counter()
        rows = [
            measure.rows(Item(str(index), index, maps, sequence))["similarity"]
            for index, (maps, sequence) in enumerate(zip(found, wanted, strict=True))
        ]
        table = pa.concat_tables(rows).combine_chunks()
        return analysed - start, time.perf_counter() - analysed, table.num_rows

    lines = [
        f"{sequences} sequences of {tokens} tokens, 12 layers of BERT-base shape, seven scopes, 21 "
        f"correlations per layer and sequence, from token ids to a table, in seconds, once the "
        f"process is warm (`{DEFAULT_PRECISION}` is the default):",
        "",
        "| precision | all | maps and ranks | table | rows |",
        "|---|---|---|---|---|",
    ]
    shares: dict[str, dict[str, float]] = {}
    for precision in PRECISIONS:
        # Compiles the kernels, fills the caches, and records batches of this shape.
        run(encoded[: min(sequences, 320)], precision)
        analysed, tabled, count = run(encoded, precision)
        lines.append(
            f"| {precision} | **{analysed + tabled:.2f}** | {analysed:.2f} | {tabled:.2f} "
            f"| {count} |"
        )
        print(lines[-1], flush=True)
        shares[precision] = profiled(partial(run, encoded[:128], precision))
    print(f"where the GPU's time goes: {', '.join(shares)}")
    purposes = sorted(shares[DEFAULT_PRECISION], key=lambda name: -shares[DEFAULT_PRECISION][name])
    for name in purposes:
        print(name, *(f"{s.get(name, 0):.0%}" for s in shares.values()))
    return [*lines, ""]


#: What a kernel's name says about its purpose; the first that fits counts.
PURPOSES = (
    ("the feed-forward kernel", OWN),
    ("its operands, and norms from its sums", r"project_rows|slopes|sources|of_sums|of_totals"),
    ("norms of factored parts", r"norms_of_factors"),
    ("ranking: sort, ties, products of ranks", r"[Ss]ort|cummax|cummin|scan|scatter|double"),
    ("float32 products: forward pass, token-wise products", r"gemm|gemv|multiply_rows|split_rows"),
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

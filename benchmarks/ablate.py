"""What components are worth, in three models, and what it saves to pass layers by.

    python benchmarks/ablate.py wikitext   # SmolLM2 on 240 passages of WikiText-2 (300 are read)
    python benchmarks/ablate.py wikitext --limit 15 --tokens 64 --batch 6  # half an hour of a core
    python benchmarks/ablate.py stsb       # all-MiniLM-L6-v2 on STS-B dev
    python benchmarks/ablate.py sst2       # MiniLM fine-tuned on SST-2 (benchmarks/finetune.py)
    python benchmarks/ablate.py docs       # writes their short tables into docs/evaluate.md
    python benchmarks/ablate.py saving     # MiniLM and SmolLM2 on a CPU
    python benchmarks/ablate.py saving --gpu    # a Llama 1B shape in bfloat16 on a GPU

Data is read from NORMLENS_TEST_DATA (or --data), results go to --out. Every ablation of SmolLM2
takes minutes on a GPU and hours on two cores; what was stopped is gone on with.

The saving: every layer's FF is ablated on one batch, once with the outputs of the intact pass's
layers kept and once with whole passes. The two are taken in turn in one run, and the losses must be
equal to the last bit:

    layers    layers that ran, of all that whole passes run
    time      with kept layers / whole passes
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
from finetune import finetune

import normlens
from normlens.corpus.runs.progress import Progress
from normlens.options import parse_batch_size
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.plan import Plan
from normlens.studies.ablation.report import build_report, describe

REPEATS = 2
#: Rows of a table that a document still shows.
LONGEST = 12
DOCS = Path(__file__).resolve().parents[1] / "docs" / "evaluate.md"
TITLES = {
    "wikitext": "SmolLM2-135M-Instruct on WikiText-2 (next-token loss)",
    "stsb": "all-MiniLM-L6-v2 on STS-B dev (drift, and Spearman's ρ with the gold scores)",
    "sst2": "MiniLM fine-tuned on SST-2, dev (classification loss)",
}


class Printed(Progress):
    """Says what is done, line by line."""

    def say(self, text: str) -> None:
        print(text, flush=True)


def ablate(kind: str, data: Path, out: Path, given: argparse.Namespace) -> Path:
    """Ablate one of the three models, or go on with it; `given` is the size of WikiText's part."""
    options: dict[str, Any] = {}
    execution: Any = {"batch_size": given.batch}
    if kind == "wikitext":
        model, file = "smollm2", f"wikitext:{data / 'wikitext2' / 'wiki.valid.raw'}"
        # A fifth of the passages is set apart for the first pass.
        options |= {"limit": given.limit, "max_length": given.tokens}
    elif kind == "stsb":
        model, file = "minilm", str(data / "stsb" / "sts-dev.csv")
    else:
        checkpoint = out / "sst2-minilm"
        if not checkpoint.is_dir():
            print(f"accuracy: {finetune(data / 'sst2', checkpoint):.4f}", flush=True)
        model, file = str(checkpoint), str(data / "sst2" / "dev.tsv")
        options["reference"] = str(data / "sst2" / "train.tsv")
    told = {"page": False, "progress": Printed(), "execution": execution}
    return normlens.ablate(model, file, out / kind, **told, **options)


def findings(folder: Path) -> str:
    """The page's tables, or the part of them that is short enough to be read in a document."""
    parts = []
    for section in describe(folder).sections:
        for _, result in section.results:
            if result is None:
                continue
            shown = []
            for name, table in result.tables.items():
                frame = table.text()
                if name.startswith("ablations"):
                    frame = frame[frame["layers"].str.contains("–")]
                elif name == "correlations":
                    frame = frame[frame["ablation"] == frame["ablation"].iloc[0]]
                if 0 < len(frame) <= LONGEST:
                    frame = frame.loc[:, (frame.nunique() > 1) | (len(frame) == 1)]
                    lines = [frame.columns, ["---"] * frame.shape[1], *frame.to_numpy()]
                    rows = [f"| {' | '.join(map(str, line))} |" for line in lines]
                    shown += [table.caption, "\n".join(rows)]
            parts += [f"**{section.experiment.title}**", *shown] if shown else []
    return "\n\n".join(parts)


def write_docs(out: Path) -> None:
    page = DOCS.read_text(encoding="utf-8")
    for kind, title in TITLES.items():
        if not (out / kind / "settings.json").is_file():
            print(f"no ablation {kind!r} in {out}; what is said of it stays as it is")
            continue
        print(build_report(out / kind))
        begin, end = (
            f"<!-- {kind}: written by `python benchmarks/ablate.py docs` -->",
            f"<!-- /{kind} -->",
        )
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(page):
            raise SystemExit(f"{DOCS} has no place for {kind!r}")
        text = f"{begin}\n\n### {title}\n\n{findings(out / kind)}\n\n{end}"
        page = pattern.sub(lambda _, text=text: text, page)
    DOCS.write_text(page, encoding="utf-8")


# What it saves to pass layers by ------------------------------------------------------------------


def measure(lens: Any, batch: int, tokens: int) -> str:
    """One row of the table."""
    generator = torch.Generator().manual_seed(0)
    words = lens.adapter.config.vocab_size
    ids = torch.randint(10, words, (batch, tokens), generator=generator).tolist()
    loss = choose_loss(lens)
    encoded = enumerate(lens.encode(input_ids=ids))
    questions = [[loss.question(one, str(i))] for i, one in encoded]
    plan = Plan(lens.layers, lens.name)
    ablations = plan.ablations(components=["FF"], kinds=["zero"], together=False)
    runners = [Runner(lens, loss, ablations, keep=keep) for keep in (True, False)]
    first = [runner.run(questions) for runner in runners]  # warms up, and checks the first batch
    assert first[0] == first[1], "layers that were passed by changed a loss"
    assert runners[0].passes_by, "this model's layers cannot be passed by"
    best = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        for which, runner in enumerate(runners):
            start = time.perf_counter()
            runner.run(questions)
            best[which] = min(best[which], time.perf_counter() - start)
    share = runners[0].layers_run / (runners[0].layers_run + runners[0].layers_passed)
    return (
        f"| {lens.name} | {batch} × {tokens} | {len(ablations)} | {share:.2f} | "
        f"{best[0] / best[1]:.2f} | {best[0]:.2f} s | {best[1]:.2f} s |"
    )


def llama() -> Any:
    """A model of the shape of Llama 3.2 1B, with random weights."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return normlens.load(model.eval(), False)


def saving(gpu: bool) -> None:
    """Print the table of what it saves to pass layers by."""
    print("| model | batch | ablations | layers | time | kept | whole |")
    print("|---|---|---|---|---|---|---|")
    if gpu:
        lens = llama()
        for batch in (1, 8, 32):
            print(measure(lens, batch, 128), flush=True)
        return
    print(measure(normlens.load("minilm", device="cpu"), 8, 64), flush=True)
    print(measure(normlens.load("smollm2", device="cpu"), 1, 64), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*TITLES, "docs", "saving"])
    here = os.environ.get("NORMLENS_TEST_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(here))
    parser.add_argument("--out", type=Path, default=Path("ablations"))
    parser.add_argument("--limit", type=int, default=300, help="passages of WikiText-2")
    parser.add_argument("--tokens", type=int, default=128, help="of each of them, at most")
    parser.add_argument("--batch", type=parse_batch_size, default="auto", help="texts at a time")
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    if given.what == "saving":
        saving(given.gpu)
    elif given.what == "docs":
        write_docs(given.out)
    else:
        print(ablate(given.what, given.data, given.out, given))


if __name__ == "__main__":
    main()

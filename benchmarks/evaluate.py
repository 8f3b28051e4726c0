"""Which attributions are true of a model: three evaluations, and the tables of docs/evaluate.md.

    python benchmarks/evaluate.py sst2      # fine-tunes MiniLM on SST-2 first, then all of dev.tsv
    python benchmarks/evaluate.py cosines   # all-MiniLM-L6-v2 on the pairs of STS-B dev
    python benchmarks/evaluate.py evidence  # SmolLM2 on minimal pairs and IOI, 150 of each file
    python benchmarks/evaluate.py scores    # the same pairs, by what lens.score says of each token
    python benchmarks/evaluate.py docs      # writes the tables of what is there into the docs

The data is read from NORMLENS_TEST_DATA (or --data), results go to --out. Each evaluation takes
minutes on a GPU and hours on two cores; --limit takes the first texts only. A finished evaluation
is left as it is, one that was stopped is finished.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from finetune import finetune

import normlens
from normlens.corpus import Run
from normlens.corpus.runs.progress import Progress
from normlens.studies.faithfulness.ranking import (
    NORMLENS,
    Ranking,
    compare_methods,
    comparisons_of,
    protocols,
    rank,
)
from normlens.studies.faithfulness.report import build_report
from normlens.studies.reports.contents import Evidence

DOCS = Path(__file__).resolve().parents[1] / "docs" / "evaluate.md"
STSB = "stsb/sts-dev.csv"
EACH = 150  # rows of each file of evidence
RUNS = ("sst2", "cosines", "evidence")


class Printed(Progress):
    """Says what is done, line by line."""

    def say(self, text: str) -> None:
        print(text, flush=True)


def model_of(kind: str, out: Path, data: Path) -> str:
    """The model of an evaluation; SST-2's is fine-tuned where there is none yet."""
    if kind in ("cosines", "scores"):
        return "minilm"
    if kind == "evidence":
        return "smollm2"
    checkpoint = out / "sst2-minilm"
    if not checkpoint.is_dir():
        print(f"accuracy after fine-tuning: {finetune(data / 'sst2', checkpoint):.4f}", flush=True)
    return str(checkpoint)


def data_of(kind: str, out: Path, data: Path) -> Path:
    """The data of an evaluation; of evidence, the first rows of each file."""
    if kind != "evidence":
        return data / {"sst2": "sst2/dev.tsv"}.get(kind, STSB)
    folder = out / "evidence-data"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((data / "evidence").glob("*.csv")):
        pd.read_csv(path, dtype=str, keep_default_na=False).head(EACH).to_csv(
            folder / path.name, index=False
        )
    return folder


def by_query(lens: normlens.Lens, question: Any) -> list[float]:
    """What `lens.score` says that each token of a pair's first text has of the cosine."""
    data = os.environ.get("NORMLENS_TEST_DATA", "../shared/data")
    pairs = pd.read_csv(Path(data) / STSB, sep="\t", header=None, usecols=[5, 6], quoting=3)
    first = question.encoded.text
    scores = [lens.score(first, text) for text in pairs[6][pairs[5] == first].unique()]
    # The question holds the second text's vector alone: the pair is the one with its cosine.
    ids = torch.tensor([question.encoded.ids], device=lens.device)
    with torch.no_grad():
        u = lens.model(ids).last_hidden_state[0].mean(0).double().cpu().numpy()
    cosine = u @ question.other / np.linalg.norm(u)
    return list(min(scores, key=lambda score: abs(score.value - cosine)).by_query)


def evaluate(kind: str, data: Path, out: Path, limit: int | None) -> Run:
    """Run one of the evaluations, or finish it."""
    more: dict[str, Any] = {"label_column": "label"} if kind == "sst2" else {}
    if kind == "scores":
        more = {"methods": ["normlens", "evaluate:by_query", "random"]}
    return normlens.evaluate(
        model_of(kind, out, data),
        data_of(kind, out, data),
        out / kind,
        limit=limit,
        page=False,  # the documents' tables come from what is kept
        progress=Printed(),
        **more,
    )


# The documents ------------------------------------------------------------------------------------


def interval(row: pd.Series) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def compared(rankings: list[Ranking]) -> str:
    """Every protocol's value of each method, and whether it differs from NormLens's."""
    heads = ["method", *(f"{one.words.title} ({one.examples:,})" for one in rankings)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    columns = []
    for one in rankings:
        pairs = comparisons_of(NORMLENS, compare_methods(one)).set_index("against")["p (Holm)"]
        columns.append(
            {
                row["method"]: interval(row) + (" ≈" if pairs.get(row["method"], 0) >= 0.05 else "")
                for _, row in one.table.iterrows()
            }
        )
    for method in columns[0]:
        cells = [method, *(column.get(method, "") for column in columns)]
        lines.append("| " + " | ".join(cells).replace("-0.", "−0.") + " |")
    return "\n".join(lines)


def section(kind: str, run: Run) -> str:
    """What the documents say of one evaluation."""
    evidence = Evidence(kind, run)
    seed = run.manifest.options.seed
    status = run.status()
    device = run.manifest.model["device"]
    rankings = [rank(evidence, protocol, seed) for protocol in protocols(evidence)]
    texts = f"{status.done - status.failures:,} texts, computed on {device} in float32."
    return f"{texts}\n\n{compared(rankings)}"


def write_docs(out: Path) -> None:
    page = DOCS.read_text(encoding="utf-8")
    for kind in RUNS:
        if not (out / kind / "manifest.json").is_file():
            print(f"no evaluation {kind!r} in {out}; its tables stay as they are")
            continue
        run = Run.open(out / kind)
        print(build_report(out / kind))
        begin, end = (
            f"<!-- {kind}: written by `python benchmarks/evaluate.py docs` -->",
            f"<!-- /{kind} -->",
        )
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(page):
            raise SystemExit(f"{DOCS} has no place for {kind!r}")
        text = f"{begin}\n\n{section(kind, run)}\n\n{end}"
        page = pattern.sub(lambda _, text=text: text, page)
    DOCS.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*RUNS, "scores", "docs"])
    here = os.environ.get("NORMLENS_TEST_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(here))
    parser.add_argument("--out", type=Path, default=Path("evaluations"))
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    if given.what == "docs":
        write_docs(given.out)
    else:
        print(evaluate(given.what, given.data, given.out, given.limit))


if __name__ == "__main__":
    main()

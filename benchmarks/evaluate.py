"""Which attributions are true of a model: three evaluations, and the tables of docs/evaluate.md.

    python benchmarks/evaluate.py sst2      # fine-tunes MiniLM on SST-2 first, then all of dev.tsv
    python benchmarks/evaluate.py cosines   # all-MiniLM-L6-v2 on the pairs of STS-B dev
    python benchmarks/evaluate.py evidence  # SmolLM2 on minimal pairs and IOI, 150 of each file
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

import pandas as pd
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
EACH = 150  # rows of each file of evidence
RUNS = ("sst2", "cosines", "evidence")


class Printed(Progress):
    """Says what is done, line by line."""

    def say(self, text: str) -> None:
        print(text, flush=True)


def model_of(kind: str, out: Path, data: Path) -> str:
    """The model of an evaluation; SST-2's is fine-tuned where there is none yet."""
    if kind == "cosines":
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
        return data / {"sst2": "sst2/dev.tsv", "cosines": "stsb/sts-dev.csv"}[kind]
    folder = out / "evidence-data"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((data / "evidence").glob("*.csv")):
        pd.read_csv(path, dtype=str, keep_default_na=False).head(EACH).to_csv(
            folder / path.name, index=False
        )
    return folder


def evaluate(kind: str, data: Path, out: Path, limit: int | None) -> Run:
    """Run one of the evaluations, or finish it."""
    label = {"label_column": "label"} if kind == "sst2" else {}
    return normlens.evaluate(
        model_of(kind, out, data),
        data_of(kind, out, data),
        out / kind,
        limit=limit,
        page=False,  # the documents' tables come from what is kept
        progress=Printed(),
        **label,
    )


# The documents ------------------------------------------------------------------------------------


def interval(row: pd.Series, name: str = "value", low: str = "low", high: str = "high") -> str:
    return f"{row[name]:.3f} [{row[low]:.3f}, {row[high]:.3f}]"


def ranked(ranking: Ranking) -> str:
    """A protocol's methods with their intervals, and what NormLens leads them by."""
    compared = comparisons_of(NORMLENS, compare_methods(ranking)).set_index("against")
    least = "least first" in ranking.table
    heads = [
        "method",
        ranking.words.value,
        *(["least first"] if least else []),
        "normlens leads by",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for _, row in ranking.table.iterrows():
        cells = [str(row["method"]), interval(row)]
        if least:
            cells.append(interval(row, "least first", "least first low", "least first high"))
        if row["method"] in compared.index:
            pair = compared.loc[row["method"]]
            sign = -1 if ranking.words.lower_is_better else 1
            low, high = sorted((sign * pair["low"], sign * pair["high"]))
            p = pair["p (Holm)"]
            shown = "< .001" if p < 0.001 else f"= {p:.3f}"
            cells.append(f"{sign * pair['difference']:+.3f} [{low:+.3f}, {high:+.3f}], p {shown}")
        else:
            cells.append("")
        lines.append("| " + " | ".join(cells).replace("-0.", "−0.") + " |")
    return "\n".join(lines)


def by_phenomenon(run: Run) -> str:
    """The mean reciprocal rank of the deciding word, by file and method."""
    frame = run.sql(
        "SELECT split_part(sequence, '.csv', 1) AS phenomenon, method, avg(value) AS mrr, "
        "count(value) AS n FROM faithfulness WHERE protocol = 'evidence' GROUP BY ALL"
    )
    table = frame.pivot(index="method", columns="phenomenon", values="mrr")
    table = table.loc[table.mean(axis=1).sort_values(ascending=False).index]
    counts = frame.groupby("phenomenon")["n"].max()
    heads = ["method", *(f"{name.replace('_', ' ')} ({counts[name]})" for name in table)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for method, row in table.iterrows():
        lines.append(f"| {method} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
    return "\n".join(lines)


def section(kind: str, run: Run) -> str:
    """What the documents say of one evaluation."""
    evidence = Evidence(kind, run)
    seed = run.manifest.options.seed
    status = run.status()
    device = run.manifest.model["device"]
    parts = [f"{status.done - status.failures:,} texts, computed on {device} in float32."]
    for protocol in protocols(evidence):
        ranking = rank(evidence, protocol, seed)
        parts += [f"{ranking.words.title} ({ranking.examples:,} texts):", ranked(ranking)]
        if protocol == "evidence":
            parts += ["By phenomenon (texts in brackets):", by_phenomenon(run)]
    return "\n\n".join(parts)


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
    parser.add_argument("what", choices=[*RUNS, "docs"])
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

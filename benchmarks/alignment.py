"""Word alignment of the Hansards by an English–French Marian model; tables of docs/reproduce.md.

The 447 pairs and their gold links are in NORMLENS_TEST_DATA (alignment/hansards.en-fr.txt, .gold):

    python benchmarks/alignment.py --model opus-mt-en-fr --out hansards     # about twenty minutes
    python benchmarks/alignment.py --docs hansards                          # writes the page

A run that was stopped is finished by the same command.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import pandas as pd

import normlens
from normlens.corpus.runs.progress import for_stream
from normlens.studies.alignment.gold import error_rates, of_maps
from normlens.studies.alignment.report import build_report, describe
from normlens.studies.reports.words import power

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reproduce.md"
IMAGES = PAGE.parent / "images" / "alignment"
DATA = Path(os.environ.get("NORMLENS_TEST_DATA", ROOT.parent / "shared" / "data")) / "alignment"
BEGIN = "<!-- alignment: written by `python benchmarks/alignment.py --docs` -->"
END = "<!-- /alignment -->"
SHOWN_HEADS = 2


def measure(model: str, out: str) -> None:
    shown = for_stream(False)
    try:
        normlens.align(
            model,
            DATA / "hansards.en-fr.txt",
            out,
            gold=str(DATA / "hansards.en-fr.gold"),
            scopes="all,explain",
            head="all",
            progress=shown,
        )
    finally:
        shown.stop()


def markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|---" * len(frame.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in frame.to_numpy()]
    return "\n".join(lines)


def best_table(rates: pd.DataFrame) -> str:
    """The best layer of the scopes that end at CROSS, FF or the layer, with intervals."""
    rows = []
    end = max(rates["scope"], key=len)
    for (way, scope), some in rates.groupby(["way", "scope"], sort=False):
        if scope not in ("CROSS-W", "CROSS-N", end) and not scope.endswith("FF-N"):
            continue
        best = some.sort_values("aer").iloc[0]
        rows.append(
            {
                "way": way,
                "scope": scope,
                "best layer": int(best["layer"]) + 1,
                "AER": interval(best, "aer"),
                "precision": interval(best, "precision"),
                "recall": interval(best, "recall"),
            }
        )
    return markdown(pd.DataFrame(rows))


def head_table(rates: pd.DataFrame) -> str:
    rows = [
        {
            "scope": row["scope"],
            "way": row["way"],
            "layer": row["layer"] + 1,
            "head": row["head"] + 1,
            "AER": interval(row, "aer"),
        }
        for _, row in rates.sort_values("aer", kind="stable").head(SHOWN_HEADS).iterrows()
    ]
    return markdown(pd.DataFrame(rows))


def interval(row: pd.Series, name: str) -> str:
    value, low, high = (100 * row[column] for column in (name, f"{name}_low", f"{name}_high"))
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def written(folder: Path) -> str:
    """The page's results."""
    run = normlens.Run.open(folder)
    rates = error_rates(run).table
    together = of_maps(rates)
    sections = describe(run).sections
    results = {one.experiment.name: one.results[0][1] for one in sections}
    explained = results["alignment-explain"]
    status, worst = run.status(), run.table("alignment_texts")["completeness"].max()
    manifest = run.manifest
    parts = [
        f"{status.done - status.failures} pairs, {manifest.model['type']} with "
        f"{manifest.model['layers'] // 2} decoder layers, {manifest.model['dtype']} on "
        f"{manifest.model['device']}; completeness error at most {power(worst)}.",
        "![AER by layer and scope](images/alignment/aer-layers.png)",
        "The best layer of some scopes, with 95 % intervals over sentence pairs:",
        best_table(together),
        "Contributions to logits (`--scope explain`), and their change of AER in points against "
        "the best map by output:",
        *(markdown(table.text()) for table in explained.tables.values()),
        "The best single heads, chosen on the pairs that they are measured on:",
        head_table(rates[rates["head"] >= 0]),
        "A pair by the best map of weights and by the best map of all:",
        "![Links of one pair](images/alignment/alignment-example.png)",
    ]
    return "\n\n".join(parts)


def write_docs(folder: Path) -> None:
    figures = build_report(folder).parent / "figures"
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in ("aer-layers", "alignment-example"):
        shutil.copyfile(figures / f"{name}.png", IMAGES / f"{name}.png")
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{written(folder)}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="folder or hub name of opus-mt-en-fr")
    parser.add_argument("--out", default="hansards", help="folder of the run")
    parser.add_argument("--docs", type=Path, metavar="RUN", help="write the page from this run")
    given = parser.parse_args()
    if given.docs is not None:
        write_docs(given.docs)
    elif given.model is None:
        parser.error("give --model, or --docs RUN")
    else:
        measure(given.model, given.out)


if __name__ == "__main__":
    main()

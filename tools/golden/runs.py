"""The tables of small runs, and of the studies that are made of runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pandas as pd

import normlens
from golden.results import Values, as_json, attempt
from golden.shell import SENTENCES, folder_of_examples, run_command

EVERY = "similarity,mixing,amplification,norms,explanations"
#: Runs by name: model, data, options.
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minilm": ("minilm", "data.txt", {}),
    "masked": ("bert", "data.txt", {"mask": 0.3, "seed": 3, "block_size": 5}),
    "causal": ("gpt2", "data.txt", {"measures": EVERY, "max_length": 8}),
    "experts": ("mixtral", "data.txt", {"limit": 4}),
    "classifier": ("classifier", "table.csv", {"measures": "explanations", "column": "text"}),
    "pairs": ("bart", "parallel:pairs.txt", {"measures": EVERY}),
    "failing": ("bert", "data.txt", {"max_length": 8, "truncate": False, "measures": "mixing"}),
}
QUERIES = {
    "mean by layer": "SELECT layer, avg(ratio) AS ratio FROM mixing GROUP BY layer ORDER BY layer",
    "joined": "SELECT s.tokens, avg(rho) AS rho FROM similarity JOIN sequences AS s USING (index) "
    "GROUP BY s.tokens ORDER BY s.tokens",
}
#: Studies by name: what is typed behind ``normlens``.
STUDIES = {
    "reproduce": "reproduce all --model minilm --data sample --limit 6",
    "evaluate": "evaluate --model minilm --data twos.csv --column a --pair-column b",
    "evaluate-classifier": "evaluate --model classifier --data table.csv --column text "
    "--label-column label",
    "ablate": "reproduce ablate --model gpt2 --data many.txt --limit 20",
    "align": "reproduce align --model bart --data parallel:pairs.txt --gold pairs.gold --scope all",
}


def run_tables(name: str, settings: dict[str, dict[str, Any]]) -> Values:
    """Every table of one small run, and answers to SQL."""
    model, data, options = RUNS[name]
    with folder_of_examples(settings):
        run = normlens.run(model, data, "out", device="cpu", **options)
        values = _tables(run)
        if name == "minilm":
            for label, query in QUERIES.items():
                values |= attempt(f"SQL: {label}", run.sql, query)
    return values


def _tables(run: normlens.Run) -> Values:
    values: Values = {"tables": as_json(run.tables)}
    for table in run.tables:
        values |= attempt(table, run.table, table)
    return values


def study_tables(name: str, settings: dict[str, dict[str, Any]]) -> Values:
    """What a study prints and writes: names of its files, tables as numbers, its run's tables."""
    with folder_of_examples(settings):
        pairs = zip(SENTENCES[:6], SENTENCES[6:], strict=True)
        pd.DataFrame(pairs, columns=["a", "b"]).to_csv("twos.csv", index=False)
        Path("many.txt").write_text("\n".join(2 * SENTENCES) + "\n")
        words = shlex.split(STUDIES[name])
        status, out, err = run_command([*words, "--out", "out", "--device", "cpu", "--quiet"])
        values: Values = {"exit": f"exit {status}\n{err}", "printed": out}
        folder = Path("out")
        runs = sorted(path.parent for path in folder.rglob("manifest.json"))
        files = [path for path in sorted(folder.rglob("*")) if _is_shown(path, runs)]
        values["files"] = as_json([str(path.relative_to(folder)) for path in files])
        for path in files:
            label = str(path.relative_to(folder))
            if path.suffix == ".csv":
                values |= attempt(label, _read_table, path)
            elif "links" in path.parts:
                values[label] = path.read_text()
        for run in runs if name != "reproduce" else ():  # whose runs are those of `RUNS`
            tables = _tables(normlens.Run.open(run))
            values |= {f"{run.relative_to(folder)}: {k}": v for k, v in tables.items()}
    return values


def _read_table(path: Path) -> pd.DataFrame:
    """A table without the columns of times, which are never the same again."""
    table = pd.read_csv(path)
    return table.drop(columns=[name for name in table if str(name).startswith("time")])


def _is_shown(path: Path, runs: list[Path]) -> bool:
    """Whether a file is a study's own; how a run keeps its tables is its own affair."""
    inside = [path.relative_to(run).parts[0] for run in runs if run in path.parents]
    return path.is_file() and all(part in ("report", "links") for part in inside)

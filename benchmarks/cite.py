"""Citations put to the test: LDS, drops and gold ranks of SmolLM2's answers, method by method.

The data are Natural Questions (each gold paragraph among those of four other questions, by
sentence), news articles to be summarised (by sentence), and questions with one passage that was
made to cause a wrong answer among four others (by passage), where the model falls for it. All are
set up as ContextCite did: greedy answers of at most 40 tokens, 8 to 60 sentences, 1,500 tokens.

    python benchmarks/cite.py --out build/cite [--limit 60] [--workers 2] [--device cuda]
    python benchmarks/cite.py --out build/cite --table      # of what is there

Results are appended to a file for each worker, and a run that was stopped goes on. `seconds` are
those of one text at a time on this machine, with what methods share counted for each of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import normlens
from normlens.explain.citations import prepared
from normlens.inputs.text import DOCUMENT
from normlens.measures.bootstrap import mean_intervals, paired_differences
from normlens.options import CiteOptions
from normlens.studies.faithfulness.citations import Trial, passes
from normlens.studies.faithfulness.options import CITATION_METHODS, ablations_of

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NORMLENS_TEST_DATA", ROOT.parent / "shared" / "data")) / "cite"
SETS = ("nq", "cnn_dailymail", "poisoned_nq")
SUMMARISE = "Summarize the text in one or two sentences."
LEAST, MOST, TOKENS = 8, 60, 1500
#: FlashTrace takes part where it is installed.
METHODS = [*CITATION_METHODS, *["flashtrace"] * bool(find_spec("flashtrace"))]
PAIRS = (
    ("normlens", "contextcite-8"),
    ("normlens", "contextcite-16"),
    ("normlens", "leave-one-out"),
    ("normlens", "gradient-x-input"),
    ("normlens", "flashtrace"),
    ("normlens+8", "contextcite-16"),
    ("normlens+32", "contextcite-32"),
)


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def cases(name: str) -> Iterator[dict[str, Any]]:
    """Every question of a set with its sources; `gold` are those that hold the answer."""
    rows, others = read(name), read("nq")
    for index, row in enumerate(rows):
        chance, gold = random.Random(index), list[int]()
        question = row.get("question", "").rstrip("?") + "?"
        if name == "cnn_dailymail":
            sources, question = sentences(row["article"]), SUMMARISE
        elif name == "nq":
            chosen = [index, *chance.sample([k for k in range(len(rows)) if k != index], 4)]
            chance.shuffle(chosen)
            sources = []
            for k in chosen:
                for sentence in sentences(rows[k]["text"]):
                    if k == index and any(a.lower() in sentence.lower() for a in row["answers"]):
                        gold.append(len(sources))
                    sources.append(sentence)
        else:
            passages = [row["poisoned"][0]]
            passages += [others[k]["text"] for k in chance.sample(range(len(others)), 4)]
            order = chance.sample(range(5), 5)
            sources, gold = [passages[k].strip() for k in order], [order.index(0)]
        if name == "poisoned_nq" or LEAST <= len(sources) <= MOST:
            yield {"set": name, "row": index, "question": question, "sources": sources} | {
                "gold": gold,
                "wrong": row.get("incorrect"),
            }


def judge(lens: Any, case: dict[str, Any]) -> dict[str, Any] | None:
    """A case's values by method; None where the text is too long or the answer too short."""
    options = CiteOptions(by=DOCUMENT, parts=DOCUMENT, generate=40, separator=" ")
    prompt = prepared(lens, case["question"], case["sources"], None, options)
    whole = len(prompt.read()[0])
    if whole > TOKENS or len(prompt.ids) < 3:
        return None
    assert prompt.answer is not None
    trial = Trial(prompt, (0, case["row"]), 32)
    began = time.perf_counter()
    trial.log_p(trial.held)
    each = (time.perf_counter() - began) / len(trial.held)
    trial.log_p(trial.masks)
    methods, scores = {}, {}
    for name in METHODS:
        began = time.perf_counter()
        scores[name] = trial.scores(name)
        seconds = time.perf_counter() - began
        known = ablations_of(name) if name.startswith("contextcite-") else 0  # timed above
        methods[name] = {"seconds": seconds + known * each}
    exact = methods["normlens"]["seconds"]
    for name in METHODS:
        methods[name] |= trial.values(scores[name], case["gold"])
        if name.startswith("normlens+"):
            methods[name]["seconds"] += exact
    answer = prompt.answer.text
    falls = None if case["wrong"] is None else case["wrong"].lower() in answer.lower()
    return {
        "set": case["set"],
        "row": case["row"],
        "sources": trial.count,
        "tokens": whole,
        "answer": answer,
        "falls": falls,
        "pass": each,
        "methods": methods,
    }


def work(worker: int, arguments: argparse.Namespace) -> None:
    lens = normlens.load("smollm2", dtype="float32", device=arguments.device)
    done = {(one["set"], one["row"]) for one in results(arguments.out)}
    with (arguments.out / f"{worker}.jsonl").open("a", encoding="utf-8") as file:
        for name in arguments.sets:
            chosen = list(cases(name))[: arguments.limit]
            for place, case in enumerate(chosen):
                mine = place % arguments.workers == worker
                if mine and (name, case["row"]) not in done:
                    found = judge(lens, case) or {"set": name, "row": case["row"], "methods": None}
                    file.write(json.dumps(found) + "\n")
                    file.flush()


def results(out: Path) -> list[dict[str, Any]]:
    lines = (line for path in sorted(out.glob("*.jsonl")) for line in path.open(encoding="utf-8"))
    return [json.loads(line) for line in lines if line.endswith("\n")]


def table(out: Path, limit: int | None) -> None:
    for name in SETS:
        of_set = [one for one in results(out) if one["set"] == name and one["methods"]]
        of_set = sorted(of_set, key=lambda one: one["row"])
        found = [one for one in of_set if one.get("falls") is not False][:limit]
        if len(found) < 2:
            continue
        sources, tokens = (np.mean([one[key] for one in found]) for key in ("sources", "tokens"))
        print(f"\n{name}: {len(found)} of {len(of_set)} answers, {sources:.0f} sources, ", end="")
        print(f"{tokens:.0f} tokens")
        rows, of_method = [], {}
        for method in found[0]["methods"]:
            values = pd.DataFrame([one["methods"][method] for one in found]).astype(float)
            cost = values.pop("seconds") / [one["pass"] for one in found]
            of_method[method] = values
            means = mean_intervals(values.to_numpy())
            forward, backward = np.mean([passes(method, one["sources"]) for one in found], axis=0)
            cells = {
                column: f"{mean:.3f} ({low:.3f} to {high:.3f})"
                for column, mean, low, high in zip(values, *means, strict=True)
                if np.isfinite(mean)
            }
            spent = f"{forward:.0f} + {backward:.0f}"
            rows.append(
                {"method": method, "passes": spent, "÷ pass": f"{cost.median():.1f}"} | cells
            )
        print(pd.DataFrame(rows).to_string(index=False))
        for first, second in (pair for pair in PAIRS if {*pair} <= of_method.keys()):
            a, b = (of_method[method][["lds"]].to_numpy() for method in (first, second))
            test = paired_differences(a, b)
            print(
                f"LDS of {first} − {second}: {test.mean[0]:+.3f} "
                f"({test.low[0]:+.3f} to {test.high[0]:+.3f}), p = {test.p[0]:.2g}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=work, args=(worker, arguments))
            for worker in range(arguments.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    table(arguments.out, arguments.limit)


if __name__ == "__main__":
    main()

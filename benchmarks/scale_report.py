"""The tables and the plot of `scale.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: What is asked of a finished run.
ASKED = ("status", "query", "resume")
#: By the store that a run lies in, one result for each size.
Results = dict[str, list[dict[str, Any]]]
#: What each plot shows: lines by their names.
DRAWN: dict[str, dict[str, Callable[[dict[str, Any]], float]]] = {
    "driver (ms CPU per block)": {"": lambda row: row["driver"]},
    "memory of the driver (MiB)": {
        "at a tenth": lambda row: row["memory"][0],
        "at the end": lambda row: row["memory"][-1],
        "at most": lambda row: row["peak"],
    },
    "files at the end": {"": lambda row: row["files"]},
    "a finished run answers (s CPU)": {
        "status": lambda row: row["status"]["seconds"],
        "query": lambda row: row["query"]["seconds"],
        "resume": lambda row: row["resume"]["seconds"],
    },
    "requests per 1,000 sequences": {"": lambda row: row["requests"]["run"]},
}


def report(results: Results, workers: int) -> str:
    """The tables as Markdown."""
    lines = [
        f"{workers} simulated workers, blocks of 64 sequences, "
        f"{next(iter(results.values()))[0]['tables']} tables. CPU times of the driver's own "
        "threads; other processes use the same two cores, so wall-clock times say little.",
    ]
    titles = {"local": "A local folder", "objects": "An object store"}
    for store, rows in results.items():
        heads = [
            f"{titles[store]}: sequences",
            "blocks",
            "driver, ms CPU per block",
            "MiB at a tenth, at the end, at most",
            *(f"`{what}`, s CPU" for what in ASKED),
            "files at the end",
        ]
        if store == "objects":
            heads.append("requests per 1,000 sequences")
        lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in rows:
            seconds = " | ".join(f"{row[what]['seconds']:.2f}" for what in ASKED)
            line = (
                f"| {row['sequences']:,} | {row['blocks']:,} | {row['driver']:.2f} "
                f"| {row['memory'][0]:.0f}, {row['memory'][-1]:.0f}, {row['peak']:.0f} "
                f"| {seconds} | {row['files']} |"
            )
            if store == "objects":
                line += f" {row['requests']['run']:.2f} |"
            lines.append(line)
    return "\n".join(lines)


def write_docs(results: Results, workers: int) -> None:
    plot(results, DOCS / "images" / "scale.svg")
    page = DOCS / "corpus.md"
    text = f"{report(results, workers)}\n\n![How each grows](images/scale.svg)"
    pattern = r"(<!-- scale:.*?-->\n).*?(<!-- /scale -->)"
    page.write_text(
        re.sub(pattern, lambda m: f"{m[1]}\n{text}\n\n{m[2]}", page.read_text(), flags=re.S)
    )


def plot(results: Results, path: Path) -> None:
    """Draw how each number grows with the sequences."""
    has_requests = any("requests" in row for rows in results.values() for row in rows)
    drawn = {title: of for title, of in DRAWN.items() if has_requests or "requests" not in title}
    figure = Figure(figsize=(16, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(drawn)).ravel()
    styles = {"local": "o-", "objects": "s--"}
    for axis, (title, lines) in zip(axes, drawn.items(), strict=True):
        for store, rows in results.items():
            measured = [row for row in rows if "requests" not in title or "requests" in row]
            sizes = [row["sequences"] for row in measured]
            for place, (name, value) in enumerate(lines.items()):
                label = f"{name}, {store}".removeprefix(", ")
                heights = [value(row) for row in measured]
                if sizes:
                    axis.plot(sizes, heights, styles[store], color=f"C{place}", label=label)
        axis.set(title=title, xlabel="sequences", xscale="log", ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize="x-small")
    figure.savefig(path)

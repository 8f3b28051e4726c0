"""Tables that the demo prints: completeness, similarity and amplification."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlens import analysis
from normlens.results.maps import Maps
from normlens.scopes import Step, consecutive


def best_pairs(maps: Maps, step: Step, layer: int, count: int) -> list[analysis.Pair]:
    """The pairs of ordinary tokens that the step strengthens most, in one layer."""
    only = maps.choose(layer)
    ordinary = ~np.array(maps.special)
    allowed = only.allowed[0] & ordinary & ordinary[:, None]
    difference = only.amplification(step.before, step.after)[0]
    return analysis.strongest_pairs(difference, allowed, count)[0]


@dataclass(frozen=True)
class TextTable:
    """A table with a title above it and a note below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def completeness_table(results: Sequence[Maps]) -> TextTable:
    """The completeness error of each sentence."""
    return TextTable(
        "Completeness",
        ["sentence", "tokens", "error"],
        [[str(m.text), str(len(m.tokens)), f"{m.completeness:.1e}"] for m in results],
        "Largest relative error of parts + bias against the model's own hidden states.",
    )


def similarity_table(results: Sequence[Maps], layers: Sequence[int]) -> TextTable:
    """Spearman's ρ of the maps before and after each component, by layer."""
    steps = consecutive(results[0].scopes)
    rho = np.array(
        [[maps.similarity(before, after) for maps in results] for _, before, after in steps]
    ).mean(axis=1)  # (component, layer)
    positions = [results[0].layers.index(layer) for layer in layers]
    return TextTable(
        "How alike the maps before and after each component are (Spearman's ρ)",
        ["layer", *(step.component for step in steps)],
        [
            [str(layer), *(f"{value:.2f}" for value in rho[:, position])]
            for layer, position in zip(layers, positions, strict=True)
        ],
        "Layers count from 0; mean over the sentences; the lower, the more it changes the map.",
    )


def amplification_table(results: Sequence[Maps], step: Step, layers: Sequence[int]) -> TextTable:
    """The two pairs of each layer that the feed-forward block amplifies most."""
    rows = []
    for layer in layers:
        best = [(pair, maps) for maps in results for pair in best_pairs(maps, step, layer, 2)]
        for pair, maps in sorted(best, key=lambda item: -item[0].value)[:2]:
            labels = maps.tokens
            words = f"{labels[pair.source]} → {labels[pair.target]}"
            rows.append([str(layer), f"{pair.value:+.3f}", words, str(maps.text)])
    return TextTable(
        f"Pairs that FF amplifies most ({step.before} → {step.after})",
        ["layer", "FF-amp", "source → target", "sentence"],
        rows,
        "Layers count from 0; two pairs a layer; special tokens are left out.",
    )


def rendered(content: TextTable) -> str:
    """The table as text, with colour and emphasis only on a terminal."""
    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), width=None if terminal else 100, force_terminal=terminal)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in content.columns:
        words = column in ("sentence", "source → target", "token", "token of A", "token of B")
        table.add_column(Text(column), justify="left" if words else "right")
    # As Text, so that a token such as [b] is not read as markup.
    for row in content.rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(Text(f"\n{content.title}", style="bold"))
        console.print(table, end="")
        console.print(Text(content.note, style="dim"))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())

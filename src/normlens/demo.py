"""A first look: a few sentences through the embedded models, as tables, pictures and maps files."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlens import analysis, export, figures, store
from normlens.corpus.runs.progress import Lines
from normlens.embedded import EMBEDDED
from normlens.errors import MissingDependencyError, OutputError
from normlens.layers import thinned
from normlens.loading import load
from normlens.maps import Maps
from normlens.papers.reproduce import reproduce
from normlens.papers.results_folder import SETTINGS
from normlens.scopes import Step, consecutive
from normlens.viewer import to_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path("normlens-demo")
SENTENCES = (
    "She teaches soap opera history.",
    "Barack Obama was born in Honolulu.",
    "A tiny house stands beside the highway.",
)
PAPERS = "papers"  # the folder of the papers' experiments
SEQUENCES = 80  # of the embedded sample
_NEEDED = ("duckdb", "jinja2")
_TABLE_LAYERS = 6  # a deep model's layers are thinned to about so many


def run_demo(
    out: str | Path = FOLDER, *, force: bool = False, echo: Callable[[str], object] = print
) -> Path:
    """Analyse `SENTENCES` with the embedded encoder and, where installed, the embedded decoder.

    Prints tables through `echo`, writes maps and pictures into the folder `out`, and returns it.
    With `force` the demo's own files in a folder that is not empty are written anew; other files
    there stay.
    """
    encoder, decoder = EMBEDDED["minilm"], EMBEDDED["smollm2"]
    folder = Path(out)
    _check(folder, force)
    written = _show(encoder.name, folder, echo)
    if decoder.installed and not decoder.missing_extras():
        echo(f"\nLoading {decoder.name}, a causal decoder (this takes some seconds) …")
        written += _show(decoder.name, folder, echo)
    else:
        echo(f"\nThe same for a causal decoder: {decoder.install_hint}, then run the demo again.")
    if _without_pictures():
        echo("\nPictures need matplotlib: pip install 'normlens[viz]', then run the demo again.")
    report = _papers(encoder.name, folder, echo)
    echo(f"\nWritten to {folder}{os.sep}")
    for path, what in written:
        echo(f"  {path.name:<32} {what}")
    if report is not None:
        echo(f"  {report.relative_to(folder).as_posix():<32} the papers' tables and figures")
    example = folder / written[0][0].name
    pages = [path for path, _ in written if path.suffix == ".html"]
    echo(
        "\nTo try next:\n"
        '  normlens map "Your own sentence." --layers 4 --out layer-4.png\n'
        "  normlens --help\n"
        f'  python -c "import normlens; print(normlens.open({example.as_posix()!r}))"'
    )
    echo(f"\nTo look at the maps, open {pages[0]} in a browser.")
    if report is not None:
        echo(f"\nThe report: {report.resolve().as_uri()}")
    return folder


def _check(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{str(folder)!r} is a file; name a folder for the demo's output")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputError(
            f"the folder {str(folder)!r} is not empty; run the demo with --force (force=True) to "
            "write its files anew, or name another folder"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from error


def _without_pictures() -> bool:
    try:
        figures.require_matplotlib()
    except MissingDependencyError:
        return True
    return False


# The papers' experiments --------------------------------------------------------------------------


def _papers(name: str, folder: Path, echo: Callable[[str], object]) -> Path | None:
    """`reproduce ff` and `reproduce mixing` on the embedded sample; the report's path."""
    missing = [module for module in _NEEDED if importlib.util.find_spec(module) is None]
    if missing or _without_pictures():
        echo("\nThe papers' tables and figures need more: pip install 'normlens[reproduce]'.")
        return None
    own = folder / PAPERS
    if (own / SETTINGS).is_file():
        shutil.rmtree(own)  # of a demo before this one
    echo(
        f"\nThe papers' experiments on {SEQUENCES} sequences of the embedded sample "
        "(this takes a minute or two) …"
    )
    return reproduce(
        ("ff", "mixing"),
        name,
        "sample",
        own,
        limit=SEQUENCES,
        progress=Lines(sys.stderr),
    )


# One model ---------------------------------------------------------------------------------------


def _show(name: str, folder: Path, echo: Callable[[str], object]) -> list[tuple[Path, str]]:
    """Analyse, print and write; returns the files and what they hold."""
    lens = load(name)
    _make(folder)
    results = lens.maps(list(SENTENCES))
    step = _feed_forward(results[0])
    layers = thinned(results[0].layers, _TABLE_LAYERS)
    echo(f"\n{name}: {EMBEDDED[name].description}")
    echo(f"Components of each layer: {lens.component_sequence}")
    for table in (
        _completeness_table(results),
        _similarity_table(results, layers),
        _amplification_table(results, step, layers),
    ):
        echo(_rendered(table))
    written = []
    for number, maps in enumerate(results, start=1):
        path = maps.save(folder / f"{name}-{number}.safetensors", overwrite=True)
        written.append((path, f"maps of “{maps.text}”"))
    # Their texts can be compared in it where they have one length.
    page = to_html(results, folder / f"{name}-viewer.html", overwrite=True)
    written.append((page, "all of them to look at: open it in a browser"))
    if not _without_pictures():
        for path, figure, what in _pictures(name, folder, results[0], step, layers):
            with store.writing(path, overwrite=True) as temporary:
                export.save_figure(figure, temporary)
            written.append((path, what))
    return written


def _feed_forward(maps: Maps) -> Step:
    return next(step for step in consecutive(maps.scopes) if step.component == "FF")


def _pictures(
    name: str, folder: Path, maps: Maps, step: Step, layers: list[int]
) -> list[tuple[Path, Figure, str]]:
    """Four views of one sentence, at the layer where the feed-forward block amplifies most."""
    best = {layer: _best_pairs(maps, step, layer, 1) for layer in maps.layers}
    layer = max(maps.layers, key=lambda index: sum(pair.value for pair in best[index]))
    return [
        (
            folder / f"{name}-layer-{layer}.png",
            figures.plot_layer(maps, layer),
            f"every scope of layer {layer}",
        ),
        (
            folder / f"{name}-overview.png",
            figures.plot_overview(maps, layers),
            "layers (rows) and scopes (columns)",
        ),
        (
            folder / f"{name}-amplification-{layer}.png",
            figures.plot_amplification(maps, step.before, step.after, layer),
            f"what FF strengthens and weakens in layer {layer}",
        ),
        (
            folder / f"{name}-similarity.png",
            figures.plot_similarity(maps),
            "how much each component changes the map",
        ),
    ]


# Tables ------------------------------------------------------------------------------------------


def _best_pairs(maps: Maps, step: Step, layer: int, count: int) -> list[analysis.Pair]:
    """The most strengthened pairs of ordinary tokens."""
    only = maps.choose(layer)
    ordinary = ~np.array(maps.special)
    allowed = only.allowed[0] & ordinary & ordinary[:, None]
    difference = only.amplification(step.before, step.after)[0]
    return analysis.strongest_pairs(difference, allowed, count)[0]


@dataclass(frozen=True)
class _Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def _completeness_table(results: Sequence[Maps]) -> _Table:
    return _Table(
        "Completeness",
        ["sentence", "tokens", "error"],
        [[str(m.text), str(len(m.tokens)), f"{m.completeness:.1e}"] for m in results],
        "Largest relative error of parts + bias against the model's own hidden states.",
    )


def _similarity_table(results: Sequence[Maps], layers: Sequence[int]) -> _Table:
    steps = consecutive(results[0].scopes)
    rho = np.array(
        [[maps.similarity(before, after) for maps in results] for _, before, after in steps]
    ).mean(axis=1)  # (component, layer)
    positions = [results[0].layers.index(layer) for layer in layers]
    return _Table(
        "How alike the maps before and after each component are (Spearman's ρ)",
        ["layer", *(step.component for step in steps)],
        [
            [str(layer), *(f"{value:.2f}" for value in rho[:, position])]
            for layer, position in zip(layers, positions, strict=True)
        ],
        "Layers count from 0; mean over the sentences; the lower, the more it changes the map.",
    )


def _amplification_table(results: Sequence[Maps], step: Step, layers: Sequence[int]) -> _Table:
    rows = []
    for layer in layers:
        best = [(pair, maps) for maps in results for pair in _best_pairs(maps, step, layer, 2)]
        for pair, maps in sorted(best, key=lambda found: -found[0].value)[:2]:
            labels = maps.tokens
            words = f"{labels[pair.source]} → {labels[pair.target]}"
            rows.append([str(layer), f"{pair.value:+.3f}", words, str(maps.text)])
    return _Table(
        f"Pairs that FF amplifies most ({step.before} → {step.after})",
        ["layer", "FF-amp", "source → target", "sentence"],
        rows,
        "Layers count from 0; two pairs a layer; special tokens are left out.",
    )


def _rendered(content: _Table) -> str:
    """The table as text, with colour and emphasis only on a terminal."""
    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), width=None if terminal else 100, force_terminal=terminal)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in content.columns:
        words = column in ("sentence", "source → target")
        table.add_column(Text(column), justify="left" if words else "right")
    # As Text, so that a token such as [b] is not read as markup.
    for row in content.rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(Text(f"\n{content.title}", style="bold"))
        console.print(table, end="")
        console.print(Text(content.note, style="dim"))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())

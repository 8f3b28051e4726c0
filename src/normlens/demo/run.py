"""A first look: sentences through the embedded models, as tables, pictures, maps, explanations."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from normlens import figures
from normlens.checkpoints.embedded import EMBEDDED
from normlens.corpus.runs.progress import Lines
from normlens.demo.explained import show_cosine, show_why
from normlens.demo.tables import (
    amplification_table,
    best_pairs,
    completeness_table,
    rendered,
    similarity_table,
)
from normlens.errors import OutputError
from normlens.exports.printing import save_figure
from normlens.extras import PICTURES, REPORT, extra_for, missing
from normlens.layers import thinned
from normlens.loading import load
from normlens.papers.reproduce import reproduce
from normlens.papers.results_folder import SETTINGS
from normlens.results import store
from normlens.results.maps import Maps
from normlens.scopes import Step, consecutive
from normlens.viewer import to_html
from normlens.wording import listed

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
_TABLE_LAYERS = 6  # at most so many layers of a deep model are shown


def run_demo(
    out: str | Path = FOLDER, *, force: bool = False, echo: Callable[[str], object] = print
) -> Path:
    """Analyse `SENTENCES` with the embedded encoder and, where installed, the embedded decoder.

    Prints tables through `echo`, writes maps and pictures into the folder `out`, and returns it.
    With `force` the folder need not be empty: the demo's files there are overwritten, and others
    stay.
    """
    encoder, decoder = EMBEDDED["minilm"], EMBEDDED["smollm2"]
    folder = Path(out)
    _check(folder, force)
    if lacking := missing([REPORT]):
        echo(
            f"Without {listed(lacking)} there are no pictures or no tables of the papers; for all "
            f"of the demo, first run: pip install 'normlens[{extra_for(lacking, 'reproduce')}]'"
        )
    written = _show(encoder.name, folder, echo)
    if decoder.installed and not decoder.missing_extras():
        echo(f"\nLoading {decoder.name}, a causal decoder (this takes some seconds) …")
        written += _show(decoder.name, folder, echo)
    else:
        echo(f"\nThe same for a causal decoder: {decoder.install_hint}, then run the demo again.")
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
        '  normlens explain "The keys to the cabinet" --target " are" --contrast " is"\n'
        '  normlens cosine "A man is playing a flute." "Someone plays an instrument."\n'
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


# The papers' experiments --------------------------------------------------------------------------


def _papers(name: str, folder: Path, echo: Callable[[str], object]) -> Path | None:
    """Reproduce the papers' experiments on the embedded sample; return the report's path.

    There is none where a package is missing.
    """
    if missing([REPORT]):
        return None
    papers = folder / PAPERS
    if (papers / SETTINGS).is_file():
        shutil.rmtree(papers)  # from an earlier demo
    echo(
        f"\nThe papers' experiments on {SEQUENCES} sequences of the embedded sample "
        "(this takes a minute or two) …"
    )
    return reproduce(
        ("ff", "mixing"),
        name,
        "sample",
        papers,
        limit=SEQUENCES,
        progress=Lines(sys.stderr),
    )


# One model ---------------------------------------------------------------------------------------


def _show(name: str, folder: Path, echo: Callable[[str], object]) -> list[tuple[Path, str]]:
    """Analyse, print and write; return each file and a description of it."""
    lens = load(name)
    _make(folder)
    results = lens.maps(list(SENTENCES))
    step = _feed_forward(results[0])
    layers = thinned(results[0].layers, _TABLE_LAYERS)
    echo(f"\n{name}: {EMBEDDED[name].description}")
    echo(f"Components of each layer: {lens.component_sequence}")
    for table in (
        completeness_table(results),
        similarity_table(results, layers),
        amplification_table(results, step, layers),
    ):
        echo(rendered(table))
    written = []
    for number, maps in enumerate(results, start=1):
        path = maps.save(folder / f"{name}-{number}.safetensors", overwrite=True)
        written.append((path, f"maps of “{maps.text}”"))
    # The page can compare texts that have the same length.
    page = to_html(results, folder / f"{name}-viewer.html", overwrite=True)
    written.append((page, "all of them to look at: open it in a browser"))
    if not missing([PICTURES]):
        for path, figure, what in _pictures(name, folder, results[0], step, layers):
            with store.writing(path, overwrite=True) as temporary:
                save_figure(figure, temporary)
            written.append((path, what))
    explain = show_why if lens.causal else show_cosine
    return written + explain(lens, name, folder, echo, pictures=not missing([PICTURES]))


def _feed_forward(maps: Maps) -> Step:
    """The step through the feed-forward block."""
    return next(step for step in consecutive(maps.scopes) if step.component == "FF")


def _pictures(
    name: str, folder: Path, maps: Maps, step: Step, layers: list[int]
) -> list[tuple[Path, Figure, str]]:
    """Four views of one sentence, at the layer where the feed-forward block amplifies most."""
    best = {layer: best_pairs(maps, step, layer, 1) for layer in maps.layers}
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

"""A first look: the embedded models on a few sentences, as maps, pictures, a report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from normlens.corpus.runs.progress import Lines
from normlens.errors import PICTURES, REPORT, OutputError, extra_for, missing, system_reason
from normlens.lens import Lens
from normlens.loading.embedded import EMBEDDED
from normlens.loading.load import load
from normlens.results.exports import save_figure
from normlens.scopes import thinned
from normlens.studies.papers.reproduce import reproduce
from normlens.studies.reports.files import SETTINGS
from normlens.viewer import to_html

SENTENCES = [
    "She teaches soap opera history.",
    "Barack Obama was born in Honolulu.",
    "A tiny house stands beside the highway.",
]
PROMPT = "The keys to the cabinet"
#: Of which a small model makes one right sentence and one wrong.
QUESTION = "What is the capital of Peru, and how many people live there?"
SOURCES = [
    "Lima is the capital of Peru. About ten million people live there.",
    "Cusco was the capital of the Inca Empire. It lies in the Andes.",
    "Quito is the capital of Ecuador, near the equator.",
]
PAIR = ("A man is playing a flute.", "Someone plays an instrument.")
SEQUENCES = 80  # of the embedded sample, for the papers' experiments


def run_demo(
    out: str | Path, *, force: bool = False, echo: Callable[[str], object] = print
) -> Path:
    """Analyse `SENTENCES` with the embedded encoder and, where installed, the embedded decoder.

    Writes maps, pictures and the papers' report into the folder `out`, tells `echo` what they are,
    and returns the folder. With `force` the folder need not be empty: the demo's files there are
    overwritten, and others stay.
    """
    folder, decoder, lacking = Path(out), EMBEDDED["smollm2"], missing([REPORT])
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputError(f"the folder {str(folder)!r} is not empty; add --force, or name another")
    if lacking:
        echo(f"For pictures and papers: pip install 'normlens[{extra_for(lacking, 'reproduce')}]'")
    encoder = load("minilm")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {str(folder)!r}: {system_reason(error)}") from error
    show_model(encoder, folder, echo)
    if decoder.installed and not decoder.missing_extras():
        show_model(load(decoder.name), folder, echo)
    else:
        echo(f"The same for a causal decoder: {decoder.install_hint}, then run the demo again.")
    if not lacking:
        echo(f"The papers' experiments on {SEQUENCES} sequences (this takes a minute or two) …")
        papers, progress = folder / "papers", Lines(sys.stderr)
        if (papers / SETTINGS).is_file():
            shutil.rmtree(papers)  # of an earlier demo
        report = reproduce(
            "ff,mixing", encoder, "sample", papers, limit=SEQUENCES, progress=progress
        )
        echo(f"{report}: the papers' tables and figures, {report.resolve().as_uri()}")
    echo(f"To look at the maps, open {folder / 'minilm-viewer.html'} in a browser.")
    return folder


def show_model(lens: Lens, folder: Path, echo: Callable[[str], object]) -> None:
    """Analyse the examples, write the files, and report each one."""
    results = lens.maps(SENTENCES)
    maps, layer = results[0], results[0].layers[len(results[0].layers) // 2]
    for number, each in enumerate(results, start=1):
        path = each.save(folder / f"{lens.name}-{number}.safetensors", overwrite=True)
        echo(f"{path}: “{each.text}”, {each}")
    page = to_html(results, folder / f"{lens.name}-viewer.html", overwrite=True)
    echo(f"{page}: all of them to look at; open it in a browser")
    why = cited = None
    if lens.causal:
        why = lens.explain(PROMPT, target=" are", contrast=" is")
        cited = lens.cite(QUESTION, SOURCES, by="sentence", generate=24)
        page = cited.to_html(folder / f"{lens.name}-cite.html", overwrite=True)
        echo(f"{page}: {QUESTION} {cited}")
    answer, name = (lens.cosine(*PAIR), "cosine") if why is None else (why, "why")
    path = answer.save(folder / f"{lens.name}-{name}.safetensors", overwrite=True)
    echo(f"{path}: {PAIR if why is None else PROMPT}, {answer}")
    if missing([PICTURES]):
        return
    pictures = {
        "layer": maps.plot(layer),
        "overview": maps.plot_overview(thinned(maps.layers, 6)),
        "amplification": maps.plot_amplification(layer=layer),
        "similarity": maps.plot_similarity(),
        name: answer.plot(),
    }
    if cited is not None:
        pictures["cite"] = cited.plot()
    if why is not None:
        pictures |= {"why-flow": why.plot_flow(), "why-components": why.plot_components()}
    for name, picture in pictures.items():
        save_figure(picture, folder / f"{lens.name}-{name}.png")
        echo(f"{folder / f'{lens.name}-{name}.png'}: a picture of {name}")

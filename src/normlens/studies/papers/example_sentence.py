"""The authors' example: maps of one sentence pair under four methods. Kobayashi et al. 2021."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.errors import listed, quoted
from normlens.figures.canvas import FRAME, INK, cut_labels
from normlens.figures.heat_maps import Panel, draw_panel, label_tokens
from normlens.measures.maps import normalise
from normlens.results.maps import Maps
from normlens.scopes import layers_in_words, thinned
from normlens.studies.papers.mixing import attention_block
from normlens.studies.papers.published import Evidence, Experiment
from normlens.studies.papers.settings import Settings
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, TEXT, fonts_for, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from normlens.inputs.text import Text
    from normlens.lens import Lens

FILE = "sentence.safetensors"
PAIR = ("The clock stopped at noon.", "Nobody noticed it.")
SINGLE = "The clock stopped at noon, and nobody noticed it."
_LAYERS = 12  # in the figure, at most
_ROWS = 6  # layers below each other; more stand in a second block beside the first
_AXES = "rows: target i (output), columns: source j (input); layers counted from 1"


def methods(scopes: list[str]) -> list[str]:
    """Choose the four methods of the example: α, with half a residual, norms, all before FF.

    ATTN-W, ATTNRES-W, ATTN-N and, in BERT, ATTNRESLN-N.
    """
    wanted = {"ATTN-W", "ATTNRES-W", "ATTN-N", attention_block(scopes)}
    return [scope for scope in scopes if scope in wanted]


def chosen_text(lens: Lens, sentence: str | None) -> Text:
    """Choose the user's text ("first|second" is a pair), else a pair if the model takes pairs."""
    if sentence is None:
        return PAIR if _takes_pairs(lens) else SINGLE
    first, bar, second = sentence.partition("|")
    return (first.strip(), second.strip()) if bar else sentence


def _takes_pairs(lens: Lens) -> bool:
    """Whether the tokenizer puts special tokens between two texts."""
    added = getattr(lens.tokenizer, "num_special_tokens_to_add", None)
    return not lens.causal and added is not None and added(pair=True) > added(pair=False)


def write_sentence(lens: Lens, settings: Settings, folder: Path) -> Path:
    """Write the maps of the sentence (or pair) under the four methods, all layers."""
    text = chosen_text(lens, settings.sentence)
    maps = lens.maps(text, scopes=methods(lens.scopes))
    # Where layers differ, those that all methods can be compared in.
    maps = maps.choose(maps.layers_of(*maps.scopes))
    return maps.save(folder / FILE, overwrite=True)


def sentence(evidence: Evidence) -> Result | None:
    """Show the maps, and where their mass lies."""
    if not (evidence.folder / FILE).is_file():
        return None
    maps = Maps.load(evidence.folder / FILE)
    shown = thinned(maps.layers, _LAYERS)
    table = shares(maps)
    some = len(shown) < len(maps.layers)
    which = f"{layers_in_words(layer + 1 for layer in shown)} of {len(maps.layers)}, counted from 1"
    return Result(
        tables={
            "sentence": Table(
                table,
                "Where the mass of each map lies, every row summing to 1: per cent on the diagonal "
                "(a token's own share) and, if there are special tokens, per cent that they have "
                "in others (off the diagonal).",
                dict.fromkeys(list(table)[1:], ".1f"),
            )
        },
        figures={
            "sentence": Figure(
                lambda: _draw(maps, shown),
                f"Maps of {listed(quoted(maps.text)) or 'a text'} under {listed(maps.scopes)}, "
                + (which if some else "all layers")
                + ". Every row sums to 1; the colours (on a square-root scale) mean the same in "
                "all maps. Pairs that the attention does not allow are grey.",
            )
        },
        sentences=["The diagonal is what a token keeps of itself, the rest comes from others."],
    )


def shares(maps: Maps) -> pd.DataFrame:
    """Per cent of each map's mass on the diagonal, and from special tokens off the diagonal."""
    special = np.array(maps.special, dtype=bool)
    columns: dict[str, object] = {"layer": [layer + 1 for layer in maps.layers]}
    for scope in maps.scopes:
        mass = normalise(maps[scope].astype(np.float64), "target")  # (layer, i, j)
        total = mass.sum(axis=(1, 2))
        diagonal = np.diagonal(mass, axis1=1, axis2=2)  # (layer, i)
        columns[f"{scope} diagonal"] = 100 * diagonal.sum(axis=1) / total
        if special.any():
            from_special = mass[..., special].sum(axis=(1, 2)) - diagonal[:, special].sum(axis=1)
            columns[f"{scope} special"] = 100 * from_special / total
    return pd.DataFrame(columns)


def _draw(maps: Maps, layers: list[int]) -> Drawing:
    """Draw layers below each other and methods side by side; deep models in two blocks."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    tokens = cut_labels(maps.tokens, 12)
    blocks = 1 if len(layers) <= _ROWS else 2
    rows = -(-len(layers) // blocks)
    side = min(max(0.07 * len(tokens), 1.2 if blocks == 1 else 0.95), 1.9)
    norm = PowerNorm(0.5, 0, 1)
    with fonts_for(tokens):
        columns = blocks * len(maps.scopes)
        figure, grid = panels(columns, rows, width=side + 0.3, height=side + 0.15)
        for axes in grid:
            axes.set_visible(False)
        for place, layer in enumerate(layers):
            block, row = divmod(place, rows)
            lowest = row == rows - 1 or place == len(layers) - 1
            for number, scope in enumerate(maps.scopes):
                axes = grid[row * columns + block * len(maps.scopes) + number]
                axes.set_visible(True)
                k = maps.layers.index(layer)
                values = normalise(maps[scope][k].astype(np.float64), "target")
                draw_panel(axes, Panel(np.ma.masked_where(~maps.allowed[k], values), norm, "Blues"))
                axes.set(facecolor="#e9e4dc", xticks=[], yticks=[])
                axes.spines[:].set(linewidth=0.5, color=FRAME)
                if row == 0:
                    axes.set_title(scope, fontsize=TEXT, color=INK, loc="left", pad=3)
                if number == 0:
                    label_tokens(axes.yaxis, tokens, side, SMALL)
                    axes.set_ylabel(f"layer {layer + 1}", fontsize=TEXT, color=INK)
                if lowest:
                    label_tokens(axes.xaxis, tokens, side, SMALL)
        bar = figure.colorbar(ScalarMappable(norm, "Blues"), ax=grid, aspect=30, fraction=0.02)
        bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "0.05", "0.2", "0.5", "1"])
        bar.set_label("share of the target's row", fontsize=SMALL, color=INK)
        bar.ax.tick_params(labelsize=SMALL - 0.5, length=1.5, width=0.5, pad=1.5, colors=INK)
        bar.outline.set_linewidth(0.4)
        figure.supxlabel(_AXES, fontsize=SMALL, color=INK)
    return figure


EXAMPLE_SENTENCE = Experiment(
    name="sentence",
    title="The maps of one sentence pair",
    source="Kobayashi et al. 2021, the authors' example",
    question="What do the methods show of one text, layer by layer?",
    method=(
        "The maps of one text (nothing is masked), each row divided by its sum so that weights "
        "and norms can be set side by side. The figure's square-root scale of colours brings "
        "out small values beside a strong diagonal."
    ),
    needs="model",
    work=sentence,
    absent="the maps of the sentence were not computed; run normlens reproduce mixing",
)

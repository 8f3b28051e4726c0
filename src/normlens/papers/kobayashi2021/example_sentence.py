"""The authors' example: maps of one sentence pair under four methods. Kobayashi et al. 2021."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.errors import listed, quoted
from normlens.figures.canvas import (
    FRAME,
    INK,
    MARGIN,
    Fonts,
    Sheet,
    cut_label,
    fonts_for,
    require_matplotlib,
)
from normlens.measures import normalise
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2021.mixing_table import attention_block
from normlens.papers.settings import Settings
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import SMALL, TEXT
from normlens.results.maps import Maps
from normlens.scopes import layers_in_words, thinned

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
                "(a token's own share)"
                + (
                    " and per cent that special tokens have in others (off the diagonal)."
                    if any(maps.special)
                    else "."
                ),
                dict.fromkeys(list(table)[1:], ".1f"),
            )
        },
        figures={
            "sentence": Figure(
                lambda: _draw(maps, shown),
                f"Maps of {_quoted(maps)} under {listed(maps.scopes)}, "
                + (which if some else "all layers")
                + ". Every row sums to 1; the colours (on a square-root scale) mean the same in "
                "all maps." + _blank(maps),
            )
        },
        sentences=_sentences(maps, table),
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


def _quoted(maps: Maps) -> str:
    return listed(quoted(maps.text)) or "a text"


def _blank(maps: Maps) -> str:
    return "" if maps.allowed.all() else " Pairs that the attention does not allow are grey."


def _draw(maps: Maps, layers: list[int]) -> Drawing:
    """Draw layers below each other and methods side by side; deep models in two blocks."""
    require_matplotlib()
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm

    tokens = [cut_label(token, 12) for token in maps.tokens]
    fonts = fonts_for([*tokens, *maps.scopes, "…"])
    blocks = 1 if len(layers) <= _ROWS else 2
    rows = -(-len(layers) // blocks)
    n = len(tokens)
    side = min(max(0.07 * n, 1.2 if blocks == 1 else 0.95), 1.9)
    cell = 72 * side / n  # points per token
    size = min(max(0.9 * cell, 5.0), SMALL)
    labelled = range(0, n, max(1, math.ceil(size / cell)))
    room = max(fonts.width(tokens[k], size) for k in labelled) + 0.05
    gap, head, word = 0.06, 0.24, 0.17
    left = word + room
    block = left + len(maps.scopes) * (side + gap)
    width = MARGIN + blocks * (block + 0.12) + 0.5
    height = MARGIN + head + rows * (side + gap) + room + 0.14 + MARGIN
    sheet = Sheet(width, height, fonts)
    norm = PowerNorm(0.5, 0, 1)
    colours = colormaps["Blues"].with_extremes(bad="#e9e4dc")
    for place, layer in enumerate(layers):
        column, row = divmod(place, rows)
        x0 = MARGIN + column * (block + 0.12)
        y = MARGIN + head + row * (side + gap)
        at = {"rotation": 90, "va": "center", "ha": "left"}
        sheet.text(x0, y + side / 2, f"layer {layer + 1}", TEXT, **at)
        lowest = row == rows - 1 or place == len(layers) - 1
        for number, scope in enumerate(maps.scopes):
            x = x0 + left + number * (side + gap)
            axes = sheet.axes(x, y, side, side)
            k = maps.layers.index(layer)
            values = normalise(maps[scope][k].astype(np.float64), "target")
            shown = np.ma.masked_where(~maps.allowed[k], values)
            axes.imshow(shown, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
            if row == 0:
                sheet.text(x, y - 0.05, scope, TEXT, va="bottom")
            _label(axes, fonts, tokens, labelled, size, left=number == 0, below=lowest)
    bar = sheet.axes(width - MARGIN - 0.42, MARGIN + head, 0.08, min(2.0, rows * side))
    scale = sheet.figure.colorbar(ScalarMappable(norm, colours), cax=bar)
    scale.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "0.05", "0.2", "0.5", "1"])
    scale.set_label("share of the target's row", fontsize=SMALL, color=INK)
    bar.tick_params(labelsize=SMALL - 0.5, length=1.5, width=0.5, pad=1.5, colors=INK)
    scale.outline.set_linewidth(0.4)
    middle = MARGIN + left + len(maps.scopes) * (side + gap) / 2
    sheet.text(middle, height - MARGIN, _AXES, SMALL, va="bottom", ha="center")
    return sheet.figure


def _label(
    axes: Any,
    fonts: Fonts,
    tokens: list[str],
    labelled: range,
    size: float,
    *,
    left: bool,
    below: bool,
) -> None:
    """Write tokens at the left and lower edges."""
    text = [fonts.drawable(tokens[k]) for k in labelled]
    font = {"fontproperties": fonts.properties(size), "parse_math": False, "color": INK}
    axes.set_xticks(list(labelled) if below else [])
    axes.set_yticks(list(labelled) if left else [])
    if below:
        axes.set_xticklabels(text, rotation=90, **font)
    if left:
        axes.set_yticklabels(text, **font)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set_linewidth(0.4)
        spine.set_color(FRAME)


def _sentences(maps: Maps, table: pd.DataFrame) -> list[str]:
    mean = table.drop(columns="layer").mean()
    number = words.number
    over = f"On average over {len(table)} layers, " if len(table) > 1 else "In the only layer, "
    sentences = [
        over
        + listed([f"{number(mean[f'{s} diagonal'], 0)} % of {s}" for s in maps.scopes])
        + " lie on the diagonal."
    ]
    if any(maps.special):
        sentences.append(
            "Special tokens have a share in the other tokens of "
            + listed([f"{number(mean[f'{s} special'], 0)} % by {s}" for s in maps.scopes])
            + "."
        )
    return sentences


EXPERIMENT = Experiment(
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

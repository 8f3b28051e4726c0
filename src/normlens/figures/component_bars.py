"""What each component of each layer adds to a score, and each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.figures.canvas import (
    COLOURS,
    FRAME,
    INK,
    MARGIN,
    NOTE,
    TITLE,
    Head,
    Notes,
    Sheet,
    require_matplotlib,
)
from normlens.figures.captions import made, model_name, text_lines, tick
from normlens.figures.fonts import fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.figures.signed_colours import DIVERGING, NO_TOKEN, SignedColours
from normlens.figures.signed_matrix import colour_bar
from normlens.results.contribution_rows import NO_TOKEN_WORDS
from normlens.results.explanation_words import RES, score_words, total_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation

_LEFT, _BARS, _GAP, _BAR = 0.62, 3.4, 0.5, 0.5  # inches
_END = "end"  # what stands behind the last layer


def plot_components(why: Explanation, *, cmap: str = DIVERGING, ax: Axes | None = None) -> Figure:
    """Draw what each layer's components add to the score, as bars, and each head, as a heat map.

    All positions are summed. What passes a layer by its residual connections alone (RES) is not
    drawn; with it, a layer's bars and the biases from that layer on sum to the score. `ax` takes
    the bars into axes of yours.
    """
    require_matplotlib()
    groups = _groups(why)
    layers = len(why.nodes)
    if ax is not None:
        _draw_bars(ax, groups, why.layer_names)
        ax.legend(fontsize="small")
        ax.set(title=why.question, xlabel="added to the score", ylabel="layer")
        return figure_of(ax)

    by_head, head_names = _by_head(why)
    heading = f"{model_name(why)}: {why.question}"
    about = [score_words(why), total_words(why)]
    notes = [
        "Left: how much of the score passes each block of a layer first, over all positions; the "
        "rest passes none of them (RES, not drawn). Biases of all layers and what the tokens "
        f"contribute sum to the score. Right: the part of the attention ({_attentions(why)}) by "
        "head, red above 0, blue below.",
        made(why.provenance, why.completeness),
    ]
    fonts = fonts_for([heading, *text_lines(why), *about, "□…−–"])
    row = min(max(0.155, 2.0 / (layers + 1)), 0.4)
    height, cell = row * (layers + 1), min(max(row, 0.155), 1.8 / by_head.shape[1] + 0.05)
    cell = max(cell, 0.07)
    heat = cell * by_head.shape[1]
    left = _LEFT + (0.25 if why.has_two_sequences else 0.0)
    width = max(left + _BARS + _GAP + heat + _BAR + MARGIN, 5.6)
    head, foot = Head(heading, [*text_lines(why), *about], fonts, width), Notes(notes, fonts, width)
    legend = 0.22
    top = MARGIN + head.height + legend
    sheet = Sheet(width, top + height + 0.42 + foot.height + MARGIN, fonts)
    head.draw(sheet)
    _legend(sheet, groups, left, top - legend)
    bars = sheet.axes(left, top, _BARS, height)
    _draw_bars(bars, groups, why.layer_names)
    _style(bars, fonts, "added to the score")
    bars.set_ylabel("layer", fontproperties=fonts.properties(NOTE), color=INK, va="center")
    bars.yaxis.set_label_coords((0.2 - left) / _BARS, 0.5)
    x = left + _BARS + _GAP
    title = "heads" if why.cross_heads is None else "heads of ATTN | CROSS"
    sheet.text(x, top - legend + 0.02, title, TITLE, "bold")
    image = _draw_heads(sheet.axes(x, top, heat, row * layers), by_head, head_names, cmap, fonts)
    colour_bar(sheet, image, x + heat + 0.06, top, min(row * layers, 2.0))
    foot.draw(sheet, top + height + 0.42)
    return sheet.figure


def _groups(why: Explanation) -> dict[str, tuple[str, NDArray[np.float64]]]:
    """Bars by what they stand for: a colour, and a number per layer and behind the last."""
    layers = len(why.nodes)
    groups: dict[str, tuple[str, NDArray[np.float64]]] = {}
    sums = np.nansum(why.components, axis=-1)  # (layer, component)
    for place, name in enumerate(why.component_names):
        if name != RES:  # it is most of the score, and would dwarf the others
            groups[name] = (COLOURS[place % 6], np.append(sums[:, place], 0.0))
    biases = np.zeros(layers + 1)
    for layer, _, share in why.biases:
        biases[layers if isinstance(layer, str) else layer] += share
    groups[NO_TOKEN_WORDS] = (NO_TOKEN, biases)
    return groups


def _attentions(why: Explanation) -> str:
    return "ATTN and, behind the gap, CROSS" if why.has_two_sequences else "ATTN"


def _by_head(why: Explanation) -> tuple[NDArray[np.float64], list[str]]:
    """What each head adds over all positions, (layer, head), and the heads' names.

    Heads of CROSS stand behind those of ATTN, with a gap between them.
    """
    own = why.heads.sum(-1, dtype=np.float64)
    names = [str(head) for head in range(own.shape[1])]
    if why.cross_heads is None:
        return own, names
    cross = why.cross_heads.sum(-1, dtype=np.float64)
    gap = np.full((len(own), 1), np.nan)
    return np.hstack([own, gap, cross]), [*names, "", *(str(h) for h in range(cross.shape[1]))]


def _draw_bars(
    axes: Any, groups: dict[str, tuple[str, NDArray[np.float64]]], names: list[str]
) -> None:
    """Bars beside each other in each layer's row, layer 0 on top."""
    layers = len(names)
    rows = np.arange(layers + 1)
    thick = 0.84 / len(groups)
    for place, (name, (colour, values)) in enumerate(groups.items()):
        at = rows + thick * (place - (len(groups) - 1) / 2)
        axes.barh(at, values, height=thick, color=colour, label=name, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.6)
    step = max(1, round(layers / 16))
    shown = list(range(0, layers, step))
    short = [name.replace("coder", "c.") for name in names]
    axes.set_yticks([*shown, layers], [*(short[layer] for layer in shown), _END])
    axes.set_ylim(layers + 0.5, -0.5)
    for boundary in range(1, layers + 1):
        axes.axhline(boundary - 0.5, color="#e6e6e6", linewidth=0.4, zorder=0)


def _legend(
    sheet: Sheet, groups: dict[str, tuple[str, NDArray[np.float64]]], x: float, y: float
) -> None:
    from matplotlib.patches import Rectangle

    for name, (colour, _) in groups.items():
        corner = (x / sheet.width, 1 - (y + 0.13) / sheet.height)
        size = (0.1 / sheet.width, 0.1 / sheet.height)
        sheet.figure.add_artist(Rectangle(corner, *size, facecolor=colour, linewidth=0))
        sheet.text(x + 0.14, y + 0.02, name, TITLE)
        x += 0.34 + sheet.fonts.width(name, TITLE)


def _style(axes: Any, fonts: Any, words: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.tick_params(labelsize=NOTE, length=2, width=0.5, color=FRAME, labelcolor=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(words, fontproperties=fonts.properties(NOTE), labelpad=2)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)


def _draw_heads(
    axes: Any, by_head: NDArray[np.float64], names: list[str], cmap: str, fonts: Any
) -> Any:
    colours = SignedColours(by_head, cmap)
    image = axes.imshow(
        by_head, cmap=cmap, norm=colours.norm, interpolation="nearest", aspect="auto"
    )
    heads = by_head.shape[1]
    _style(axes, fonts, "head")
    shown = [k for k in range(0, heads, max(1, round(heads / 8))) if names[k]]
    axes.set_xticks(shown, [names[k] for k in shown])
    axes.set_yticks([])
    return image

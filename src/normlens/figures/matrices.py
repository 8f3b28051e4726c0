"""Matrices of signed numbers: components by layer, cosines of two texts, next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, quoted
from normlens.figures.canvas import (
    COLOURS,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    TITLE,
    Fonts,
    Head,
    Notes,
    Sheet,
    cut_label,
    fonts_for,
    made,
    model_name,
    require_matplotlib,
    text_lines,
    tick,
)
from normlens.figures.colours import (
    DIVERGING,
    NO_TOKEN,
    SIGNED_SCALES,
    SignedColours,
    Ticks,
    left_out_note,
)
from normlens.figures.explanations import TokenStrip
from normlens.figures.heat_maps import figure_of
from normlens.results.words import (
    NO_TOKEN_WORDS,
    RES,
    cosine_words,
    parts_words,
    score_words,
    total_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation, Explanations


# A matrix of signed numbers between two lists of tokens, with a colour bar.


_BAR_GAP, _BAR_WIDTH, _BAR_TICKS = 0.08, 0.07, 0.45
_WORD = 0.2
_WIDEST = 30.0  # inches; the cells of very long texts are smaller


@dataclass(frozen=True)
class SignedMatrix:
    """A heat map (row, column) laid out in inches, its last rows and columns set apart."""

    values: Any  # (row, column)
    rows: Ticks
    columns: Ticks
    words: tuple[str, str]  # what rows and columns are
    colours: SignedColours
    fonts: Fonts
    size: tuple[float, float]  # width and height of the map itself, inches
    apart: tuple[int, int] = (0, 0)  # rows and columns at the end that are no tokens
    first: int = 0  # columns before the line between two sequences; 0: there is one

    @classmethod
    def fitting(
        cls,
        values: Any,
        rows: Sequence[str],
        columns: Sequence[str],
        words: tuple[str, str],
        colours: SignedColours,
        fonts: Fonts,
        apart: tuple[int, int] = (0, 0),
        first: int = 0,
    ) -> SignedMatrix:
        """Cells are square, and as large as a page allows."""
        most = max(len(rows), len(columns))
        cell = min(max(0.09, 4.2 / most), 0.34, _WIDEST / most)
        width, height = cell * len(columns), cell * len(rows)
        return cls(
            values,
            Ticks.fitting(list(rows), height, fonts, LARGEST_TICK),
            Ticks.fitting(list(columns), width, fonts, LARGEST_TICK),
            words,
            colours,
            fonts,
            (width, height),
            apart,
            first,
        )

    @property
    def left(self) -> float:
        """The room of the labels at the left."""
        return self.rows.room + _WORD

    @property
    def below(self) -> float:
        """The room of the labels below."""
        return self.columns.room + _WORD

    @property
    def width(self) -> float:
        """All of it, with labels and colour bar."""
        return self.left + self.size[0] + _BAR_GAP + _BAR_WIDTH + _BAR_TICKS

    def draw(self, sheet: Sheet, x: float, y: float) -> Any:
        """Draw the map with its upper left corner at (x, y) inches."""
        width, height = self.size
        axes = sheet.axes(x, y, width, height)
        image = axes.imshow(
            self.values,
            cmap=self.colours.cmap,
            norm=self.colours.norm,
            interpolation="nearest",
            aspect="auto",
        )
        style = {"parse_math": False, "color": INK}
        for ticks, place in ((self.rows, axes.set_yticks), (self.columns, axes.set_xticks)):
            place(
                ticks.positions,
                ticks.labels,
                fontproperties=self.fonts.properties(ticks.size),
                **style,
            )
        for label in axes.get_xticklabels():
            label.set_rotation(90)
        word = {"fontproperties": self.fonts.properties(TITLE), "color": INK, "va": "center"}
        axes.set_ylabel(self.words[0], **word)
        axes.yaxis.set_label_coords(-(self.rows.room + 0.1) / width, 0.5)
        axes.set_xlabel(self.words[1], **word)
        axes.xaxis.set_label_coords(0.5, -(self.columns.room + 0.1) / height)
        axes.tick_params(length=1.5, width=0.5, pad=1.5, color=FRAME)
        for axis, line in ((0, axes.axhline), (1, axes.axvline)):
            if self.apart[axis]:
                edge = self.values.shape[axis] - self.apart[axis] - 0.5
                line(edge, color=INK, linewidth=0.8, linestyle=(0, (3, 2)))
        if self.first:
            axes.axvline(self.first - 0.5, color=INK, linewidth=0.8)
        for spine in axes.spines.values():
            spine.set_linewidth(0.5)
            spine.set_color(FRAME)
        colour_bar(sheet, image, x + width + _BAR_GAP, y, min(height, 2.4))
        return axes


def colour_bar(sheet: Sheet, image: Any, x: float, y: float, height: float) -> None:
    """A colour bar with its upper left corner at (x, y) inches."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    bar = sheet.figure.colorbar(image, cax=sheet.axes(x, y, _BAR_WIDTH, height))
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)


# What each component of each layer adds to a score, and each head.


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


# A cosine of two texts: both strips of tokens, and the matrix of their pairs.


_NO_TOKEN = "no token"
_NARROWEST = 6.0
_LABEL, _STRIP_GAP = 0.16, 0.06


def plot_cosine(
    pair: Cosine,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw which tokens made a cosine: each text's tokens, and the matrix of their pairs.

    A token's colour in a strip is what it has with all of the other text. The matrix's last row and
    column are what a token has with the other text's biases, and their corner what the biases have
    with each other, so that all cells sum to the cosine. `colour` "sqrt" brings out small parts of
    the matrix; the other choice is "linear". `ax` takes the matrix alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    values = with_biases(pair)
    colours = SignedColours(values, cmap, colour)
    rows, columns = (
        [*(cut_label(token, max_label) for token in tokens), _NO_TOKEN]
        for tokens in (pair.tokens_a, pair.tokens_b)
    )
    words = ("text A", "text B")
    if ax is not None:
        ax.imshow(values, norm=colours.norm, cmap=cmap, interpolation="nearest", aspect="auto")
        ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        ax.set_yticks(range(len(rows)), rows, parse_math=False)
        ax.set(ylabel=words[0], xlabel=words[1], title=cosine_words(pair))
        return figure_of(ax)

    heading = f"{model_name(pair)}: {cosine_words(pair)}"
    texts = {"A": pair.text_a, "B": pair.text_b}
    about = [f"{name}: {line}" for name, text in texts.items() for line in quoted(text)]
    about.append(parts_words(pair))
    tokens = [*pair.tokens_a, *pair.tokens_b]
    fonts = fonts_for([*tokens, heading, *about, "□…−–×"])
    apart = (1, 1)
    matrix = SignedMatrix.fitting(values, rows, columns, words, colours, fonts, apart)
    width = max(MARGIN + matrix.width + MARGIN, _NARROWEST)
    margins = pair.margins
    of_strips = SignedColours(np.concatenate([margins.a, margins.b]), cmap)
    strips = [
        TokenStrip(tokens, list(map(float, own)), pair.value - own.sum(), of_strips, fonts, width)
        for tokens, own in ((pair.tokens_a, margins.a), (pair.tokens_b, margins.b))
    ]
    notes = [
        "Strips: what a token has of the cosine with all of the other text. Matrix: the pairs of "
        f"tokens, on a {SIGNED_SCALES[colour]} scale; last row and column: with the other text's "
        "biases; all cells sum to the cosine. Red above 0, blue below.",
        *left_out_note(matrix.rows, matrix.columns),
        made(pair.provenance, pair.completeness, "parts"),
    ]
    head, foot = Head(heading, about, fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height
    strips_height = sum(strip.height + _LABEL + _STRIP_GAP for strip in strips)
    bottom = top + strips_height + 0.15 + matrix.size[1] + matrix.below
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    y = top
    for word, strip in zip(words, strips, strict=True):
        sheet.text(MARGIN, y, word, TITLE, "bold")
        strip.draw(sheet, y + _LABEL)
        y += _LABEL + strip.height + _STRIP_GAP
    matrix.draw(sheet, MARGIN + matrix.left, y + 0.15)
    foot.draw(sheet, bottom)
    return sheet.figure


def with_biases(pair: Cosine) -> NDArray[np.float64]:
    """The matrix with a row and a column for the biases, which sums to the cosine."""
    return np.block(
        [
            [pair.matrix, pair.a_with_bias[:, None]],
            [pair.b_with_bias[None], np.array([[pair.bias]])],
        ]
    )


# What made each token of a text likely: predicted tokens × source tokens.


def plot_explanations(
    explanations: Explanations,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw what each token (columns) contributes to the score of each next token (rows).

    The last column is what no token owns; tokens that come later stay blank. `colour` "sqrt" brings
    out small contributions beside large ones; the other choice is "linear". `ax` takes the matrix
    alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    contributions = np.asarray(explanations.contributions, dtype=float)
    remainders = np.array([each.remainder for each in explanations])
    later = np.zeros(contributions.shape, dtype=bool)
    for row, each in enumerate(explanations):
        later[row, len(explanations.tokens) if each.read_at is None else each.read_at + 1 :] = True
    values = np.ma.masked_where(
        np.column_stack([later, np.zeros(len(later), dtype=bool)]),
        np.column_stack([contributions, remainders]),
    )
    colours = SignedColours(values.compressed(), cmap, colour)
    rows = [cut_label(token, max_label) for token in explanations.predicted]
    columns = [*(cut_label(token, max_label) for token in explanations.tokens), _NO_TOKEN]
    words = ("predicted token", "source j (input)")
    first = explanations[0]
    sources, title = first.encoder_tokens or 0, "why each next token"
    if sources:
        words = ("generated token", "source, then prefix of the target")
        title = "why each token of the target"
    if ax is not None:
        ax.imshow(values, norm=colours.norm, cmap=cmap, interpolation="nearest", aspect="auto")
        ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        ax.set_yticks(range(len(rows)), rows, parse_math=False)
        ax.set(xlabel=words[1], ylabel=words[0], title=title)
        if sources:
            ax.axvline(sources - 0.5, color="black", linewidth=0.8)
        return figure_of(ax)

    heading = f"{model_name(first)}: {title}"
    fonts = fonts_for([*rows, *columns, heading, *text_lines(first), "□…−–"])
    matrix = SignedMatrix.fitting(
        values, rows, columns, words, colours, fonts, apart=(0, 1), first=sources
    )
    notes = [
        "Colour: contribution to the predicted token's score, red above 0, blue below, on a "
        f"{SIGNED_SCALES[colour]} scale; each row sums to the score. Last column: what no token "
        "owns (biases). Blank: tokens that come later.",
        *left_out_note(matrix.rows, matrix.columns),
        made(first.provenance, explanations.completeness),
    ]
    width = max(MARGIN + matrix.width + MARGIN, 5.0)
    head, foot = Head(heading, text_lines(first), fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height + 0.05
    bottom = top + matrix.size[1] + matrix.below
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    matrix.draw(sheet, MARGIN + matrix.left, top)
    foot.draw(sheet, bottom)
    return sheet.figure

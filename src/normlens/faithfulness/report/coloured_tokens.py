"""Texts whose tokens have the colours of their scores: HTML for the page, a matrix for print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.figures.canvas import INK, drawable, families_for
from normlens.figures.colours import DIVERGING, NEGATIVE, POSITIVE
from normlens.reports.drawing import GREY, SMALL, panels

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure as Drawing

_STRONGEST = 0.85  # opacity of the largest score
_WHITE_FROM = 0.55  # opacity from which dark ink is hard to read


def style() -> str:
    """Read the CSS of coloured tokens."""
    return (files("normlens.faithfulness.report") / "tokens.css").read_text("utf-8")


@dataclass(frozen=True)
class ColouredText:
    """One text and every method's scores of its tokens."""

    tokens: Sequence[str]
    ordinary: NDArray[np.bool_]
    methods: Sequence[str]
    scores: NDArray[np.float64]  # (method, token)
    values: Sequence[float]  # of the methods, in the protocol that ranks them
    evidence: NDArray[np.bool_] | None = None  # tokens of the word that must decide, if one must

    def strengths(self) -> NDArray[np.float64]:
        """Scores against each method's largest, −1 to 1; NaN for tokens that stay."""
        kept = np.where(self.ordinary, self.scores, np.nan)
        # A text may have no ordinary token, or one whose scores are all 0.
        largest = np.max(np.abs(kept), axis=1, initial=0, where=~np.isnan(kept))
        return kept / np.where(largest > 0, largest, 1)[:, None]


def page(text: ColouredText) -> Markup:
    """Write one line of coloured tokens per method."""
    from markupsafe import Markup

    marked = [False] * len(text.tokens) if text.evidence is None else text.evidence.tolist()
    frame = "; framed: the deciding word" if any(marked) else ""
    rows = []
    for method, value, strengths in zip(text.methods, text.values, text.strengths(), strict=True):
        # Spaces let a line break between tokens.
        tokens = Markup(" ").join(map(_token, text.tokens, strengths.tolist(), marked))
        shown = "" if value != value else f"{value:.2f}".replace("-", "−")
        by = Markup('<div class="by"><b>{}</b> <span>{}</span></div>').format(method, shown)
        rows.append(by + Markup("<div>{}</div>").format(tokens))
    key = Markup(
        '<div class="key"><span>against the score</span><span class="bar" '
        'style="background:linear-gradient(90deg,{},#fff,{})"></span><span>for it, by the '
        "method's largest score in this text; grey tokens stay{}</span></div>"
    ).format(_colour(NEGATIVE, _STRONGEST), _colour(POSITIVE, _STRONGEST), frame)
    return Markup('<div class="tokens">\n{}\n</div>\n{}').format(Markup("\n").join(rows), key)


def _token(token: str, strength: float, evidence: bool) -> Markup:
    from markupsafe import Markup

    if strength != strength:
        return Markup('<i class="special">{}</i>').format(token)
    opacity = _STRONGEST * abs(strength)
    ink = "#fff" if opacity > _WHITE_FROM else "#1a1a1a"
    colour = _colour(POSITIVE if strength >= 0 else NEGATIVE, opacity)
    title = f"{100 * strength:+.0f} %".replace("-", "−")
    marked = Markup(' class="evidence"') if evidence else ""
    return Markup('<i{} style="background:{};color:{}" title="{}">{}</i>').format(
        marked, colour, ink, title, token
    )


def _colour(hexadecimal: str, opacity: float) -> str:
    red, green, blue = (int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.2f})"


def draw_matrix(text: ColouredText) -> Drawing:
    """Draw methods × tokens as a heat map with the tokens written below."""
    import matplotlib

    labels = [token if len(token) <= 16 else token[:15] + "…" for token in text.tokens]
    with matplotlib.rc_context({"font.family": families_for([*labels, *text.methods])}):
        rows, columns = len(text.methods), len(labels)
        width = max(4.5, min(11.0, 1.6 + 0.2 * columns))
        letters = max(map(len, labels), default=1)
        figure, (panel,) = panels(width=width, height=0.35 + 0.2 * rows + 0.075 * letters)
        colours = matplotlib.colormaps[DIVERGING].with_extremes(bad="#eeeeee")
        drawn = panel.imshow(
            np.ma.masked_invalid(text.strengths()), cmap=colours, vmin=-1, vmax=1, aspect="auto"
        )
        size = SMALL if columns <= 48 else 5.0
        panel.set_yticks(range(rows), map(drawable, text.methods), fontsize=SMALL)
        panel.set_xticks(range(columns), map(drawable, labels), fontsize=size, rotation=90)
        deciding = np.zeros(columns, bool) if text.evidence is None else text.evidence
        for tick, ordinary, decides in zip(
            panel.get_xticklabels(), text.ordinary, deciding, strict=True
        ):
            tick.set(color=INK if ordinary else GREY, parse_math=False)
            tick.set_weight("bold" if decides else "normal")
        for tick in panel.get_yticklabels():
            tick.set_parse_math(False)
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
        panel.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        panel.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        panel.grid(which="minor", color="white", lw=1)
        panel.tick_params(which="minor", length=0)
        bar = figure.colorbar(drawn, ax=panel, ticks=[-1, 0, 1], shrink=0.9, aspect=12, pad=0.015)
        bar.ax.set_yticklabels(["against", "0", "for"], fontsize=SMALL)
        bar.ax.tick_params(length=2, width=0.5)
        bar.outline.set_linewidth(0.4)
        return figure

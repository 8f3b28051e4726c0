"""The authors' notebook: how much the attention's transformation expands vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.figures.canvas import COLOURS
from normlens.papers.base import Evidence, Experiment
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import SMALL, layer_ticks, panels, style
from normlens.scopes import layers_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FILE = "expansion.csv"
_AS_PUBLISHED = "as published"
_DIGITS = 3  # of the published rates


def expansion(evidence: Evidence) -> Result | None:
    """Show the expansion rate of every layer."""
    if not (evidence.folder / FILE).is_file():
        return None
    rows = pd.read_csv(evidence.folder / FILE)
    layers, rates = rows[words.LAYER], rows["rate"]
    columns = {"layer": layers.astype(str), "rate": rates}
    as_published = rows["as_published"] if "as_published" in rows else pd.Series(dtype=float)
    # Models without an output bias, or of another width, have only the one form.
    both = as_published.notna().all() and (as_published - rates).abs().max() >= 0.5 * 10**-_DIGITS
    if both:
        columns[_AS_PUBLISHED] = as_published
    table = pd.DataFrame(columns)
    mean = {name: table[name].mean() for name in list(columns)[1:]}
    table = pd.concat([table, pd.DataFrame([{"layer": "mean", **mean}])], ignore_index=True)
    theirs = as_published if both else rates
    measured = {f"expansion/layer-{n}": float(v) for n, v in zip(layers, theirs, strict=True)} | {
        "expansion/mean": float(theirs.mean())
    }
    return Result(
        tables={
            "expansion": Table(
                table,
                "Expansion rate of the attention's transformation x ↦ (xW_V + b_V)W_O + b_O, per "
                "layer, from the weights alone."
                + (
                    " “As published”: with b_O placed as in the authors' program, which is what "
                    "the published rates are."
                    if both
                    else ""
                ),
                {"rate": f".{_DIGITS}f", _AS_PUBLISHED: f".{_DIGITS}f"},
            )
        },
        figures={
            "expansion": Figure(
                lambda: _draw(layers.to_numpy(), rates.to_numpy()),
                "Expansion rate of the attention's transformation per layer. Above 1 it makes "
                "vectors longer on average over all directions, below 1 (dashed) shorter.",
            )
        },
        sentences=_sentences(layers, rates),
        comparisons=compare("expansion/", measured, {"name": evidence.settings.model}, ""),
        summary={"Expansion rate, mean over layers": float(rates.mean())},
    )


def _draw(layers: np.ndarray, rates: np.ndarray) -> Drawing:
    figure, (axes,) = panels(width=max(3.0, min(6.8, 0.9 + 0.27 * len(layers))), height=2.3)
    axes.bar(layers, rates, width=0.62, color=COLOURS[0])
    axes.axhline(1, color="black", lw=0.8, ls=(0, (4, 2)))
    top = max(float(rates.max()), 1.0)
    if len(layers) <= 12:
        for layer, rate in zip(layers, rates, strict=True):
            axes.text(layer, rate + 0.02 * top, f"{rate:.2f}", ha="center", fontsize=SMALL - 0.5)
    axes.set_ylim(0, 1.1 * top)
    layer_ticks(axes, int(layers.max()))
    axes.set_xlim(0.3, layers.max() + 0.7)
    style(axes, x=words.LAYER, y="expansion rate")
    return figure


def _sentences(layers: pd.Series, rates: pd.Series) -> list[str]:
    number = words.number
    if len(rates) == 1:
        return [
            f"The attention's transformation of the only layer has a rate of {number(rates[0])}."
        ]
    shrinking = layers[rates < 1]
    below = (
        "in none of the layers"
        if not len(shrinking)
        else "in all layers"
        if len(shrinking) == len(layers)
        else f"in {layers_in_words(shrinking)}"
    )
    return [
        f"The mean expansion rate is {number(rates.mean())}; it is lowest in layer "
        f"{layers[rates.idxmin()]} ({number(rates.min())}) and highest in layer "
        f"{layers[rates.idxmax()]} ({number(rates.max())}).",
        f"The transformation makes vectors shorter (a rate below 1) {below}.",
    ]


EXPERIMENT = Experiment(
    name="expansion",
    title="Expansion rate of the attention's transformation",
    source="Kobayashi et al. 2021, the authors' notebook",
    question="Does the attention's transformation of vectors make them longer or shorter?",
    method=(
        "From the weights, in float64: the Frobenius norm of the homogeneous matrix of "
        "x ↦ (xW_V + b_V)W_O + b_O, [[W_V W_O, 0], [b_V W_O + b_O, 1]] for row vectors (x, 1), "
        "divided by sqrt(d + 1): the root mean square of its singular values. All heads "
        "together, each with the values of its group. A norm before the attention, whose gain "
        "scales what it reads, is no part of it: rates of pre-LN and post-LN models are not "
        "alike. The authors' program has b_O in the last column of the second factor, so that "
        "the product is [[W_V W_O, W_V b_O], [b_V W_O, b_V·b_O + 1]]; published rates are "
        "compared with that form."
    ),
    needs="model",
    work=expansion,
    absent="the expansion rates were not computed; run normlens reproduce mixing",
)

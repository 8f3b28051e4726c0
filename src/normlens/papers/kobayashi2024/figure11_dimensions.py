"""Figure 11: the dimensions that the feed-forward block writes into. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.figures.canvas import COLOURS
from normlens.papers.base import Evidence, Experiment
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import panels, style
from normlens.scopes import layers_in_words, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_SHOWN = 3  # layers whose dimensions are drawn


def dimensions(evidence: Evidence) -> Result | None:
    """Average |value| per dimension of FF's input and output, with γ of the norm behind it."""
    values = evidence.sql(
        """
        SELECT layer + 1 AS layer, dimension, sum_input_abs / count AS input,
               sum_output_abs / count AS output, gamma, special
        FROM norms_dimensions ORDER BY layer, dimension
        """
    )
    if values.empty:
        return None
    layers = sorted(values["layer"].unique())
    share = values.groupby("layer").apply(_concentration, include_groups=False)
    has_gamma = values["gamma"].notna().any()
    peak = values.loc[values["output"].idxmax()]
    sentences = [
        f"The largest mean |value| of FF's output is {words.fixed(peak.output)}, in dimension "
        f"{peak.dimension} of layer {peak.layer}, {words.fixed(share.loc[peak.layer, 'peak'], 0)} "
        "times the median of that layer's dimensions."
    ]
    if has_gamma:
        alike = int((share["special_output"] > share["other_output"]).sum())
        sentences.append(
            "The dimensions with the lowest γ have the larger mean |value| of FF's output in "
            f"{alike} of {len(layers)} layers."
        )
    columns = ["layer", "dimension", "input", "output", "gamma", "special"]
    shown = thinned(layers, _SHOWN)
    return Result(
        tables={
            "dimensions": Table(
                values[columns],
                "Mean |value| of the feed-forward block's input and output per dimension, and γ "
                "of the normalisation behind it (Figure 11).",
                {"input": ".4f", "output": ".4f", "gamma": ".4f"},
                shown=20,
            )
        },
        figures={
            "dimensions": Figure(
                lambda: _draw(values[values["layer"].isin(shown)], has_gamma),
                "Mean |value| per dimension of FF's input and output"
                + (", γ of LN behind FF, and the special dimensions" if has_gamma else "")
                + f", in {layers_in_words(shown)}, counted from 1 (Figure 11).",
            )
        },
        sentences=sentences,
    )


def _concentration(rows: pd.DataFrame) -> pd.Series:
    special = rows["special"].to_numpy(bool)
    output = rows["output"].to_numpy()
    middle = np.median(output)
    return pd.Series(
        {
            "peak": output.max() / middle if middle else np.nan,
            "special_output": output[special].mean() if special.any() else np.nan,
            "other_output": output[~special].mean() if (~special).any() else np.nan,
        }
    )


def _draw(values: pd.DataFrame, has_gamma: bool) -> Drawing:
    rows = [("input", "mean |FF input|"), ("output", "mean |FF output|")]
    rows += [("gamma", "γ of LN")] if has_gamma else []
    layers = sorted(values["layer"].unique())
    figure, axes = panels(columns=len(layers), rows=len(rows), width=2.4, height=1.5)
    for place, panel in enumerate(axes):
        (column, label), layer = rows[place // len(layers)], layers[place % len(layers)]
        layer_values = values[values["layer"] == layer]
        panel.vlines(layer_values["dimension"], 0, layer_values[column], color="#b8b8b8", lw=0.5)
        special = layer_values[layer_values["special"]]
        panel.vlines(special["dimension"], 0, special[column], color=COLOURS[1], lw=0.9)
        panel.plot(special["dimension"], special[column], "o", color=COLOURS[1], ms=2)
        panel.margins(x=0.01)
        style(
            panel,
            x="dimension" if place // len(layers) == len(rows) - 1 else "",
            y=label if place % len(layers) == 0 else "",
            title=f"layer {layer} (counted from 1)" if place < len(layers) else "",
        )
    return figure


EXPERIMENT = Experiment(
    name="dimensions",
    title="Special dimensions",
    source="Kobayashi et al. 2024, section 6, Figure 11",
    question="Does FF write into few dimensions, and does the normalisation shrink those?",
    method=(
        "Mean |value| over all tokens of the corpus. Special dimensions are the 1 % with the "
        "lowest γ of the normalisation behind the block."
    ),
    needs="masked",
    work=dimensions,
    absent="the run has no statistics of dimensions",
)

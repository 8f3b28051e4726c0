"""Why the feed-forward block's change is undone: Kobayashi et al. 2024, section 6."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.analysis.bootstrap import mean_intervals
from normlens.layers import layers_in_words, thinned
from normlens.papers import words
from normlens.papers.base import Evidence, Experiment, Figure, Result, Table
from normlens.papers.drawing import COLOURS, layer_ticks, legend, line, panels, style
from normlens.papers.published import compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_SHOWN = 3  # layers whose dimensions are drawn


def norms(evidence: Evidence) -> Result | None:
    """‖FF(x′)‖ beside the norm of what bypasses it."""
    found = _means(evidence, "norms", ("ff_output_norm", "bypassed_norm"))
    if found.empty:
        return None
    larger = found.index[found["ff_output_norm"] > found["bypassed_norm"]]
    ratio = found["ff_output_norm"] / found["bypassed_norm"]
    count = len(found)
    known = ratio.dropna()
    sentences = []
    if len(known):
        which = (
            "in no layer"
            if not len(larger)
            else "in every layer"
            if len(larger) == count
            else f"in {layers_in_words(larger)} of {count}"
        )
        sentences = [
            f"The block's output is longer than the vector that bypasses it {which}; their ratio "
            f"lies between {words.number(known.min())} (layer {known.idxmin()}) and "
            f"{words.number(known.max())} (layer {known.idxmax()})."
        ]
    return Result(
        tables={
            "norms": Table(
                found.reset_index(),
                "Mean norm of the feed-forward block's output and of the vector that bypasses it, "
                "per layer (Figure 10), with 95 % intervals over sequences.",
                dict.fromkeys(found.columns, ".2f"),
            )
        },
        figures={
            "norms": Figure(
                lambda: _draw_norms(found),
                "Mean norm of the feed-forward block's output and of the bypassed vector, per "
                "layer (Figure 10).",
            )
        },
        sentences=sentences,
        summary={"‖FF output‖ ÷ ‖bypassed‖, mean over layers": float(known.mean())},
    )


def _means(evidence: Evidence, table: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Means over sequences per layer (from 1), with bootstrap intervals."""
    listed = ", ".join(columns)
    rows = evidence.sql(f'SELECT "index", layer + 1 AS layer, {listed} FROM {table}')
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot_table(index="index", columns="layer", values=list(columns), dropna=False)
    settings = evidence.settings
    mean, low, high = mean_intervals(
        wide.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    found = pd.DataFrame({"mean": mean, "low": low, "high": high}, index=wide.columns)
    parts: dict[str, pd.Series] = {}
    for name in columns:
        own = found.loc[name]
        parts |= {name: own["mean"], f"{name}_low": own["low"], f"{name}_high": own["high"]}
    return pd.DataFrame(parts).rename_axis("layer")


def _draw_norms(found: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.8, height=2.5)
    for place, (name, label) in enumerate(
        (("ff_output_norm", "FF's output"), ("bypassed_norm", "bypassed vector"))
    ):
        low, high = found[f"{name}_low"], found[f"{name}_high"]
        line(axes, found.index, found[name], low, high, place, label)
    layer_ticks(axes, int(found.index.max()))
    values = found[["ff_output_norm", "bypassed_norm"]]
    if values.max(axis=None) > 50 * values.min(axis=None) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    style(axes, x=words.LAYER, y="mean norm")
    legend(axes)
    return figure


# Figure 11 -------------------------------------------------------------------------------------


def dimensions(evidence: Evidence) -> Result | None:
    """Mean |value| per dimension of FF's input and output, with γ of the norm behind the block."""
    found = evidence.sql(
        """
        SELECT layer + 1 AS layer, dimension, sum_input_abs / count AS input,
               sum_output_abs / count AS output, gamma, special
        FROM norms_dimensions ORDER BY layer, dimension
        """
    )
    if found.empty:
        return None
    layers = sorted(found["layer"].unique())
    share = found.groupby("layer").apply(_concentration, include_groups=False)
    has_gamma = found["gamma"].notna().any()
    peak = found.loc[found["output"].idxmax()]
    sentences = [
        f"The largest mean |value| of FF's output is {words.number(peak.output)}, in dimension "
        f"{peak.dimension} of layer {peak.layer}, {words.number(share.loc[peak.layer, 'peak'], 0)} "
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
                found[columns],
                "Mean |value| of the feed-forward block's input and output per dimension, and γ "
                "of the normalisation behind it (Figure 11).",
                {"input": ".4f", "output": ".4f", "gamma": ".4f"},
                shown=20,
            )
        },
        figures={
            "dimensions": Figure(
                lambda: _draw_dimensions(found[found["layer"].isin(shown)], has_gamma),
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


def _draw_dimensions(found: pd.DataFrame, has_gamma: bool) -> Drawing:
    rows = [("input", "mean |FF input|"), ("output", "mean |FF output|")]
    rows += [("gamma", "γ of LN")] if has_gamma else []
    layers = sorted(found["layer"].unique())
    figure, axes = panels(columns=len(layers), rows=len(rows), width=2.4, height=1.5)
    for place, panel in enumerate(axes):
        (column, label), layer = rows[place // len(layers)], layers[place % len(layers)]
        own = found[found["layer"] == layer]
        panel.vlines(own["dimension"], 0, own[column], color="#b8b8b8", lw=0.5)
        special = own[own["special"]]
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


# Section 6.2 -----------------------------------------------------------------------------------


def special(evidence: Evidence) -> Result | None:
    """ρ of the maps before and behind FF, with and without the special dimensions."""
    found = _means(evidence, "special_dimensions", ("rho_with", "rho_without"))
    if found.empty:
        return None
    gain = found["rho_without"] - found["rho_with"]
    higher = gain.index[gain > 0]
    count = len(found)
    where = (
        "in no layer"
        if not len(higher)
        else "in every layer"
        if len(higher) == count
        else f"in {layers_in_words(higher)} of {count}"
    )
    top = gain.idxmax()
    sentences = [
        "Without the special dimensions the block's map is nearer to the map before it "
        f"{where}; the change is largest in layer {top} "
        f"({words.number(found.loc[top, 'rho_with'])} → "
        f"{words.number(found.loc[top, 'rho_without'])})."
    ]
    measured = {
        f"special/layer-{layer}/{which}": float(found.loc[layer, f"rho_{which}"])
        for layer in found.index
        for which in ("with", "without")
    }
    return Result(
        tables={
            "special-dimensions": Table(
                found.reset_index(),
                "Spearman's ρ between the maps before and behind FF, with and without the special "
                "dimensions in FF's output, per layer (section 6.2).",
                dict.fromkeys(found.columns, ".3f"),
            )
        },
        figures={
            "special-dimensions": Figure(
                lambda: _draw_special(found),
                "Similarity of FF's map to the map before it, with and without the special "
                "dimensions (the 1 % with the lowest γ of the normalisation behind FF).",
            )
        },
        sentences=sentences,
        comparisons=compare("special/", measured, evidence.model, evidence.data),
        summary={"gain in ρ without special dimensions, mean over layers": float(gain.mean())},
    )


def _draw_special(found: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.8, height=2.5)
    for place, (name, label) in enumerate(
        (("rho_with", "all dimensions"), ("rho_without", "without special dimensions"))
    ):
        low, high = found[f"{name}_low"], found[f"{name}_high"]
        line(axes, found.index, found[name], low, high, place, label)
    layer_ticks(axes, int(found.index.max()))
    axes.set_ylim(min(0.0, float(found.min(axis=None)) - 0.03), 1.03)
    style(axes, x=words.LAYER, y="Spearman's ρ before / behind FF")
    legend(axes, loc="lower left")
    return figure


_SOURCE = "Kobayashi et al. 2024, section 6"
EXPERIMENTS = (
    Experiment(
        name="norms",
        title="The block's output beside what bypasses it",
        source=f"{_SOURCE}, Figure 10",
        question="Is the feed-forward block's output small beside the bypassed vector?",
        method="Mean norm over the tokens of a sequence, then over sequences.",
        needs="masked",
        work=norms,
        absent="the run has no norms of the feed-forward block",
    ),
    Experiment(
        name="dimensions",
        title="Special dimensions",
        source=f"{_SOURCE}, Figure 11",
        question="Does FF write into few dimensions, and does the normalisation shrink those?",
        method=(
            "Mean |value| over all tokens of the corpus. Special dimensions are the 1 % with the "
            "lowest γ of the normalisation behind the block."
        ),
        needs="masked",
        work=dimensions,
        absent="the run has no statistics of dimensions",
    ),
    Experiment(
        name="special-dimensions",
        title="The map without the special dimensions",
        source=f"{_SOURCE}.2",
        question="How much of the block's change comes from the special dimensions?",
        method=(
            "The special dimensions are taken out of FF's output, the map is computed again and "
            "compared with the map before the block."
        ),
        needs="masked",
        work=special,
        absent="there is no normalisation with a γ directly behind the feed-forward block",
    ),
)

"""Mixing ratios and the expansion rate: Kobayashi et al. 2021, section 4 and their notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import CATEGORIES
from normlens.figures.canvas import COLOURS, INK
from normlens.measures.bootstrap import mean_intervals
from normlens.scopes import components_of
from normlens.studies.papers.published import Evidence, Experiment, compare
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, TEXT, heat_map, layer_ticks, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Shared by the experiments on mixing ratios: categories of tokens, and scopes to name.


_NAMES = {
    "ordinary": "ordinary",
    "mask": "[MASK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "other-special": "other special",
}
#: A decoder's sequence is framed by its beginning and its end.
_CAUSAL_NAMES = {**_NAMES, "cls": "BOS", "sep": "EOS"}
FIRST_TOKEN = (
    "The model is causal: the first token of a sequence sees only itself, so its ratio is 0."
)


def has_mixing(evidence: Evidence) -> bool:
    return evidence.run is not None and "mixing" in evidence.run.tables


def category_names(evidence: Evidence) -> dict[str, str]:
    """Name the categories of tokens as readers know them."""
    return _CAUSAL_NAMES if evidence.model["causal"] else _NAMES


def in_model_order(evidence: Evidence, present: set[str]) -> list[str]:
    """Sort the scopes that a table holds into the model's order."""
    return [scope for scope in evidence.scopes if scope in present]


def attention_block(scopes: list[str]) -> str:
    """Find the scope of the attention block with everything before the feed-forward block.

    ATTNRESLN-N in BERT. Where the feed-forward block stands beside the attention, the whole layer.
    """
    chain = [scope for scope in scopes if scope.endswith("-N")]
    before = [scope for scope in chain if "FF" not in components_of(scope)]
    return before[-1] if len(before) > 1 else chain[-1]


# The heat maps of mixing ratios: layer by category of tokens, a panel per method.


def draw_grid(grid: pd.DataFrame, scopes: list[str]) -> Drawing:
    """Draw layer × category heat maps, one panel per method; with one category, layer × method."""
    categories = list(grid)[2:]
    if len(categories) == 1:
        methods = grid.pivot(index="method", columns="layer", values=categories[0]).loc[scopes]
        shown = {f"{categories[0]} tokens": methods}
    else:
        by_method = {s: grid[grid["method"] == s].set_index("layer") for s in scopes}
        shown = {scope: rows[categories].T for scope, rows in by_method.items()}
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    high = len(next(iter(shown.values())))
    width = 4.6 if len(shown) == 1 else 3.4
    figure, axes = panels(columns, rows, width=width, height=0.42 + 0.19 * high)
    image: Any = None
    for place, (panel, title) in enumerate(zip(axes, shown, strict=False)):
        layers = len(shown[title].columns)
        image = heat_map(
            panel,
            shown[title],
            ".0f" if layers <= 12 else None,
            vmin=0,
            vmax=100,
            aspect="auto",
            extent=(0.5, layers + 0.5, high - 0.5, -0.5),
        )
        panel.set_xticks(range(1, layers + 1, max(1, -(-layers // 12))))
        label = words.LAYER if place // columns == rows - 1 else ""
        style(panel, x=label, title=title, grid=False)
        if place % columns:
            panel.set_yticklabels([])
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
    for panel in axes[len(shown) :]:
        panel.set_axis_off()
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, aspect=30)
    bar.set_label("mixing ratio (%)", fontsize=TEXT, color=INK)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.outline.set_visible(False)
    return figure


# Section 4: how much of a token's vector comes from other tokens. Kobayashi et al. 2021.


MEAN, LOW, HIGH = "mean", "95 % low", "95 % high"
LAYER_MAX, LAYER_MIN = "highest layer mean", "lowest layer mean"
TOKEN_MAX, TOKEN_MIN = "highest token", "lowest token"


def mixing(evidence: Evidence) -> Result | None:
    """Take mean, maximum and minimum per method, and means per layer and category of tokens."""
    if not has_mixing(evidence):
        return None
    cells = evidence.sql(
        "SELECT scope, layer + 1 AS layer, category, count(*) AS tokens, sum(ratio) AS total, "
        "min(ratio) AS low, max(ratio) AS high FROM mixing WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    scopes = in_model_order(evidence, set(cells["scope"]))
    if not scopes:
        return None
    names = category_names(evidence)
    layers = _means(cells, ["scope", "layer"]).unstack("layer").loc[scopes]
    table = _table(evidence, cells, layers, scopes)
    grid = _grid(cells, scopes, names)
    means = dict(zip(table["method"], table[MEAN], strict=True))
    measured = {
        f"{group}/{scope}": value
        for scope, value in means.items()
        for group in ("mixing", "mixing-poster")
    }
    per_cent = dict.fromkeys(list(table)[1:], ".2f")
    return Result(
        tables={
            "mixing": Table(
                table,
                "Mixing ratio per method in per cent: the mean over all tokens and layers with "
                "its 95 % bootstrap interval over sequences; the highest and lowest of the layers' "
                "means; the highest and lowest value of a single token in a layer.",
                per_cent,
            ),
            "mixing-layers": Table(
                grid,
                "Mixing ratio per method and layer in per cent, for each category of tokens.",
                dict.fromkeys(list(grid)[2:], ".1f"),
            ),
        },
        figures={
            "mixing": Figure(
                lambda: draw_grid(grid, scopes),
                "Mixing ratio (per cent) per layer and "
                + (
                    "category of tokens, one panel per method."
                    if len(grid.columns) > 3
                    else "method."
                ),
            )
        },
        sentences=[
            "The share of other tokens in a token's vector: 0 % is the token alone.",
            *([FIRST_TOKEN] if evidence.model["causal"] else []),
        ],
        comparisons=[
            *compare("mixing/", measured, evidence.model, evidence.data),
            *compare("mixing-poster/", measured, evidence.model, evidence.data),
        ],
        summary={f"Mean mixing ratio, {scope} (%)": value for scope, value in means.items()},
    )


def _means(cells: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Average the ratio, in per cent, over the tokens of each group."""
    sums = cells.groupby(keys)[["total", "tokens"]].sum()
    return 100 * sums["total"] / sums["tokens"]


def _table(
    evidence: Evidence, cells: pd.DataFrame, layers: pd.DataFrame, scopes: list[str]
) -> pd.DataFrame:
    single = cells.groupby("scope").agg(low=("low", "min"), high=("high", "max")).loc[scopes]
    mean, low, high = _intervals(evidence, scopes)
    return pd.DataFrame(
        {
            "method": scopes,
            MEAN: mean,
            LOW: low,
            HIGH: high,
            LAYER_MAX: layers.max(axis=1).to_numpy(),
            LAYER_MIN: layers.min(axis=1).to_numpy(),
            TOKEN_MAX: 100 * single["high"].to_numpy(),
            TOKEN_MIN: 100 * single["low"].to_numpy(),
        }
    )


def _intervals(evidence: Evidence, scopes: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average over all tokens and layers (per cent), with the bootstrap interval over sequences.

    With s and c a sequence's sum and count, the mean is R = Σs / Σc, a ratio of two sums. Its
    linear form ``R + (s − R c) / mean(c)``, whose mean is R, is resampled: long and short sequences
    then weigh as in R itself. Davison and Hinkley 1997, section 2.7.
    """
    sums = evidence.sql(
        'SELECT "index", scope, sum(ratio) AS total, count(*) AS tokens FROM mixing '
        "WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    total, tokens = (
        sums.pivot(index="index", columns="scope", values=name)[scopes].fillna(0).to_numpy(float)
        for name in ("total", "tokens")
    )
    ratio = total.sum(axis=0) / tokens.sum(axis=0)
    linear = ratio + (total - ratio * tokens) / tokens.mean(axis=0)
    settings = evidence.settings
    return mean_intervals(100 * linear, resamples=settings.resamples, seed=settings.seed)


def _grid(cells: pd.DataFrame, scopes: list[str], names: dict[str, str]) -> pd.DataFrame:
    """Build the grid: rows by method and layer, columns for all tokens and each category."""
    present = [name for name in CATEGORIES if name in set(cells["category"])]
    wide = _means(cells, ["scope", "layer", "category"]).unstack("category")[present]
    wide = wide.rename(columns=names)
    if len(present) > 1:
        wide.insert(0, "all", _means(cells, ["scope", "layer"]))
    wide.columns.name = None
    return wide.reindex(scopes, level="scope").rename_axis(["method", "layer"]).reset_index()


SECTION_4 = Experiment(
    name="mixing",
    title="Mixing ratio",
    source="Kobayashi et al. 2021, section 4",
    question="How much of a token's vector comes from other tokens, and how much from itself?",
    method=(
        "Mixing ratio ‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖) of every token in "
        "every layer: the norm of the other tokens' sum, not a sum of norms. ATTN-W: one minus "
        "the head mean of the token's weight on itself; ATTNRES-W: half of that. Every token "
        "of every layer counts the same in the mean. Intervals: percentile bootstrap over "
        "sequences of the (linearised) mean over tokens."
    ),
    needs="masked",
    work=mixing,
    absent="the run has no mixing ratios; add the measure mixing",
)


# The authors' notebook: how much the attention's transformation expands vectors.


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
        sentences=["A rate below 1 makes vectors shorter, a rate above 1 longer."],
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


EXPANSION_RATE = Experiment(
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

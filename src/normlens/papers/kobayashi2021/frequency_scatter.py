"""The scatter plot of mixing ratio against frequency rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import CATEGORIES
from normlens.figures.canvas import COLOURS, INK
from normlens.papers.base import Evidence
from normlens.papers.kobayashi2021.mixing_table import attention_block, category_names
from normlens.reports import words
from normlens.reports.drawing import SMALL, panels, style
from normlens.scopes import components_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

#: What the correlations are taken over: SQL for the categories of tokens.
KINDS = {"all": "category <> 'mask'", "ordinary": "category = 'ordinary'"}
COLUMNS = {
    ("all", "occurrences"): "all tokens",
    ("ordinary", "occurrences"): "without special tokens",
    ("all", "types"): "all types",
    ("ordinary", "types"): "types without special tokens",
}


def drawn_scopes(scopes: list[str]) -> list[str]:
    """Choose the scopes to draw: ATTN-N, with the residual, with all before FF, the whole layer."""
    chain = [scope for scope in scopes if scope.endswith("-N")]
    if not chain:
        return scopes[:1]
    residual = [scope for scope in chain if "RES" in components_of(scope)]
    wanted = {chain[0], *residual[:1], attention_block(scopes), chain[-1]}
    return [scope for scope in chain if scope in wanted]


def draw(
    evidence: Evidence, scopes: list[str], ranks: pd.Series, table: pd.DataFrame, share: float
) -> Drawing:
    listed = ", ".join(f"'{scope}'" for scope in scopes)
    chosen = "" if share == 1 else f'AND hash("index", position) % 1000000 < {round(share * 1e6)}'
    points = evidence.sql(
        "SELECT scope, any_value(token_id) AS token_id, any_value(category) AS category, "
        f"100 * avg(ratio) AS ratio FROM mixing WHERE {KINDS['all']} AND NOT isnan(ratio) "
        f'AND scope IN ({listed}) {chosen} GROUP BY scope, "index", position '
        'ORDER BY scope, "index", position'
    )
    points["rank"] = ranks.loc[points["token_id"]].to_numpy()
    columns = min(2, len(scopes))
    figure, axes = panels(columns, -(-len(scopes) // columns), width=3.4, height=2.5, sharex=True)
    names = category_names(evidence)
    rho = table.set_index("method")
    for place, panel in enumerate(axes):
        if place >= len(scopes):
            panel.set_axis_off()
            continue
        scope = scopes[place]
        _draw_points(panel, points[points["scope"] == scope], names)
        panel.set_xscale("log")
        panel.set_xlim(left=0.8)
        lowest = place + columns >= len(scopes)
        values = [words.fixed(rho.loc[scope, COLUMNS[kind, "occurrences"]]) for kind in KINDS]
        beside = f", ordinary {values[1]}" if values[0] != values[1] else ""
        style(
            panel,
            x="frequency rank" if lowest else "",
            y="" if place % columns else "mixing ratio (%)",
            title=f"{scope}   ρ = {values[0]}{beside}",
        )
        panel.tick_params(which="minor", length=1.5, width=0.4)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(labels),
            fontsize=SMALL,
            frameon=False,
            markerscale=1.6,
            handletextpad=0.1,
        )
    return figure


def _draw_points(panel: Any, points: pd.DataFrame, names: dict[str, str]) -> None:
    colours = dict(zip(CATEGORIES, (COLOURS[0], "", *COLOURS[1:4]), strict=True))
    ordinary = points[points["category"] == "ordinary"]
    alpha = float(np.clip(800 / max(1, len(ordinary)), 0.08, 0.6))
    for category in CATEGORIES:
        group = points[points["category"] == category]
        if not len(group):
            continue
        faint = alpha if category == "ordinary" else min(0.5, 3 * alpha)
        panel.scatter(
            group["rank"],
            group["ratio"],
            s=4,
            lw=0,
            color=colours[category],
            alpha=faint,
            rasterized=True,
        )
        panel.scatter([], [], s=8, lw=0, color=colours[category], label=names[category])
    if ordinary["rank"].nunique() > 1:
        ends = np.log10([ordinary["rank"].min(), ordinary["rank"].max()])
        bins = np.unique(np.logspace(*ends, 13))
        bins[-1] *= 1 + 1e-9
        median = ordinary.groupby(np.digitize(ordinary["rank"], bins))[["rank", "ratio"]].median()
        panel.plot(median["rank"], median["ratio"], color=INK, lw=1.2)

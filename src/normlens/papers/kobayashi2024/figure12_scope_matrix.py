"""Figure 12: the similarity of every two scopes. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import whole_block_pair
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.similarity_queries import RHO
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import SMALL, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def scope_matrix(evidence: Evidence) -> Result | None:
    """Compare the maps of every two scopes."""
    pairs = evidence.sql("SELECT scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL")
    scopes = evidence.scopes
    square = pd.DataFrame(np.eye(len(scopes)), index=scopes, columns=scopes)
    for row in pairs.itertuples():
        square.loc[row.scope_a, row.scope_b] = square.loc[row.scope_b, row.scope_a] = row.rho
    pair = whole_block_pair(scopes)
    sentences, summary, comparisons = [], {}, []
    if pair is not None:
        rho = float(square.loc[pair[0], pair[1]])
        sentences = [
            f"The map behind the first residual ({pair[0]}) and that of the whole layer "
            f"({pair[1]}) have a mean similarity of {words.fixed(rho, 3)}."
        ]
        summary = {"ρ of ATTNRES and the whole layer": rho}
        comparisons = compare(
            "figure12/", {"figure12/RES1~LN2": rho}, evidence.model, evidence.data
        )
    off = pairs.sort_values("rho")
    sentences.append(
        f"Least alike of all are {off.iloc[0].scope_a} and {off.iloc[0].scope_b} (ρ = "
        f"{words.fixed(off.iloc[0].rho)}), most alike {off.iloc[-1].scope_a} and "
        f"{off.iloc[-1].scope_b} ({words.fixed(off.iloc[-1].rho)})."
    )
    return Result(
        tables={
            "similarity-matrix": Table(
                square.rename_axis("scope").reset_index(),
                f"{RHO} between all scopes, averaged over layers and sequences (Figure 12).",
                dict.fromkeys(scopes, ".2f"),
            )
        },
        figures={
            "similarity-matrix": Figure(
                lambda: _draw(square),
                f"{RHO} between the maps of all scopes, averaged over layers and sequences "
                "(Figure 12).",
            )
        },
        sentences=sentences,
        comparisons=comparisons,
        summary=summary,
    )


def _draw(square: pd.DataFrame) -> Drawing:
    side = 1.9 + 0.36 * len(square)
    figure, (axes,) = panels(width=side + 0.5, height=side)
    values = square.to_numpy()
    image = axes.imshow(values, cmap="cividis", vmin=np.floor(10 * values.min()) / 10, vmax=1)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value < (image.norm.vmin + image.norm.vmax) / 2
            axes.text(
                j,
                i,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else "black",
            )
    axes.set_xticks(range(len(square)), square.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(square)), square.index)
    style(axes, grid=False)
    bar = figure.colorbar(image, ax=axes, shrink=0.7, label=RHO)
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(RHO, fontsize=SMALL)
    return figure


EXPERIMENT = Experiment(
    name="scopes",
    title="All scopes beside each other",
    source="Kobayashi et al. 2024, section 4, Figure 12",
    question="Which points of a layer have similar maps?",
    method="Spearman's ρ between the maps of every two scopes, averaged as above.",
    needs="masked",
    work=scope_matrix,
)

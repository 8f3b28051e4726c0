"""Figure 9: what becomes of the feed-forward block's change. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair
from normlens.errors import listed
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.similarity_queries import (
    RHO,
    in_table_order,
    rho_per_sequence,
    with_intervals,
)
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import layer_ticks, legend, line, panels, style
from normlens.scopes import layers_in_words, shortest

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def cancellation(evidence: Evidence) -> Result | None:
    """Compare the map before the feed-forward block with every later one."""
    pair = feed_forward_pair(evidence.scopes)
    if pair is None:
        return None
    chain = [scope for scope in evidence.scopes if scope.endswith("-N")]
    later = chain[chain.index(pair[1]) :]
    names = shortest(evidence.scopes)
    pairs = [in_table_order(evidence, pair[0], scope) for scope in later]
    overall = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=False))
    by_layer = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=True))
    frames = [
        by_layer.loc[key].reset_index().assign(scope=scope, through=names[scope])
        for key, scope in zip(pairs, later, strict=True)
    ]
    layers = pd.concat(frames, ignore_index=True)
    layers = layers[["through", "scope", "layer", "rho", "low", "high"]]
    means = {scope: float(overall.loc[key, "rho"]) for key, scope in zip(pairs, later, strict=True)}
    formats = {"rho": ".3f", "low": ".3f", "high": ".3f"}
    return Result(
        tables={
            "similarity-from-before": Table(
                layers,
                f"{RHO} between {pair[0]} and every later scope, per layer (Figure 9).",
                formats,
            )
        },
        figures={
            "similarity-from-before": Figure(
                lambda: _draw(layers, pair[0]),
                f"Similarity of the map before the feed-forward block ({pair[0]}) with the maps "
                "behind each later component, per layer, with 95 % intervals (Figure 9).",
            )
        },
        sentences=_sentences(means, later, names, layers),
        summary={f"ρ of the map before FF and behind {names[s]}": v for s, v in means.items()},
    )


def _draw(layers: pd.DataFrame, before: str) -> Drawing:
    figure, (axes,) = panels(width=4.2, height=2.7)
    for place, (through, rows) in enumerate(layers.groupby("through", sort=False)):
        name = f"behind {through}"
        line(axes, rows["layer"], rows["rho"], rows["low"], rows["high"], place, name)
    layer_ticks(axes, int(layers["layer"].max()))
    axes.set_ylim(min(0.0, layers["low"].min() - 0.03), 1.03)
    style(axes, x=words.LAYER, y=f"{RHO} with {before}")
    legend(axes, loc="lower left")
    return figure


def _sentences(
    means: dict[str, float], later: list[str], names: dict[str, str], layers: pd.DataFrame
) -> list[str]:
    first, last = later[0], later[-1]
    sentences = [
        "Beside the map before the feed-forward block, the map has a mean similarity of "
        + listed([f"{words.fixed(means[s])} behind {names[s]}" for s in later])
        + "."
    ]
    if len(later) > 1:
        rows = layers.pivot(index="layer", columns="scope", values="rho")
        back = rows.index[rows[last] > rows[first]]
        if len(back):
            sentences.append(
                f"What follows the block undoes part of its change in {layers_in_words(back)} of "
                f"{len(rows)}: the map at the end of the layer is nearer to the one before the "
                "block than the block's own output is."
            )
        else:
            sentences.append(
                "In no layer is the map at the end of the layer nearer to the one before the block "
                "than the block's own output is: nothing is undone."
            )
    return sentences


EXPERIMENT = Experiment(
    name="cancellation",
    title="What becomes of the feed-forward block's change",
    source="Kobayashi et al. 2024, section 4, Figure 9",
    question="Do the residual connection and the normalisation behind FF cancel its effect?",
    method="Spearman's ρ between the map before the block and the map behind each later part.",
    needs="masked",
    work=cancellation,
    absent="the feed-forward block stands beside the attention, so it mixes no tokens",
)

"""Mixing ratio against the frequency of the subword: Kobayashi et al. 2021, section 5."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import CATEGORIES
from normlens.errors import InputError
from normlens.figures.canvas import COLOURS, INK
from normlens.measures.ranks import average_ranks, spearman_matrix
from normlens.scopes import components_of
from normlens.studies.papers.mixing import (
    FIRST_TOKEN,
    attention_block,
    category_names,
    has_mixing,
    in_model_order,
)
from normlens.studies.papers.published import Evidence, Experiment, compare
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import legend_outside, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# How frequent a subword is: ranks from the user's file, or from the corpus itself.


#: A copy of the user's file, so that a report can be built again without it.
FILE = "ranks.txt"


def read_ranks(path: str | Path) -> dict[int, int]:
    """Read each subword id's rank from a file of `rank count id` lines (rank 1: most frequent)."""
    path = Path(path)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the ranks in {str(path)!r}: {reason}") from error
    ranks: dict[int, int] = {}
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rank, _, token = (int(field) for field in line.split())
        except ValueError:
            shown = line.strip() if len(line.strip()) <= 40 else line.strip()[:39] + "…"
            raise InputError(
                f"line {place} of {str(path)!r} is {shown!r}; it must hold three whole numbers, "
                "rank count id"
            ) from None
        if rank < 1 or token < 0:
            raise InputError(f"line {place} of {str(path)!r} has a rank below 1 or an id below 0")
        if token in ranks:
            raise InputError(f"line {place} of {str(path)!r} gives id {token} a second rank")
        ranks[token] = rank
    if not ranks:
        raise InputError(f"{str(path)!r} has no line `rank count id`")
    return ranks


def subword_ranks(evidence: Evidence, groups: pd.DataFrame) -> tuple[pd.Series, int]:
    """Rank each subword of the run; return the ranks and how many subwords the file lacks.

    As in the authors' program, subwords without a rank come behind all that have one.
    """
    counts = groups[groups["scope"] == groups["scope"].iloc[0]].set_index("token_id")["occurrences"]
    if evidence.settings.ranks is None:
        return pd.Series(average_ranks(-counts.to_numpy()), index=counts.index), 0
    kept = evidence.folder / FILE
    ranked = read_ranks(kept if kept.is_file() else evidence.settings.ranks)
    ranks = pd.Series([ranked.get(token, math.nan) for token in counts.index], index=counts.index)
    unranked = int(ranks.isna().sum())
    if unranked == len(ranks):
        raise InputError(
            f"{str(evidence.settings.ranks)!r} has no rank for any subword of this run; its ids "
            "must be those of the model's vocabulary"
        )
    return ranks.fillna(max(ranked.values()) + 1), unranked


# The scatter plot of mixing ratio against frequency rank.


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
        named = dict(zip(labels, handles, strict=True))
        legend_outside(figure, named, "lower", markerscale=1.6, handletextpad=0.1)
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


# Section 5: mixing ratio against the frequency of the subword. Kobayashi et al. 2021.


#: Occurrences in the scatter plot, about.
_POINTS = 20_000


def frequency(evidence: Evidence) -> Result | None:
    """Correlate mixing ratio and frequency rank per method, over occurrences and over types."""
    if not has_mixing(evidence):
        return None
    groups = {kind: _groups(evidence, where) for kind, where in KINDS.items()}
    scopes = in_model_order(evidence, set(groups["ordinary"]["scope"]))
    if not scopes:
        return None
    ranks, unranked = subword_ranks(evidence, groups["all"])
    table = _table(groups, scopes, ranks)
    occurrences = int(groups["all"].loc[groups["all"]["scope"] == scopes[0], "occurrences"].sum())
    measured = {
        f"frequency/{kind}/{row['method']}": float(row[COLUMNS[kind, "occurrences"]])
        for _, row in table.iterrows()
        for kind in KINDS
    }
    origin = (
        "ranks of the subwords in this corpus"
        if evidence.settings.ranks is None
        else f"ranks from {Path(evidence.settings.ranks).name}"
    )
    drawn = drawn_scopes(scopes)
    share = min(1.0, _POINTS / occurrences)
    sample = "" if share == 1 else f" About {_POINTS:,} of {occurrences:,} occurrences are drawn."
    return Result(
        tables={
            "frequency": Table(
                table,
                "Spearman's ρ between mixing ratio and frequency rank (rank 1: most frequent; "
                f"{origin}). The first two columns are over occurrences of tokens, as in the "
                "paper, the last two over types of subwords (mean over their occurrences). Masked "
                "tokens are left out."
                + (f" Without a rank in the file: {unranked:,} subwords." if unranked else ""),
                dict.fromkeys(COLUMNS.values(), ".3f"),
            )
        },
        figures={
            "frequency": Figure(
                lambda: draw(evidence, drawn, ranks, table, share),
                "Mixing ratio (mean over layers) of token occurrences against the frequency rank "
                f"of their subword ({origin}), with the median over bins of rank (black line)."
                + sample,
            )
        },
        sentences=[
            "A negative ρ means that rare subwords are mixed less.",
            *([FIRST_TOKEN] if evidence.model["causal"] else []),
        ],
        # The published figures have ranks from BERT's training data.
        comparisons=[
            replace(comparison, same=comparison.same and evidence.settings.ranks is not None)
            for part in ("all", "ordinary")
            for comparison in compare(f"frequency/{part}/", measured, evidence.model, evidence.data)
        ],
        summary={
            f"ρ of mixing ratio and frequency rank, {row['method']}": float(
                row[COLUMNS["ordinary", "occurrences"]]
            )
            for _, row in table.iterrows()
        },
    )


def _groups(evidence: Evidence, where: str) -> pd.DataFrame:
    """Count each method's subwords, with their mean ratio and sums of the occurrences' ranks.

    `place` is an occurrence's average rank by its ratio among all of its method, less their mean.
    Spearman's ρ with anything that depends on the subword alone follows from these sums. Ratios are
    rounded to ten digits: the order in which a mean over layers was summed must not break ties.
    """
    return evidence.sql(
        f"""
        WITH occurrence AS (
            SELECT scope, any_value(token_id) AS token_id, round(avg(ratio), 10) AS ratio
            FROM mixing WHERE {where} AND NOT isnan(ratio) GROUP BY scope, "index", position
        ), placed AS (
            SELECT scope, token_id, ratio,
                rank() OVER (PARTITION BY scope ORDER BY ratio)
                + (count(*) OVER (PARTITION BY scope, ratio) - 1) / 2.0
                - (count(*) OVER (PARTITION BY scope) + 1) / 2.0 AS place
            FROM occurrence
        )
        SELECT scope, token_id, count(*) AS occurrences, round(avg(ratio), 10) AS ratio,
            sum(place) AS place, sum(place * place) AS square
        FROM placed GROUP BY scope, token_id ORDER BY scope, token_id
        """
    )


def _table(groups: dict[str, pd.DataFrame], scopes: list[str], ranks: pd.Series) -> pd.DataFrame:
    rows = []
    for scope in scopes:
        row: dict[str, Any] = {"method": scope}
        for (kind, over), name in COLUMNS.items():
            subwords = groups[kind][groups[kind]["scope"] == scope]
            rank = ranks.loc[subwords["token_id"]].to_numpy()
            if over == "occurrences":
                row[name] = _grouped_spearman(subwords, rank)
            else:
                row[name] = spearman_matrix(np.stack([subwords["ratio"].to_numpy(), rank]))[0, 1]
        rows.append(row)
    return pd.DataFrame(rows)


def _grouped_spearman(groups: pd.DataFrame, rank: np.ndarray) -> float:
    """Spearman's ρ of ratio and rank over occurrences; NaN where one of them is constant."""
    counts = groups["occurrences"].to_numpy()
    _, inverse = np.unique(rank, return_inverse=True)
    tied = np.bincount(inverse, weights=counts)
    place = (np.cumsum(tied) - (tied + counts.sum()) / 2)[inverse]  # average rank, less the mean
    squares = float((counts * place**2).sum()) * float(groups["square"].sum())
    if squares == 0:
        return math.nan
    return float((place * groups["place"].to_numpy()).sum()) / math.sqrt(squares)


SECTION_5 = Experiment(
    name="frequency",
    title="Mixing ratio and frequency",
    source="Kobayashi et al. 2021, section 5",
    question="Are rare subwords mixed with their context less than frequent ones?",
    method=(
        "Spearman's ρ (ties by average rank) between the mixing ratio and the frequency rank "
        "of the subword, 1 being the most frequent; so a negative ρ means that rare subwords "
        "are mixed less. Over occurrences (the paper's way): every token of every sequence is "
        "one value, its ratio averaged over layers. Over types: every subword is one value, "
        "the mean of its occurrences. Masked tokens are left out, since their own subword is "
        "hidden from the model; the authors mask nothing here. Ranks are the corpus's own or "
        "come from a file; subwords without a rank in the file stand behind all others."
    ),
    needs="masked",
    work=frequency,
    absent="the run has no mixing ratios of ordinary tokens; add the measure mixing",
)

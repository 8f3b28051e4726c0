"""Are related pairs amplified more than others? Kobayashi et al. 2024, Figures 7 and 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import EDGES, ScopePair, feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS, FAINT
from normlens.scopes import consecutive
from normlens.studies.papers.pair_comparison import (
    ALL,
    ALPHA,
    COLUMNS,
    OCCURRENCES,
    TYPES,
    Finding,
    capital,
    findings,
    strongest,
    verdicts,
)
from normlens.studies.papers.pair_samples import OF_PAPER, has_pairs, user_relation_groups
from normlens.studies.papers.published import Evidence, Experiment, compare
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, TEXT, layer_ticks, legend_outside, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# What Figures 7 and 8 share: colours, letters of panels and the legend.


FF_AMP = "FF-amp"
RELATED, OTHERS = COLOURS[1], COLOURS[0]
WIDTH = 6.9  # inches


def letter(place: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[place % 26]


def legend(figure: Drawing, significance: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = (("related pairs (as titled)", RELATED, "o"), ("other pairs", OTHERS, "s"))
    handles: list[Any]
    if significance:
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=4, lw=1.2, label=name)
            for name, colour, marker in kinds
        ]
        handles += [
            Line2D([], [], ls="none", marker="o", ms=4, mec=FAINT, mfc=fill, label=label)
            for label, fill in ((f"significant (p < {ALPHA})", FAINT), ("not significant", "white"))
        ]
    else:
        handles = [Patch(facecolor=colour, alpha=0.5, label=name) for name, colour, _ in kinds]
        handles.append(Line2D([], [], color=FAINT, ls="--", lw=1, label="mean"))
    named = {handle.get_label(): handle for handle in handles}
    legend_outside(figure, named, "lower", handlelength=1.8)


# Figure 7: mean FF-amp of related pairs and of others, layer by layer. Kobayashi et al. 2024.


_DEEP = 16  # layers, above which markers are smaller


def lines_figure(rows: Sequence[Finding], pair: ScopePair, amp: str) -> Figure:
    """Draw means per layer of each kind of pairs and of others, as in the paper and over all."""
    names = listed([relation.label for relation in rows])
    near = any(relation.near for relation in rows)
    of_paper = rows[0].of_paper
    return Figure(
        lambda: _draw_lines(rows, amp),
        f"Mean {amp} ({pair[0]} to {pair[1]}) of {names}, and of "
        + ("other pairs" if of_paper else "unrelated pairs")
        + " at the same distance"
        + (" (for adjacent pairs: of pairs further apart)" if near else "")
        + (
            ". Others are all pairs that are not of the kind, special tokens included, less those "
            "of one subword, as in the paper"
            if of_paper
            else ""
        )
        + f". Left: {rows[0].procedure}"
        + (" (Figure 7)" if amp == FF_AMP and of_paper else "")
        + ", pairs of subword types and one draw of others, with 95 % bootstrap intervals over "
        "pairs. Right: all occurrences against all others, reweighted by distance, with 95 % "
        f"bootstrap intervals over sequences. Filled: significant, p < {rows[0].threshold}.",
    )


def _draw_lines(rows: Sequence[Finding], amp: str) -> Drawing:
    sides = ("as in the paper" if rows[0].of_paper else "one draw", "all occurrences")
    depth = max(int(relation.robust["layer"].max()) for relation in rows)
    figure, axes = panels(2, len(rows), width=WIDTH / 2, height=1.9, sharey="row")
    for place, relation in enumerate(rows):
        for side, frame in enumerate((relation.paper, relation.robust)):
            panel = axes[2 * place + side]
            _draw_panel(panel, frame, small=depth > _DEEP)
            layer_ticks(panel, depth)
            style(
                panel,
                x=words.LAYER,
                y="" if side else _axis(amp),
                title=f"({letter(2 * place + side)}) {relation.label}: {sides[side]}",
            )
    legend(figure, significance=True)
    return figure


def _draw_panel(panel: Any, frame: pd.DataFrame | None, small: bool) -> None:
    panel.axhline(0, color=FAINT, lw=0.6)
    if frame is None:
        panel.text(
            0.5,
            0.5,
            "too few subword pairs occur often enough",
            transform=panel.transAxes,
            ha="center",
            va="center",
            fontsize=SMALL,
            color=FAINT,
        )
        return
    for name, colour, marker in (("others", OTHERS, "s"), ("mean", RELATED, "o")):
        low, high = frame[f"{name} low"], frame[f"{name} high"]
        panel.fill_between(frame["layer"], low, high, color=colour, alpha=0.25, lw=0)
        panel.plot(frame["layer"], frame[name], color=colour, lw=1.2)
        for filled in (True, False):
            some = frame[frame["significant"] == filled]
            panel.plot(
                some["layer"],
                some[name],
                ls="none",
                marker=marker,
                ms=3 if small else 4,
                mew=0.9,
                mec=colour,
                mfc=colour if filled else "white",
            )


def _axis(amp: str) -> str:
    return f"mean {amp}" if amp.endswith("-amp") else "mean amplification"


# Figure 8: the distribution of FF-amp in one layer. Kobayashi et al. 2024.


BINS = (10, 40)  # of a histogram, at least and at most


def histograms_figure(rows: Sequence[Finding], amp: str, layer: int | None) -> Figure | None:
    """Draw the scores that the paper's procedure compares, in `layer` or the largest effect's."""
    tested = [relation for relation in rows if _row(relation, None) is not None]
    if not tested:
        return None
    shown = [relation for relation in tested if _row(relation, layer) is not None]
    if layer is None or len(shown) < len(tested):
        which = "the layer with the largest effect"
        shown = tested
        if layer is not None:
            which += f" (there is no layer {layer}, counted from 1)"
        layer = None
    else:
        which = f"layer {layer} (counted from 1)"
    return Figure(
        lambda: _draw_histograms(shown, amp, layer),
        f"Distribution of {amp} in {which}: related pairs of subword types and "
        f"{'others' if shown[0].of_paper else 'unrelated ones'} at the same distance"
        + (" (for adjacent pairs: further apart)" if any(row.near for row in shown) else "")
        + ", one draw, each group's shares adding up to 1; the central 99 % of both together are "
        "shown" + (" (Figure 8)." if amp == FF_AMP and shown[0].of_paper else "."),
    )


def _row(relation: Finding, layer: int | None) -> int | None:
    """Find the paper's row of a layer, or of the largest effect; None if there is none."""
    if relation.paper is None:
        return None
    if layer is None:
        return strongest(relation.paper)
    places = np.flatnonzero(relation.paper["layer"] == layer)
    return int(places[0]) if len(places) else None


def histogram(
    related: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bin both groups over their central 99 %: edges, and each group's share per bin."""
    both = np.concatenate([related, others])
    bins = int(np.clip(np.sqrt(min(len(related), len(others))), *BINS))
    edges = np.histogram_bin_edges(both, bins, tuple(np.quantile(both, [0.005, 0.995])))
    shares = [np.histogram(group, edges)[0] / len(group) for group in (related, others)]
    return edges, shares[0], shares[1]


def _draw_histograms(rows: Sequence[Finding], amp: str, layer: int | None) -> Drawing:
    columns = len(rows) if len(rows) < 4 else 2
    width = WIDTH / (2 if len(rows) == 1 else columns)
    figure, axes = panels(columns, -(-len(rows) // columns), width=width, height=2.2)
    for spare in axes[len(rows) :]:
        spare.set_visible(False)
    for place, (panel, relation) in enumerate(zip(axes, rows, strict=False)):
        row = _row(relation, layer) or 0
        groups = relation.related[:, row], relation.others[:, row]
        edges, *shares = histogram(*groups)
        for share, group, colour in zip(shares, groups, (RELATED, OTHERS), strict=True):
            panel.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            panel.stairs(share, edges, color=colour, lw=1)
            panel.axvline(group.mean(), color=colour, ls="--", lw=1)
        panel.locator_params(axis="x", nbins=5)
        style(
            panel,
            x=amp,
            y="" if place % columns else "share of pairs",
            title=f"({letter(place)}) {relation.label},\n"
            f"layer {relation.paper['layer'].iloc[row]} (counted from 1)",
        )
        panel.title.set_fontsize(TEXT)
    legend(figure, significance=False)
    return figure


# Figures 7 and 8: are related pairs amplified more than others? Kobayashi et al. 2024.


_FORMATS = {
    **dict.fromkeys(COLUMNS[3:], ".5f"),
    "pairs": "d",
    "g": ".3f",
    "p": ".4f",
    "p adjusted": ".4f",
    "significant": "",
}


def relations(evidence: Evidence) -> Result | None:
    """Compare the amplification of related pairs with that of other pairs, per layer."""
    if not has_pairs(evidence):
        return None
    scope_pairs = _scope_pairs(evidence)
    by_scopes = findings(evidence, scope_pairs) if scope_pairs else {}
    if not by_scopes:
        return None
    user_relations = list(user_relation_groups(evidence))
    tables, figures = {}, {}
    for number, (pair, rows) in enumerate(by_scopes.items()):
        amp, slug = _amp(evidence, pair), _slug(evidence, pair)
        for relation in rows:
            tables[f"relations-{slug}-{relation.name}"] = _table(
                relation, pair, amp, evidence.settings.min_count, user_relations
            )
        figures[f"relations-{slug}"] = lines_figure(rows, pair, amp)
        if number == 0:
            histograms = histograms_figure(rows, amp, evidence.settings.layer)
            if histograms is not None:
                figures[f"relations-{slug}-histograms"] = histograms
    main = next(iter(by_scopes.values()))
    amp = _amp(evidence, next(iter(by_scopes)))
    return Result(
        tables=tables,
        figures=figures,
        sentences=[
            "The rows “all occurrences” are the ones to rest on; a positive difference means that "
            "the pairs are amplified more than others. Layers without a p have too few sequences "
            "with such pairs to be tested."
        ],
        comparisons=compare("significance/", _measured(main), evidence.model, evidence.data)
        if feed_forward_pair(evidence.scopes) in by_scopes
        else [],
        summary=_summary(main, amp),
    )


def _scope_pairs(evidence: Evidence) -> list[ScopePair]:
    """List the pairs of scopes in the tables, the one around the feed-forward block first."""
    rows = evidence.sql("SELECT DISTINCT before, after FROM amplification_distance ORDER BY ALL")
    there = [(str(before), str(after)) for before, after in rows.itertuples(index=False)]
    first = [feed_forward_pair(evidence.scopes), whole_block_pair(evidence.scopes)]
    return sorted(there, key=lambda pair: first.index(pair) if pair in first else len(first))


def _measured(rows: Sequence[Finding]) -> dict[str, float]:
    """Mark with 1 where related pairs are amplified more by the paper's procedure, p unadjusted."""
    return {
        f"significance/{relation.name}/layer-{row.layer}": float(
            row.p < ALPHA and row.difference > 0
        )
        for relation in rows
        if relation.paper is not None
        for row in relation.paper.itertuples()
    }


def _summary(rows: Sequence[Finding], amp: str) -> dict[str, float]:
    summary = {}
    for relation in rows:
        signs = list(verdicts(relation.robust).values())
        if signs:
            share = signs.count(1) / len(signs)
            summary[f"share of layers where {amp} of {relation.label} is significantly higher"] = (
                share
            )
        best = strongest(relation.robust)
        if best is not None:
            effect = float(relation.robust["g"].iloc[best])
            summary[f"largest effect (g) of {amp}, {relation.label}"] = effect
    return summary


def _amp(evidence: Evidence, pair: ScopePair) -> str:
    """Name the amplification between two scopes: FF-amp, or by the components it passes."""
    steps = consecutive(evidence.scopes)
    before, after = ([getattr(step, side) for step in steps] for side in ("before", "after"))
    if pair[0] not in before or pair[1] not in after:
        return f"amplification from {pair[0]} to {pair[1]}"
    passed = [step.component for step in steps[before.index(pair[0]) : after.index(pair[1]) + 1]]
    if len(passed) == 1:
        return f"{passed[0]}-amp"
    return f"amplification by {listed(passed)} together"


def _slug(evidence: Evidence, pair: ScopePair) -> str:
    if pair == feed_forward_pair(evidence.scopes):
        return "ff"
    if pair == whole_block_pair(evidence.scopes):
        return "layer"
    return "-".join(pair).lower()


def _table(
    relation: Finding, pair: ScopePair, amp: str, min_count: int, user_relations: list[str]
) -> Table:
    if relation.near:
        others = (
            "Others are unrelated pairs at distances of 2 and more, as often as each occurs: "
            "adjacent pairs cannot be matched by distance."
        )
        drawn, every = "one draw of as many others", "all others"
    else:
        others = _others(relation)
        drawn = (
            f"one draw of as many others, matched by distance (above {EDGES[-3]} in groups; a "
            "subword pair's distance is its mean, rounded)"
        )
        every = "all others, reweighted to the targets' distances"
        if relation.left_out:
            every += (
                f" (left out: {relation.left_out} pair{'s' * (relation.left_out != 1)} per layer "
                "at distances where there are no others)"
            )
    caption = (
        f"{capital(amp)} ({pair[0]} to {pair[1]}) of {relation.label} and of others, per layer and "
        f"procedure. {others} “{TYPES}” is {relation.procedure}: a pair is an ordered pair of "
        f"subword types with its mean over its occurrences of this kind, of which there are at "
        f"least {min_count}; {drawn}. “{OCCURRENCES}”: the same with every occurrence as a pair. "
        f"Both take pairs as independent. “{ALL}”: every occurrence in the data against {every}; "
        f"bootstrap over sequences ({relation.sequences} hold such pairs). Means, 95 % intervals "
        f"(low, high), effect size (Hedges' g), p. Significant: p < {relation.threshold}, for each "
        "procedure."
    )
    if user_relations and relation.name not in user_relations:
        caption += f" Pairs that are {listed(user_relations)} as well are counted there alone."
    return Table(relation.frame, caption, _FORMATS)


def _others(relation: Finding) -> str:
    """Say what a kind of pairs is compared with."""
    if not relation.of_paper:
        return (
            "Others are unrelated pairs with the same distribution of |i − j|: of two ordinary "
            "tokens that have no word, entity or subword in common (others='unrelated')."
        )
    where = "on both sides" if relation.name in OF_PAPER else "among the others"
    return (
        f"Others are, as in the paper, all pairs that are not {relation.label}, with the same "
        "distribution of |i − j|: those with special tokens and those related in another way are "
        f"among them. Pairs of one and the same subword are left out {where} (footnote 7)."
    )


FIGURES_7_8 = Experiment(
    name="ff-relations",
    title="Which kinds of pairs are amplified",
    source="Kobayashi et al. 2024, section 5, Figures 7 and 8",
    question=(
        "Does the feed-forward block amplify the subwords of one word, the tokens of one named "
        "entity and other related pairs more than other pairs?"
    ),
    method=(
        "The other pairs are the paper's: all that are not of the kind in question, special "
        "tokens and pairs of another kind included, and without pairs of one and the same subword "
        "(footnote 7). With others='unrelated' they are pairs of two ordinary tokens that have no "
        "word, entity or subword in common; captions say which were taken. "
        "The answer rests on all pairs: the mean FF-amp of related pairs against that of all "
        "others, reweighted to the related pairs' distances |i − j|; whole sequences "
        "are resampled, because pairs of one sequence are not independent (two-sided "
        "studentised bootstrap, weights computed anew in each resample). Beside it stands the "
        "paper's procedure: ordered pairs of subword types, each with its mean over its "
        "occurrences of that kind, those that occur once left out, and one seeded draw of as "
        "many others at the same distances; unpaired two-sided bootstrap test of the "
        "studentised difference of means (Efron and Tibshirani 1993, algorithm 16.2), which "
        "takes pairs as independent and depends on the draw. Named-entity pairs are all pairs "
        "of one entity expression, those inside its words included; those across words are "
        "shown as well. p adjusted over the layers by Benjamini and Hochberg's method; effect "
        "size: Hedges' g."
    ),
    needs="plain",
    work=relations,
    absent=(
        "the run has no amplification tables, or no two tokens of its data are related or "
        "adjacent in a layer whose feed-forward block mixes tokens"
    ),
)

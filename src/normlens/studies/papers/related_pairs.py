"""Are related pairs amplified more than others? Kobayashi et al. 2024, Figures 7 and 8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import (
    EDGES,
    GROUPS,
    ScopePair,
    feed_forward_pair,
    whole_block_pair,
)
from normlens.errors import listed
from normlens.figures.canvas import COLOURS, FAINT
from normlens.measures.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.measures.reweighting import Reweighted, compare_reweighted
from normlens.studies.papers.pair_samples import (
    UNRELATED_PAIRS,
    Groups,
    LayerPairs,
    Pairs,
    compared,
    has_pairs,
    layers_of,
    matched_groups,
    near_and_far,
    stratum_counts,
    user_relation_groups,
)
from normlens.studies.papers.published import Evidence, compare
from normlens.studies.papers.settings import PAPER, Settings
from normlens.studies.reports import drawing, words
from normlens.studies.reports.contents import Figure, Result, Table, experiment

_say = partial(words.caption, "papers")

# The result of comparing related pairs with others, by layer and procedure.


ALPHA = 0.05
#: Procedures: the paper's, the same with every occurrence as a pair of its own, and the one
#: that depends on no draw and takes no two pairs of a sequence as independent.
TYPES, OCCURRENCES, ALL = "subword pairs, one draw", "occurrences, one draw", "all occurrences"
_MEANS = ["mean", "others", "difference"]
COLUMNS = ["layer", "procedure", "pairs", *_MEANS, "g", "p", "p adjusted", "significant"]
COLUMNS += [f"{name} {end}" for name in _MEANS for end in ("low", "high")]
ADJACENT = "adjacent"
_LABELS = {
    "same_word": "word-split pairs",
    "same_entity": "named-entity pairs",
    "entity_across_words": "entity pairs across words",
    "same_type": "same-subword pairs",
    ADJACENT: "adjacent pairs",
}


@dataclass(frozen=True)
class Finding:
    """The comparison of one kind of pairs with others under one pair of scopes."""

    name: str
    frame: pd.DataFrame  # a row per layer and procedure that could be applied
    #: the scores of related and of other pairs that `TYPES` compares, (pairs, layers)
    scores: Sequence[NDArray[np.float64]]
    left_out: int  # pairs at distances where there are no others
    sequences: int  # that hold such pairs

    @property
    def label(self) -> str:
        return _LABELS.get(self.name, f"{self.name} pairs")

    @property
    def robust(self) -> pd.DataFrame:
        """The rows of `ALL`; layers without an answer have no p."""
        return self._rows(ALL)

    @property
    def paper(self) -> pd.DataFrame:
        """The rows of the paper's procedure; none where it could not be applied."""
        return self._rows(TYPES)

    def _rows(self, procedure: str) -> pd.DataFrame:
        return self.frame[self.frame["procedure"] == procedure].reset_index(drop=True)


def strongest(frame: pd.DataFrame) -> int | None:
    """Find the row of the largest effect in either direction."""
    effect = frame["g"].abs()
    return None if effect.isna().all() else int(effect.to_numpy().argmax())


# The procedures that compare related pairs with others: on one draw of them, and on all.


def findings(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[ScopePair, list[Finding]]:
    """Compare every kind of pairs that occurs with other pairs, for each pair of scopes."""
    user_groups, settings = user_relation_groups(evidence), evidence.settings
    near: dict[str, None] = {} if ADJACENT in user_groups else {ADJACENT: None}
    groups: dict[str, tuple[str, ...] | None] = {**GROUPS, **near, **user_groups}
    collected: dict[str, _PairsByLayer] = {name: _PairsByLayer({}, {}, {}) for name in groups}
    for layer in layers_of(evidence):
        pairs = LayerPairs.read(evidence, layer, scope_pairs)
        for name, relations in groups.items():
            kinds = None if relations is None else compared(name, relations, settings.others)
            collected[name].add(layer + 1, pairs, kinds, settings)
    by_scopes: dict[ScopePair, list[Finding]] = {}
    for name, by_layer in collected.items():
        found = by_layer.findings(name, len(scope_pairs), settings)
        for pair, finding in zip(scope_pairs, found, strict=False):
            by_scopes.setdefault(pair, []).append(finding)
    return by_scopes


@dataclass(frozen=True)
class _PairsByLayer:
    """The pairs that each procedure compares, by layer (from 1)."""

    robust: dict[int, Reweighted]
    types: dict[int, Groups]
    occurrences: dict[int, Groups]

    def add(
        self, layer: int, pairs: LayerPairs, kinds: tuple[Pairs, Pairs] | None, settings: Settings
    ) -> None:
        """Add one layer's related pairs and others; without kinds, unrelated pairs near and far."""
        if kinds is None:
            others = pairs.drawable(UNRELATED_PAIRS)
            sums = [pairs.distance_sums(UNRELATED_PAIRS, ends) for ends in ((1, 1), (2, np.inf))]
            counts = [stratum_counts(others[0].distance), pairs.counts("other")]
            drawn = [near_and_far(*given) for given in zip(others, counts, strict=True)]
        else:
            sums = [pairs.distance_sums(kind) for kind in kinds]
            by_kind = map(pairs.drawable, kinds)
            drawn = [matched_groups(*given) for given in zip(*by_kind, strict=True)]
        if sums[0].count.any():
            how = {"resamples": settings.resamples, "seed": settings.seed}
            self.robust[layer] = compare_reweighted(sums[0], sums[1], **how)
        for kept, groups in zip((self.types, self.occurrences), drawn, strict=True):
            if len(groups[0]) > 1:
                kept[layer] = groups

    def findings(self, name: str, scope_pairs: int, settings: Settings) -> list[Finding]:
        """Compare for each pair of scopes; nothing where no procedure has pairs."""
        if not (self.types or self.occurrences or any(r.pairs > 1 for r in self.robust.values())):
            return []
        parts, scores = [], {TYPES: [np.empty((0, 0, scope_pairs))] * 2}
        for procedure, groups in ((TYPES, self.types), (OCCURRENCES, self.occurrences)):
            if not groups:
                continue
            # One draw of others, as many as there are related pairs in every layer.
            size = min(len(related) for related, _ in groups.values())
            scores[procedure] = [
                np.stack([group[side].score[:size] for group in groups.values()], axis=1)
                for side in (0, 1)
            ]
            related, others = (side.reshape(size, -1) for side in scores[procedure])
            tested = compare_means(related, others, settings.resamples, settings.seed)
            parts.append(_rows(tested, [*groups], scope_pairs, procedure, size))
        for layer, result in self.robust.items():
            parts.append(_rows(result.comparison, [layer], scope_pairs, ALL, result.pairs))
        frame = pd.concat(parts, ignore_index=True)
        of_layers = frame.groupby(["scopes", "procedure"])["p"]
        frame["p adjusted"] = of_layers.transform(benjamini_hochberg)
        frame["significant"] = frame["p adjusted"] < ALPHA
        frame = frame.sort_values("layer", kind="stable")
        return [
            Finding(
                name=name,
                frame=frame.loc[frame["scopes"] == place, COLUMNS].reset_index(drop=True),
                scores=[side[:, :, place] for side in scores[TYPES]],
                left_out=max(result.left_out for result in self.robust.values()),
                sequences=max(result.sequences for result in self.robust.values()),
            )
            for place in range(scope_pairs)
        ]


def _rows(
    tested: MeanComparison, layers: list[int], scope_pairs: int, procedure: str, pairs: int
) -> pd.DataFrame:
    """A row per layer and pair of scopes, in that order."""
    rows = pd.DataFrame({"layer": np.repeat(layers, scope_pairs)})
    rows["scopes"] = np.tile(np.arange(scope_pairs), len(layers))
    rows["procedure"], rows["pairs"] = procedure, pairs
    for name, means in zip(_MEANS, (tested.first, tested.second, tested.difference), strict=True):
        rows[name], rows[f"{name} low"], rows[f"{name} high"] = means
    return rows.assign(g=tested.effect, p=tested.p)


# What Figures 7 and 8 share: colours, letters of panels and facts of captions.


FF_AMP = "FF-amp"
RELATED, OTHERS = COLOURS[1], COLOURS[0]
WIDTH = 6.9  # inches


def letter(place: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[place % 26]


def _shown(amp: str, others: str, figure: str) -> dict[str, str]:
    """Facts for captions: the name of the other pairs, and the paper's figure if it is one."""
    is_papers = amp == FF_AMP and others == PAPER
    named = "other pairs" if others == PAPER else "unrelated pairs"
    return {"others": named, "figure": f" (Figure {figure})" if is_papers else ""}


# Figure 7: mean FF-amp of related pairs and of others, layer by layer.


_DEEP = 16  # layers, above which markers are smaller


def _draw_figure_7(rows: Sequence[Finding], amp: str, of_paper: bool) -> drawing.Drawing:
    sides = ("as in the paper" if of_paper else "one draw", "all occurrences")
    axis = f"mean {amp if amp == FF_AMP else 'amplification'}"
    depth = max(int(relation.robust["layer"].max()) for relation in rows)
    figure, axes = drawing.panels(2, len(rows), width=WIDTH / 2, height=1.9, sharey="row")
    for place, relation in enumerate(rows):
        for side, frame in enumerate((relation.paper, relation.robust)):
            panel = axes[2 * place + side]
            _draw_panel(panel, frame, small=depth > _DEEP)
            drawing.layer_ticks(panel, depth)
            drawing.style(
                panel,
                x=words.LAYER,
                y="" if side else axis,
                title=f"({letter(2 * place + side)}) {relation.label}: {sides[side]}",
            )
    drawing.legend(figure, axes, ncols=4)
    return figure


def _draw_panel(panel: Any, frame: pd.DataFrame, small: bool) -> None:
    panel.axhline(0, color=FAINT, lw=0.6)
    if frame.empty:
        said = "too few subword pairs occur often enough"
        panel.annotate(said, (0.5, 0.5), xycoords="axes fraction", ha="center", color=FAINT)
        return
    groups = (("others", "other pairs", OTHERS, "s"), ("mean", "related pairs", RELATED, "o"))
    for name, label, colour, marker in groups:
        low, high = frame[f"{name} low"], frame[f"{name} high"]
        panel.fill_between(frame["layer"], low, high, color=colour, alpha=0.25, lw=0)
        panel.plot(frame["layer"], frame[name], color=colour, lw=1.2, label=label)
        dots: Any = {"ls": "none", "marker": marker, "ms": 3 if small else 4, "mec": colour}
        for filled, said in ((True, f"significant (p < {ALPHA})"), (False, "not significant")):
            some = frame[frame["significant"] == filled]
            fill = colour if filled else "white"
            panel.plot(some["layer"], some[name], mfc=fill, label=said, **dots)


# Figure 8: the distribution of FF-amp in one layer.


BINS = (10, 40)  # of a histogram, at least and at most


def figure_8(rows: Sequence[Finding], amp: str, settings: Settings) -> Figure | None:
    """Draw the scores that the paper's procedure compares, in one layer or the largest effect's."""
    layer = settings.layer
    drawn = [(relation, _row(relation.paper, layer)) for relation in rows]
    drawn = [(relation, row) for relation, row in drawn if row is not None]
    if not drawn:
        return None
    which = (
        "the layer with the largest effect" if layer is None else f"layer {layer} (counted from 1)"
    )
    facts = {"amp": amp, "which": which, **_shown(amp, settings.others, "8")}
    return Figure(lambda: _draw_figure_8(drawn, amp), _say("figure histograms", **facts))


def _row(frame: pd.DataFrame, layer: int | None) -> int | None:
    """Find the row of a layer, or of the largest effect; None if there is none."""
    if layer is None:
        return strongest(frame)
    return next(iter(frame.index[frame["layer"] == layer]), None)


def histogram(
    related: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bin both groups over their central 99 %: edges, and each group's share per bin."""
    both = np.concatenate([related, others])
    bins = int(np.clip(np.sqrt(min(len(related), len(others))), *BINS))
    edges = np.histogram_bin_edges(both, bins, tuple(np.quantile(both, [0.005, 0.995])))
    shares = [np.histogram(group, edges)[0] / len(group) for group in (related, others)]
    return edges, shares[0], shares[1]


def _draw_figure_8(rows: Sequence[tuple[Finding, int]], amp: str) -> drawing.Drawing:
    columns = len(rows) if len(rows) < 4 else 2
    width = WIDTH / (2 if len(rows) == 1 else columns)
    figure, axes = drawing.tiles(len(rows), columns, width, 2.2)
    for place, (panel, (relation, row)) in enumerate(zip(axes, rows, strict=True)):
        groups = [scores[:, row] for scores in relation.scores]
        edges, *shares = histogram(*groups)
        kinds = (("related pairs", RELATED), ("other pairs", OTHERS))
        for share, group, (label, colour) in zip(shares, groups, kinds, strict=True):
            panel.stairs(share, edges, fill=True, color=colour, alpha=0.35, label=label)
            panel.stairs(share, edges, color=colour, lw=1)
            panel.axvline(group.mean(), color=colour, ls="--", lw=1, label=f"mean of {label}")
        panel.locator_params(axis="x", nbins=5)
        drawing.style(
            panel,
            x=amp,
            y="" if place % columns else "share of pairs",
            title=f"({letter(place)}) {relation.label},\n"
            f"layer {relation.paper['layer'].iloc[row]} (counted from 1)",
        )
    drawing.legend(figure, axes, ncols=2)
    return figure


# Figures 7 and 8: are related pairs amplified more than others?


_FORMATS = {"g": ".3f", "p": ".4f", "p adjusted": ".4f"}


@experiment("papers", "ff-relations", needs="plain")
def figures_7_8(evidence: Evidence) -> Result | None:
    """Compare the amplification of related pairs with that of other pairs, per layer."""
    if not has_pairs(evidence):
        return None
    scope_pairs = _scope_pairs(evidence)
    by_scopes = findings(evidence, scope_pairs) if scope_pairs else {}
    if not by_scopes:
        return None
    tables, figures, others = {}, {}, evidence.settings.others
    for pair, rows in by_scopes.items():
        amp, slug = _names(evidence, pair)
        facts = {"amp": amp, "before": pair[0], "after": pair[1], "alpha": ALPHA}
        for relation in rows:
            tables[f"relations-{slug}-{relation.name}"] = _table(relation, evidence, facts)
        kinds = listed([relation.label for relation in rows])
        figures[f"relations-{slug}"] = Figure(
            partial(_draw_figure_7, rows, amp, others == PAPER),
            _say("figure relations", kinds=kinds, **facts, **_shown(amp, others, "7")),
        )
    main = next(iter(by_scopes))
    amp, slug = _names(evidence, main)
    if (histograms := figure_8(by_scopes[main], amp, evidence.settings)) is not None:
        figures[f"relations-{slug}-histograms"] = histograms
    measured = _measured(by_scopes[main]) if slug == "ff" else {}
    found = compare(measured, evidence)
    return Result(tables, figures, found, _summary(by_scopes[main], amp))


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
        for row in relation.paper.itertuples()
    }


def _summary(rows: Sequence[Finding], amp: str) -> dict[str, float]:
    summary = {}
    for relation in rows:
        frame, label = relation.robust, relation.label
        tested = frame[frame["p"].notna()]
        if len(tested):
            share = float((tested["significant"] & (tested["difference"] > 0)).mean())
            summary[f"share of layers where {amp} of {label} is significantly higher"] = share
        if (best := strongest(frame)) is not None:
            summary[f"largest effect (g) of {amp}, {label}"] = float(frame["g"].iloc[best])
    return summary


def _names(evidence: Evidence, pair: ScopePair) -> tuple[str, str]:
    """Name the amplification between two scopes, in words and in names of files."""
    if pair == feed_forward_pair(evidence.scopes):
        return FF_AMP, "ff"
    if pair == whole_block_pair(evidence.scopes):
        return "amplification by all behind the first residual", "layer"
    return f"amplification from {pair[0]} to {pair[1]}", "-".join(pair).lower()


def _table(relation: Finding, evidence: Evidence, facts: dict[str, Any]) -> Table:
    """All procedures' rows; the caption says which pairs the others are."""
    settings, own = evidence.settings, list(user_relation_groups(evidence))
    amp = facts["amp"]
    facts = {**facts, "title": amp[0].upper() + amp[1:], "label": relation.label}
    facts |= {"left_out": relation.left_out, "sequences": relation.sequences}
    is_near = relation.name == ADJACENT and ADJACENT not in own
    others = "near" if is_near else settings.others
    parts = [
        _say("table relations", min_count=settings.min_count, longest=EDGES[-3], **facts),
        _say(f"others {others}"),
    ]
    if own and relation.name not in own:
        parts.append(_say("others user"))
    return Table(relation.frame, ".5f", " ".join(parts), _FORMATS)

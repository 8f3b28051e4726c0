"""Are related pairs amplified more than others? Kobayashi et al. 2024, section 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.analysis.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.experiments import words
from normlens.experiments.base import Evidence, Experiment, Figure, Result, Table
from normlens.experiments.drawing import COLOURS, FAINT, SMALL, TEXT, layer_ticks, panels, style
from normlens.experiments.published import compare
from normlens.measures.reservoir import EDGES
from normlens.measures.scope_pairs import ScopePair, feed_forward_pair, whole_block_pair
from normlens.scopes import consecutive

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

#: Pairs of a group, at most, that the bootstrap draws from.
TESTED = 5_000
#: Share of the target pairs, at most, that may stay without another pair of their own.
UNMATCHED = 0.05
ALPHA = 0.05
BINS = (10, 40)  # of a histogram, at least and at most

_LABELS = {
    "same_word": "word-split pairs",
    "same_entity": "named-entity pairs",
    "same_type": "same-subword pairs",
    "adjacent": "adjacent pairs",
}
_FF_AMP = "FF-amp"
_TABLES = ("amplification_sample", "amplification_distance")


@dataclass(frozen=True)
class _Sample:
    """Sampled pairs of one relation, by priority: scores (pairs, scope pairs) and distances."""

    distance: NDArray[np.int64]
    score: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.distance)

    def where(self, chosen: NDArray) -> _Sample:
        return _Sample(self.distance[chosen], self.score[chosen])


@dataclass(frozen=True)
class _Relation:
    """What was found for one relation under one pair of scopes."""

    name: str
    frame: pd.DataFrame
    target: NDArray[np.float64]  # (tested pairs, layers)
    others: NDArray[np.float64]
    left_out: int
    near: bool  # adjacent tokens, to which no distance can be matched

    @property
    def label(self) -> str:
        return _label(self.name)

    @property
    def compared(self) -> str:
        """What the pairs are compared with."""
        return "pairs further apart" if self.near else "other pairs at the same distance"

    @property
    def strongest(self) -> int | None:
        """The row of the largest effect, in whichever direction."""
        effect = self.frame["g"].abs()
        return None if effect.isna().all() else int(effect.to_numpy().argmax())

    def layers(self, sign: int) -> list[int]:
        """Layers with a significant difference of this sign."""
        chosen = self.frame["significant"] & (np.sign(self.frame["difference"]) == sign)
        return self.frame.loc[chosen, "layer"].tolist()


def relations(evidence: Evidence) -> Result | None:
    """Amplification of related pairs beside that of other pairs, per layer."""
    if evidence.run is None or not set(_TABLES) <= set(evidence.run.tables):
        return None
    scope_pairs = _scope_pairs(evidence)
    found = _found(evidence, scope_pairs) if scope_pairs else {}
    if not found:
        return None
    tables, figures, sentences = {}, {}, []
    for number, (pair, rows) in enumerate(found.items()):
        amp, slug = _amp(evidence, pair), _slug(evidence, pair)
        for relation in rows:
            tables[f"relations-{slug}-{relation.name}"] = _table(relation, pair, amp)
        figures[f"relations-{slug}"] = _lines_figure(rows, pair, amp)
        if number == 0:
            figures[f"relations-{slug}-histograms"] = _histograms_figure(
                rows, amp, evidence.settings.layer
            )
            sentences += [_sentence(relation, amp) for relation in rows]
        else:
            sentences.append(_short_sentence(rows, amp))
    main = next(iter(found.values()))
    amp = _amp(evidence, next(iter(found)))
    return Result(
        tables=tables,
        figures=figures,
        sentences=sentences,
        comparisons=compare("significance/", _measured(main), evidence.model, evidence.data)
        if feed_forward_pair(evidence.scopes) in found
        else [],
        summary=_summary(main, amp),
    )


# What the tables hold --------------------------------------------------------------------------


def _scope_pairs(evidence: Evidence) -> list[ScopePair]:
    """The pairs of scopes in the tables, the one around the feed-forward block first."""
    rows = evidence.sql("SELECT DISTINCT before, after FROM amplification_distance ORDER BY ALL")
    there = [(str(before), str(after)) for before, after in rows.itertuples(index=False)]
    first = [feed_forward_pair(evidence.scopes), whole_block_pair(evidence.scopes)]
    return sorted(there, key=lambda pair: first.index(pair) if pair in first else len(first))


def _found(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[ScopePair, list[_Relation]]:
    """Every relation of which there are pairs to compare, for each pair of scopes."""
    exact = evidence.sql(
        "SELECT before, after, layer + 1 AS layer, relation, distance, count, sum "
        "FROM amplification_distance WHERE relation <> 'special'"
    )
    main = exact[(exact["before"] == scope_pairs[0][0]) & (exact["after"] == scope_pairs[0][1])]
    samples = _samples(evidence, scope_pairs)
    own = {str(name) for name in exact["relation"].unique()} - {*_LABELS, "other"}
    found: dict[ScopePair, list[_Relation]] = {}
    for name in (*_LABELS, *sorted(own)):
        near = name == "adjacent" and not (exact["relation"] == name).any()
        groups = _near_and_far(samples, main) if near else _matched_groups(samples, name)
        groups = {layer: group for layer, group in groups.items() if len(group[0]) > 1}
        if not groups:
            continue
        size = min(len(target) for target, _ in groups.values())
        settings = evidence.settings
        stacked = [
            np.hstack([group[side].score[:size] for group in groups.values()]) for side in (0, 1)
        ]  # (pairs, layers · scope pairs)
        tested = compare_means(
            stacked[0], stacked[1], resamples=settings.resamples, seed=settings.seed
        )
        for place, pair in enumerate(scope_pairs):
            columns = slice(place, None, len(scope_pairs))
            rows = exact[(exact["before"] == pair[0]) & (exact["after"] == pair[1])]
            means = (_near_and_far_means if near else _matched_means)(rows, name)
            frame = _frame(list(groups), tested, columns).merge(means, on="layer", how="left")
            frame = frame.fillna({"pairs": 0, "left_out": 0})
            relation = _Relation(
                name=name,
                frame=frame.astype({"pairs": int})[_COLUMNS],
                target=stacked[0][:, columns],
                others=stacked[1][:, columns],
                left_out=int(frame["left_out"].max()),
                near=near,
            )
            found.setdefault(pair, []).append(relation)
    return found


def _samples(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[int, dict[str, _Sample]]:
    """Each layer's (from 1) sampled pairs by relation, in the order of their priorities."""
    place = " ".join(
        f"WHEN before = '{before}' AND after = '{after}' THEN {number}"
        for number, (before, after) in enumerate(scope_pairs)
    )
    # The same pairs of tokens are sampled under all scopes.
    rows = evidence.sql(
        f"SELECT layer + 1 AS layer, relation, distance, score, CASE {place} END AS place "
        "FROM amplification_sample WHERE relation <> 'special' "
        'ORDER BY layer, relation, priority, "index", target, source, place'
    )
    found: dict[int, dict[str, _Sample]] = {}
    for (layer, relation), group in rows.groupby(["layer", "relation"], observed=True):
        found.setdefault(layer, {})[str(relation)] = _Sample(
            group["distance"].to_numpy(np.int64)[:: len(scope_pairs)],
            group["score"].to_numpy(np.float64).reshape(-1, len(scope_pairs)),
        )
    return found


# Which other pairs -----------------------------------------------------------------------------

_Groups = dict[int, tuple[_Sample, _Sample]]  # by layer: target pairs and others, as many


def _matched_groups(samples: Mapping[int, Mapping[str, _Sample]], name: str) -> _Groups:
    groups: _Groups = {}
    for layer, found in samples.items():
        if name in found and "other" in found:
            target, others = matched(found[name].distance, found["other"].distance)
            if len(target):
                groups[layer] = found[name].where(target), found["other"].where(others)
    return groups


def matched(
    target: NDArray[np.int64], others: NDArray[np.int64], limit: int = TESTED
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of target pairs and of as many other pairs with the same distances.

    Both sides' distances |i − j| are given in a random order, and pairs are taken in it: each
    target pair gets an other pair that no other has. Where others of a distance run out, fewer
    target pairs are taken altogether, so that at most `UNMATCHED` of them stay without one.
    Distances that share a stratum of the sample count as one.
    """
    here, there = (np.searchsorted(EDGES, distance) for distance in (target, others))
    size = len(EDGES) + 1
    available = np.bincount(there, minlength=size)
    usable = np.flatnonzero(available[here] > 0)
    rank = pd.Series(here[usable]).groupby(here[usable]).cumcount().to_numpy(np.int64)
    free = rank < available[here[usable]]
    allowed = np.cumsum(~free) <= UNMATCHED * np.arange(1, len(free) + 1)
    length = int(np.flatnonzero(allowed).max(initial=-1)) + 1
    chosen = np.flatnonzero(free[:length])[:limit]
    begins = np.cumsum(available) - available
    by_stratum = np.argsort(there, kind="stable")
    places = usable[chosen]
    return places, by_stratum[begins[here[places]] + rank[chosen]]


def _near_and_far(samples: Mapping[int, Mapping[str, _Sample]], exact: pd.DataFrame) -> _Groups:
    """Other pairs of adjacent tokens, and of tokens further apart, as often as they occur."""
    apart = exact[(exact["relation"] == "other") & (exact["distance"] > 1)]
    groups: _Groups = {}
    for layer, found in samples.items():
        others = found.get("other")
        if others is None:
            continue
        near = np.flatnonzero(others.distance == 1)[:TESTED]
        rows = apart[apart["layer"] == layer]
        far = proportional(
            others.distance,
            np.bincount(
                np.searchsorted(EDGES, rows["distance"]),
                rows["count"],
                minlength=len(EDGES) + 1,
            ),
            len(near),
        )
        size = min(len(near), len(far))
        if size:
            groups[layer] = others.where(near[:size]), others.where(far)
    return groups


def proportional(distance: NDArray[np.int64], counts: NDArray, limit: int) -> NDArray[np.intp]:
    """Places of `limit` pairs, or fewer, from each stratum in proportion to its pairs' `counts`.

    `distance` is that of sampled pairs, in a random order. The first few of the places are in that
    proportion too.
    """
    strata = np.searchsorted(EDGES, distance)
    available = np.bincount(strata, minlength=len(counts))
    share = counts / max(counts.sum(), 1)
    there = share > 0
    if not there.any():
        return np.empty(0, dtype=np.intp)
    size = min(limit, int((available[there] / share[there]).min()))
    ends = np.rint(size * np.cumsum(share)).astype(np.int64)
    wanted = np.minimum(np.diff(ends, prepend=0), available)
    rank = pd.Series(strata).groupby(strata).cumcount().to_numpy(np.int64)
    chosen = np.flatnonzero(rank < wanted[strata])
    return chosen[np.argsort((rank[chosen] + 0.5) / wanted[strata[chosen]], kind="stable")]


# Numbers ---------------------------------------------------------------------------------------

_COLUMNS = [
    "layer",
    "pairs",
    "mean",
    "others",
    "difference",
    "g",
    "p",
    "p adjusted",
    "significant",
    "mean low",
    "mean high",
    "others low",
    "others high",
    "difference low",
    "difference high",
    "mean of all",
    "others of all",
]
_FORMATS = {
    **dict.fromkeys((name for name in _COLUMNS if name not in ("layer", "significant")), ".5f"),
    "pairs": "d",
    "g": ".3f",
    "p": ".4f",
    "p adjusted": ".4f",
}


def _frame(layers: list[int], tested: MeanComparison, columns: slice) -> pd.DataFrame:
    frame = pd.DataFrame({"layer": layers})
    for name, means in (
        ("mean", tested.first),
        ("others", tested.second),
        ("difference", tested.difference),
    ):
        frame[name] = means.mean[columns]
        frame[f"{name} low"], frame[f"{name} high"] = means.low[columns], means.high[columns]
    frame["g"], frame["p"] = tested.effect[columns], tested.p[columns]
    frame["p adjusted"] = benjamini_hochberg(frame["p"])
    frame["significant"] = frame["p adjusted"] < ALPHA
    return frame


def _matched_means(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Exact means over all of the run's pairs: ``Σ_d n_d · mean of others at d / Σ_d n_d``."""
    target = rows[rows["relation"] == name].set_index(["layer", "distance"])[["count", "sum"]]
    others = rows[rows["relation"] == "other"].set_index(["layer", "distance"])[["count", "sum"]]
    both = target.join(others.add_suffix("_other"), how="left")
    alone = both["count_other"].isna()
    kept = both[~alone]
    weighted = kept["count"] * kept["sum_other"] / kept["count_other"]
    pairs = kept.groupby("layer")["count"].sum()
    return pd.DataFrame(
        {
            "pairs": pairs,
            "mean of all": kept.groupby("layer")["sum"].sum() / pairs,
            "others of all": weighted.groupby("layer").sum() / pairs,
            "left_out": both["count"].where(alone, 0).groupby("layer").sum(),
        }
    ).reset_index()


def _near_and_far_means(rows: pd.DataFrame, _: str) -> pd.DataFrame:
    others = rows[rows["relation"] == "other"]
    near, far = (
        others[chosen].groupby("layer")[["count", "sum"]].sum()
        for chosen in (others["distance"] == 1, others["distance"] > 1)
    )
    return pd.DataFrame(
        {
            "pairs": near["count"],
            "mean of all": near["sum"] / near["count"],
            "others of all": far["sum"] / far["count"],
            "left_out": 0,
        }
    ).reset_index()


def _measured(rows: Sequence[_Relation]) -> dict[str, float]:
    """1 where related pairs are amplified more, by the paper's own criterion (p not adjusted)."""
    return {
        f"significance/{relation.name}/layer-{row.layer}": float(
            row.p < ALPHA and row.difference > 0
        )
        for relation in rows
        for row in relation.frame.itertuples()
    }


def _summary(rows: Sequence[_Relation], amp: str) -> dict[str, float]:
    found = {}
    for relation in rows:
        share = len(relation.layers(+1)) / len(relation.frame)
        found[f"share of layers where {amp} of {relation.label} is significantly higher"] = share
        if relation.strongest is not None:
            effect = float(relation.frame["g"].iloc[relation.strongest])
            found[f"largest effect (g) of {amp}, {relation.label}"] = effect
    return found


# Words -----------------------------------------------------------------------------------------


def _label(name: str) -> str:
    return _LABELS.get(name, f"{name} pairs")


def _amp(evidence: Evidence, pair: ScopePair) -> str:
    """What the amplification is called: FF-amp, or by which components it is."""
    steps = consecutive(evidence.scopes)
    before, after = ([getattr(step, side) for step in steps] for side in ("before", "after"))
    if pair[0] not in before or pair[1] not in after:
        return f"amplification from {pair[0]} to {pair[1]}"
    passed = [step.component for step in steps[before.index(pair[0]) : after.index(pair[1]) + 1]]
    if len(passed) == 1:
        return f"{passed[0]}-amp"
    return f"amplification by {words.listed(passed)} together"


def _slug(evidence: Evidence, pair: ScopePair) -> str:
    if pair == feed_forward_pair(evidence.scopes):
        return "ff"
    if pair == whole_block_pair(evidence.scopes):
        return "layer"
    return "-".join(pair).lower()


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _after_correction(relation: _Relation) -> str:
    number = len(relation.frame)
    corrected = f" after Benjamini–Hochberg over {number} layers" if number > 1 else ""
    return f"{ALPHA}{corrected}"


def _sentence(relation: _Relation, amp: str) -> str:
    higher, lower = relation.layers(+1), relation.layers(-1)
    where = _where(higher, lower)
    if where:
        found = (
            f"{_capital(amp)} of {relation.label}, compared with that of {relation.compared}, is "
            f"significantly {where} (p < {_after_correction(relation)})"
        )
    else:
        found = (
            f"In no layer does {amp} of {relation.label} differ significantly from that of "
            f"{relation.compared} (p ≥ {_after_correction(relation)})"
        )
    if relation.strongest is None:
        return f"{found}."
    row = relation.frame.iloc[relation.strongest]
    return (
        f"{found}; the effect is largest in layer {int(row['layer'])} (mean "
        f"{words.number(row['mean'], 4)} against {words.number(row['others'], 4)}, g = "
        f"{words.number(row['g'])})."
    )


def _where(higher: list[int], lower: list[int]) -> str:
    parts = [
        f"{word} in {words.layers(layers)}"
        for word, layers in (("higher", higher), ("lower", lower))
        if layers
    ]
    return " and ".join(parts)


def _short_sentence(rows: Sequence[_Relation], amp: str) -> str:
    parts = []
    for relation in rows:
        where = _where(relation.layers(+1), relation.layers(-1))
        parts.append(f"of {relation.label} {f'it is {where}' if where else 'no layer differs'}")
    return (
        f"{_capital(amp)}, compared in the same way (p < {_after_correction(rows[0])}): "
        f"{'; '.join(parts)}."
    )


def _table(relation: _Relation, pair: ScopePair, amp: str) -> Table:
    number = len(relation.target)
    if relation.near:
        how = (
            "Others are pairs of unrelated tokens at distances of 2 and more, as often as each "
            "occurs: adjacent pairs cannot be matched by distance."
        )
    else:
        how = (
            "Others are pairs of unrelated tokens with the same distribution of |i − j| (distances "
            f"above {EDGES[-3]} in groups)."
        )
        if relation.left_out:
            how += (
                f" Left out: {relation.left_out} pair{'s' * (relation.left_out != 1)} per layer at "
                "distances where there are no others."
            )
    caption = (
        f"{_capital(amp)} ({pair[0]} to {pair[1]}) of {relation.label} and of others, per layer. "
        f"{how} Means, 95 % bootstrap intervals (low, high), effect size (Hedges' g) and p are of "
        f"{number} pairs drawn from each group; “pairs” counts all in the data, and the last two "
        f"columns are the means over all of them. Significant: p < {_after_correction(relation)}."
    )
    return Table(relation.frame, caption, _FORMATS)


# Pictures --------------------------------------------------------------------------------------

_TARGET, _OTHERS = COLOURS[1], COLOURS[0]
_WIDTH = 6.9  # inches
_DEEP = 16  # layers, above which a panel takes the whole width


def _lines_figure(rows: Sequence[_Relation], pair: ScopePair, amp: str) -> Figure:
    names = words.listed([relation.label for relation in rows])
    near = any(relation.near for relation in rows)
    return Figure(
        lambda: _draw_lines(rows, amp),
        f"Mean {amp} ({pair[0]} to {pair[1]}) of {names}, and of other pairs at the same distance"
        + (" (for adjacent pairs: of pairs further apart)" if near else "")
        + f", with 95 % bootstrap intervals. Filled: significant, p < {_after_correction(rows[0])}"
        + (" (Figure 7)." if amp == _FF_AMP else "."),
    )


def _grid(
    rows: Sequence[_Relation], height: float, columns: int | None = None
) -> tuple[Drawing, list[Any]]:
    columns = columns or (len(rows) if len(rows) < 4 else 2 + (len(rows) > 4))
    lines = -(-len(rows) // columns)
    width = _WIDTH / (2 if len(rows) == 1 else columns)
    figure, axes = panels(columns, lines, width=width, height=height)
    for spare in axes[len(rows) :]:
        spare.set_visible(False)
    return figure, axes[: len(rows)]


def _draw_lines(rows: Sequence[_Relation], amp: str) -> Drawing:
    depth = max(int(relation.frame["layer"].max()) for relation in rows)
    deep = depth > _DEEP
    figure, axes = _grid(rows, 1.9, columns=1) if deep else _grid(rows, 2.35)
    first_column = _first_column(axes)
    for place, (panel, relation) in enumerate(zip(axes, rows, strict=True)):
        frame = relation.frame
        panel.axhline(0, color=FAINT, lw=0.6)
        for name, colour, marker in (("others", _OTHERS, "s"), ("mean", _TARGET, "o")):
            panel.fill_between(
                frame["layer"],
                frame[f"{name} low"],
                frame[f"{name} high"],
                color=colour,
                alpha=0.25,
                lw=0,
            )
            panel.plot(frame["layer"], frame[name], color=colour, lw=1.2)
            for filled in (True, False):
                some = frame[frame["significant"] == filled]
                panel.plot(
                    some["layer"],
                    some[name],
                    ls="none",
                    marker=marker,
                    ms=3.5 if deep else 4,
                    mew=0.9,
                    mec=colour,
                    mfc=colour if filled else "white",
                )
        layer_ticks(panel, depth)
        style(
            panel,
            x="layer",
            y=_axis(amp) if panel in first_column else "",
            title=f"({'abcdefghijklmnopqrstuvwxyz'[place % 26]}) {relation.label}",
        )
    _legend(figure, significance=True)
    return figure


def _first_column(axes: list[Any]) -> list[Any]:
    return [panel for panel in axes if panel.get_subplotspec().is_first_col()]


def _axis(amp: str) -> str:
    return f"mean {amp}" if amp.endswith("-amp") else "mean amplification"


def _legend(figure: Drawing, significance: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = ("related pairs (as titled)", "other pairs")
    handles: list[Any]
    if significance:
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=4, lw=1.2, label=name)
            for name, colour, marker in zip(names, (_TARGET, _OTHERS), "os", strict=True)
        ]
        for label, fill in ((f"significant (p < {ALPHA})", FAINT), ("not significant", "white")):
            handles.append(
                Line2D([], [], ls="none", marker="o", ms=4, mec=FAINT, mfc=fill, label=label)
            )
    else:
        handles = [
            Patch(facecolor=colour, alpha=0.5, label=name)
            for name, colour in zip(names, (_TARGET, _OTHERS), strict=True)
        ]
        handles.append(Line2D([], [], color=FAINT, ls="--", lw=1, label="mean"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        fontsize=SMALL,
        frameon=False,
        handlelength=1.8,
    )


def _histograms_figure(rows: Sequence[_Relation], amp: str, layer: int | None) -> Figure:
    shown = [relation for relation in rows if _row(relation, layer) is not None]
    if layer is None or len(shown) < len(rows):
        which = "the layer with the largest effect"
        shown = [relation for relation in rows if _row(relation, None) is not None] or list(rows)
        if layer is not None:
            which += f" (there is no layer {layer})"
        layer = None
    else:
        which = f"layer {layer}"
    return Figure(
        lambda: _draw_histograms(shown, amp, layer),
        f"Distribution of {amp} in {which}: related pairs and others at the same distance"
        + (" (for adjacent pairs: further apart)" if any(row.near for row in shown) else "")
        + ", each group's shares adding up to 1; the central 99 % of both together are shown"
        + (" (Figure 8)." if amp == _FF_AMP else "."),
    )


def _row(relation: _Relation, layer: int | None) -> int | None:
    """The row of a layer, or of the largest effect; None if there is none."""
    if layer is None:
        return relation.strongest
    places = np.flatnonzero(relation.frame["layer"] == layer)
    return int(places[0]) if len(places) else None


def histogram(
    target: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Edges over the central 99 % of both groups, and each group's share per bin."""
    both = np.concatenate([target, others])
    bins = int(np.clip(np.sqrt(min(len(target), len(others))), *BINS))
    edges = np.histogram_bin_edges(both, bins, tuple(np.quantile(both, [0.005, 0.995])))
    shares = [np.histogram(group, edges)[0] / len(group) for group in (target, others)]
    return edges, shares[0], shares[1]


def _draw_histograms(rows: Sequence[_Relation], amp: str, layer: int | None) -> Drawing:
    figure, axes = _grid(rows, 2.2)
    first_column = _first_column(axes)
    for place, (panel, relation) in enumerate(zip(axes, rows, strict=True)):
        row = _row(relation, layer) or 0
        groups = relation.target[:, row], relation.others[:, row]
        edges, *shares = histogram(*groups)
        for share, group, colour in zip(shares, groups, (_TARGET, _OTHERS), strict=True):
            panel.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            panel.stairs(share, edges, color=colour, lw=1)
            panel.axvline(group.mean(), color=colour, ls="--", lw=1)
        panel.locator_params(axis="x", nbins=5)
        style(
            panel,
            x=amp,
            y="share of pairs" if panel in first_column else "",
            title=f"({'abcdefghijklmnopqrstuvwxyz'[place % 26]}) {relation.label}, "
            f"layer {relation.frame['layer'].iloc[row]}",
        )
        panel.title.set_fontsize(TEXT)
    _legend(figure, significance=False)
    return figure


EXPERIMENTS = (
    Experiment(
        name="ff-relations",
        title="Which kinds of pairs are amplified",
        source="Kobayashi et al. 2024, section 5, Figures 7 and 8",
        question=(
            "Does the feed-forward block amplify the subwords of one word, the tokens of one named "
            "entity and other related pairs more than unrelated pairs?"
        ),
        method=(
            "FF-amp of a seeded random sample of related pairs, and of one unrelated pair at the "
            "same distance |i − j| for each. Means with percentile bootstrap intervals; unpaired "
            "two-sided bootstrap test of the studentised difference of means (Efron and Tibshirani "
            "1993, algorithm 16.2), which takes pairs as independent; p adjusted over the layers "
            "by Benjamini and Hochberg's method; effect size: Hedges' g."
        ),
        needs="plain",
        work=relations,
        absent=(
            "the run has no amplification tables, or no two tokens of its data are related or "
            "adjacent in a layer whose feed-forward block mixes tokens"
        ),
    ),
)

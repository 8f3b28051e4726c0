"""Are related pairs amplified more than others? Kobayashi et al. 2024, section 5."""

from __future__ import annotations

from collections.abc import Sequence

from normlens.experiments import words
from normlens.experiments.base import Evidence, Experiment, Result, Table
from normlens.experiments.differences import ALPHA, COLUMNS, Finding, findings
from normlens.experiments.published import compare
from normlens.experiments.relation_figures import histograms_figure, lines_figure
from normlens.measures.reservoir import EDGES
from normlens.measures.scope_pairs import ScopePair, feed_forward_pair, whole_block_pair
from normlens.scopes import consecutive

_TABLES = ("amplification_sample", "amplification_distance")
_FORMATS = {
    **dict.fromkeys((name for name in COLUMNS if name not in ("layer", "significant")), ".5f"),
    "pairs": "d",
    "g": ".3f",
    "p": ".4f",
    "p adjusted": ".4f",
}


def relations(evidence: Evidence) -> Result | None:
    """Amplification of related pairs beside that of other pairs, per layer."""
    if evidence.run is None or not set(_TABLES) <= set(evidence.run.tables):
        return None
    scope_pairs = _scope_pairs(evidence)
    found = findings(evidence, scope_pairs) if scope_pairs else {}
    if not found:
        return None
    tables, figures, sentences = {}, {}, []
    for number, (pair, rows) in enumerate(found.items()):
        amp, slug = _amp(evidence, pair), _slug(evidence, pair)
        for relation in rows:
            tables[f"relations-{slug}-{relation.name}"] = _table(relation, pair, amp)
        figures[f"relations-{slug}"] = lines_figure(rows, pair, amp)
        if number == 0:
            figures[f"relations-{slug}-histograms"] = histograms_figure(
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


def _scope_pairs(evidence: Evidence) -> list[ScopePair]:
    """The pairs of scopes in the tables, the one around the feed-forward block first."""
    rows = evidence.sql("SELECT DISTINCT before, after FROM amplification_distance ORDER BY ALL")
    there = [(str(before), str(after)) for before, after in rows.itertuples(index=False)]
    first = [feed_forward_pair(evidence.scopes), whole_block_pair(evidence.scopes)]
    return sorted(there, key=lambda pair: first.index(pair) if pair in first else len(first))


def _measured(rows: Sequence[Finding]) -> dict[str, float]:
    """1 where related pairs are amplified more, by the paper's own criterion (p not adjusted)."""
    return {
        f"significance/{relation.name}/layer-{row.layer}": float(
            row.p < ALPHA and row.difference > 0
        )
        for relation in rows
        for row in relation.frame.itertuples()
    }


def _summary(rows: Sequence[Finding], amp: str) -> dict[str, float]:
    found = {}
    for relation in rows:
        share = len(relation.layers(+1)) / len(relation.frame)
        found[f"share of layers where {amp} of {relation.label} is significantly higher"] = share
        if relation.strongest is not None:
            effect = float(relation.frame["g"].iloc[relation.strongest])
            found[f"largest effect (g) of {amp}, {relation.label}"] = effect
    return found


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


def _sentence(relation: Finding, amp: str) -> str:
    higher, lower = relation.layers(+1), relation.layers(-1)
    where = _where(higher, lower)
    if where:
        found = (
            f"{_capital(amp)} of {relation.label}, compared with that of {relation.compared}, is "
            f"significantly {where} (p < {relation.threshold})"
        )
    else:
        found = (
            f"In no layer does {amp} of {relation.label} differ significantly from that of "
            f"{relation.compared} (p ≥ {relation.threshold})"
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


def _short_sentence(rows: Sequence[Finding], amp: str) -> str:
    parts = []
    for relation in rows:
        where = _where(relation.layers(+1), relation.layers(-1))
        parts.append(f"of {relation.label} {f'it is {where}' if where else 'no layer differs'}")
    return (
        f"{_capital(amp)}, compared in the same way (p < {rows[0].threshold}): {'; '.join(parts)}."
    )


def _table(relation: Finding, pair: ScopePair, amp: str) -> Table:
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
        f"columns are the means over all of them. Significant: p < {relation.threshold}."
    )
    return Table(relation.frame, caption, _FORMATS)


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

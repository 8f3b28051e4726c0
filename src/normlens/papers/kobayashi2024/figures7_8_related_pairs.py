"""Figures 7 and 8: are related pairs amplified more than others? Kobayashi et al. 2024."""

from __future__ import annotations

from collections.abc import Sequence

from normlens.corpus.measures.pairs import EDGES
from normlens.corpus.measures.tokens import ScopePair, feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.related_pairs.figure7_lines import lines_figure
from normlens.papers.kobayashi2024.related_pairs.figure8_histograms import histograms_figure
from normlens.papers.kobayashi2024.related_pairs.findings import (
    ALL,
    ALPHA,
    COLUMNS,
    OCCURRENCES,
    TYPES,
    Finding,
    strongest,
    verdicts,
)
from normlens.papers.kobayashi2024.related_pairs.pair_tables import (
    OF_PAPER,
    has_pairs,
    user_relation_groups,
)
from normlens.papers.kobayashi2024.related_pairs.procedures import findings
from normlens.papers.kobayashi2024.related_pairs.sentences import capital, sentence, short_sentence
from normlens.papers.published import compare
from normlens.reports.base import Result, Table
from normlens.scopes import consecutive

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
    tables, figures, sentences = {}, {}, []
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
            sentences += [sentence(relation, amp) for relation in rows]
        else:
            sentences.append(short_sentence(rows, amp))
    main = next(iter(by_scopes.values()))
    amp = _amp(evidence, next(iter(by_scopes)))
    return Result(
        tables=tables,
        figures=figures,
        sentences=sentences,
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
            "tokens that have no word, entity or subword in common (--others unrelated)."
        )
    where = "on both sides" if relation.name in OF_PAPER else "among the others"
    return (
        f"Others are, as in the paper, all pairs that are not {relation.label}, with the same "
        "distribution of |i − j|: those with special tokens and those related in another way are "
        f"among them. Pairs of one and the same subword are left out {where} (footnote 7)."
    )


EXPERIMENT = Experiment(
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
        "(footnote 7). With --others unrelated they are pairs of two ordinary tokens that have no "
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

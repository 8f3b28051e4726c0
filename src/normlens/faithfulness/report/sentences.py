"""Sentences that say who wins a protocol, by how much, and whether chance explains it."""

from __future__ import annotations

import pandas as pd

from normlens.errors import listed
from normlens.faithfulness.report.differences import HOLM, Differences, significant
from normlens.faithfulness.report.protocol_words import LEAST, NORMLENS, PRIORS
from normlens.faithfulness.report.ranking import Ranking
from normlens.measures.bootstrap import LEAST_EXAMPLES
from normlens.reports.formatting import count
from normlens.reports.words import fixed

_SMALL = 0.005  # differences below have one more digit
_ORDINALS = {1: "first", 2: "second", 3: "third"}


def verdict(ranking: Ranking, differences: Differences) -> list[str]:
    """Say what a protocol's tables show."""
    sentences = [_lead(ranking, differences)]
    if len(ranking.methods) > 1 and ranking.certain:
        sentences.append(_rival(ranking, differences))
        sentences.append(_reach(ranking.methods[0], ranking, differences))
        if NORMLENS in ranking.methods[1:]:
            sentences += [_place(ranking, differences), _reach(NORMLENS, ranking, differences)]
    sentences += [_priors(ranking), _least_first(ranking), _without_value(ranking)]
    return [sentence for sentence in sentences if sentence]


def with_interval(row: pd.Series, value: str = "value") -> str:
    """Write a value with its interval: 0.538 [0.520, 0.556]."""
    low, high = ("low", "high") if value in ("value", "difference") else _ends(value)
    digits = 4 if value == "difference" and abs(row[value]) < _SMALL else 3
    text = fixed(row[value], digits)
    if row[low] != row[low]:
        return text
    return f"{text} [{fixed(row[low], digits)}, {fixed(row[high], digits)}]"


def _ends(value: str) -> tuple[str, str]:
    return f"{value} low", f"{value} high"


def adjusted_p(row: pd.Series) -> str:
    p = float(row[HOLM])
    return "Holm-adjusted p " + ("< 0.001" if p < 0.001 else f"= {p:.3f}")


def _lead(ranking: Ranking, differences: Differences) -> str:
    winner, *others = ranking.methods
    value = with_interval(ranking.row(winner))
    value += " (lower is better)" if ranking.words.lower_is_better else ""
    if not others:
        return f"{winner} is the only method, with {value}."
    prior = ", a prior that does not look at the model," if winner in PRIORS else ""
    after = with_interval(ranking.row(others[0]))
    if not ranking.certain:
        return (
            f"{winner}{prior} has the best value, {value}, before {others[0]} with {after}; "
            f"{count(ranking.examples, 'example')} are too few for an interval or a test "
            f"(at least {LEAST_EXAMPLES})."
        )
    row = differences.between(winner, others[0])
    by = f"{with_interval(row, 'difference')}, {adjusted_p(row)}"
    if significant(row):
        return f"{winner}{prior} leads with {value}; the next is {others[0]}, difference {by}."
    return (
        f"{winner}{prior} has the best value, {value}, but its lead over {others[0]} ({after}) is "
        f"not significant: difference {by}."
    )


def _rival(ranking: Ranking, differences: Differences) -> str:
    """Compare the winner with the best of another family, where the next is of its own."""
    winner, after = ranking.methods[:2]
    rival = ranking.rival
    if rival in (None, after):
        return ""
    row = differences.between(winner, str(rival))
    sure = "" if significant(row) else ", which is not significant"
    return (
        f"{after} is another rule of the same frozen network; of all other methods {rival} is the "
        f"best, difference {with_interval(row, 'difference')}, {adjusted_p(row)}{sure}."
    )


def _reach(method: str, ranking: Ranking, differences: Differences) -> str:
    """Say which other methods a method is significantly better than, and worse than."""
    rows = differences.of(method)
    sign = -1 if ranking.words.lower_is_better else 1
    sure = [significant(row) for _, row in rows.iterrows()]
    better = sign * rows["difference"] > 0
    behind = list(rows["against"][[s and not b for s, b in zip(sure, better, strict=True)]])
    open_ = list(rows["against"][[not s for s in sure]])
    ahead = len(rows) - len(behind) - len(open_)
    all_ = "the only other method" if len(rows) == 1 else f"all {len(rows)} other methods"
    if ahead == len(rows):
        return f"{method} is significantly better than {all_}."
    parts = [f"significantly better than {ahead} of {count(len(rows), 'other method')}"]
    parts += [f"significantly worse than {listed(behind)}"] if behind else []
    parts += [f"not significantly different from {listed(open_)}"] if open_ else []
    return f"{method} is {listed(parts)}."


def _place(ranking: Ranking, differences: Differences) -> str:
    """Say where NormLens stands if it does not lead."""
    place = ranking.methods.index(NORMLENS) + 1
    winner = ranking.methods[0]
    row = differences.between(winner, NORMLENS)
    named = _ORDINALS.get(place, f"number {place}")
    sure = "" if significant(row) else ", which is not significant"
    return (
        f"{NORMLENS} is {named} of {len(ranking.methods)} with "
        f"{with_interval(ranking.row(NORMLENS))}; {winner} differs from it by "
        f"{with_interval(row, 'difference')} ({adjusted_p(row)}){sure}."
    )


def _priors(ranking: Ranking) -> str:
    """Name the methods that do not look at the model, with their values."""
    priors = [name for name in PRIORS if name in ranking.methods]
    if not priors or len(priors) == len(ranking.methods):
        return ""
    values = listed([f"{name} {with_interval(ranking.row(name))}" for name in priors])
    noun = "The prior" if len(priors) == 1 else "The priors"
    verb = "does" if len(priors) == 1 else "do"
    return f"{noun}, which {verb} not look at the model: {values}."


def _least_first(ranking: Ranking) -> str:
    name = "least first"
    if name not in ranking.table:
        return ""
    lower = ranking.words.better_with(LEAST) == "lower"
    best = ranking.table.sort_values(name, ascending=lower, kind="stable").iloc[0]
    return (
        f"With the least important tokens first {'lower' if lower else 'higher'} is better: "
        f"{best['method']} has {with_interval(best, name)}."
    )


def _without_value(ranking: Ranking) -> str:
    missing = int(ranking.values.isna().all(axis=1).sum())
    if not missing:
        return ""
    verb = "has" if missing == 1 else "have"
    return f"{count(missing, 'example')} {verb} no value in this protocol."

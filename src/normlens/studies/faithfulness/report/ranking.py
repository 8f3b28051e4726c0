"""A protocol's methods from best to worst, their differences, and what each protocol asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from normlens.measures.bootstrap import LEAST_EXAMPLES, holm, mean_intervals, paired_differences
from normlens.studies.reports.contents import Evidence, Table
from normlens.studies.reports.words import count

# The SQL queries behind a faithfulness report.


def protocols(evidence: Evidence) -> list[str]:
    """List the protocols that a run holds values of, in the report's order."""
    names = evidence.sql("SELECT DISTINCT protocol FROM faithfulness WHERE value IS NOT NULL")
    return in_order(names["protocol"])


def methods(evidence: Evidence) -> list[str]:
    """List the methods of a run by name."""
    names = evidence.sql("SELECT DISTINCT method FROM faithfulness ORDER BY method")
    return list(names["method"])


def values_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, value
FROM faithfulness WHERE protocol = {literal(protocol)}"""


def protocol_values(evidence: Evidence, protocol: str) -> dict[str, pd.DataFrame]:
    """Take a protocol's values by what goes first: a row per example, a column per method."""
    return _by_first(evidence.sql(values_query(protocol)), "value")


def accuracies_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, avg(CAST(correct AS DOUBLE)) AS accuracy
FROM removals WHERE protocol = {literal(protocol)} AND correct IS NOT NULL
GROUP BY ALL"""


def accuracies(evidence: Evidence, protocol: str) -> dict[str, pd.DataFrame]:
    """Take the share of shares at which each example is still classified right, as `values`."""
    return _by_first(evidence.sql(accuracies_query(protocol)), "accuracy")


def curves_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, share, score, probability,
  CAST(correct AS DOUBLE) AS correct
FROM removals WHERE protocol = {literal(protocol)}"""


def curve_points(evidence: Evidence, protocol: str) -> pd.DataFrame:
    """Take a protocol's curves, point by point."""
    return evidence.sql(curves_query(protocol))


def intact(evidence: Evidence) -> pd.DataFrame:
    """Take what the model says of every whole text."""
    return evidence.sql(
        'SELECT *, CAST(correct AS DOUBLE) AS right_class FROM examples ORDER BY "index"'
    )


PASSES = """SELECT method, avg(forward) AS forward, avg(backward) AS backward, count(*) AS texts
FROM method_passes GROUP BY method"""


def passes(evidence: Evidence) -> pd.DataFrame:
    """Take the passes through the model that a method needs for one text, on average."""
    return evidence.sql(PASSES)


def attributions_query(examples: Sequence[int]) -> str:
    return f"""SELECT *
FROM attributions WHERE "index" IN ({", ".join(map(str, map(int, examples)))})
ORDER BY "index", method, position"""


def attributions(evidence: Evidence, examples: Sequence[int]) -> pd.DataFrame:
    """Take every method's scores of the tokens of some examples."""
    return evidence.sql(attributions_query(examples))


def literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def _by_first(rows: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    tables = {
        str(first): some.pivot(index="index", columns="method", values=name).astype(float)
        for first, some in rows.groupby("first")
    }
    return {first: tables[first] for first in sorted(tables, key=lambda first: first != MOST)}


# What each protocol asks, where it comes from, and which way its values are better.


MOST, LEAST = "most", "least"
NORMLENS = "normlens"
#: Methods that do not look at the model: what every other has to beat.
PRIORS = ("first-token", "random")


@dataclass(frozen=True)
class ProtocolWords:
    """A protocol in words."""

    title: str
    question: str
    source: str
    method: str
    value: str  # what its number is called
    axis: str = ""  # what happens to the tokens that a curve's share is of; empty: nothing does
    falls: str = "score"  # the column that drops: score or probability
    label: str = "score"  # of that column on an axis
    lower_is_better: bool = False
    starts_intact: bool = True  # whether the curves begin with the whole text

    def better_with(self, first: str) -> str:
        """The direction of better values: with the least important first it is the other one."""
        return "lower" if self.lower_is_better != (first == LEAST) else "higher"


_PREDICTION = "probability of the prediction"
_MASKED = (
    "Tokens are put in the order of their scores and masked, from 0 to 90 % of the ordinary ones "
    "in steps of 10 %; special tokens stay. "
)
_DELETED = "1, 5, 10, 20 and 50 % of the ordinary tokens (at least one) are {}. "
_REPLACED = (
    "Tokens are put in the order of their scores and replaced by {}, step by step. The value is "
    "the mean drop of logit(target) − logit(contrast)."
)

PROTOCOLS = {
    "aopc": ProtocolWords(
        title="Masking: AOPC",
        question="Whose most important tokens, masked, cost the prediction most?",
        source="Area over the perturbation curve: Samek et al. 2017; as in Modarressi et al. 2023",
        method=_MASKED + "The value is the mean drop of the predicted class's probability.",
        value="AOPC",
        axis="masked",
        falls="probability",
        label=_PREDICTION,
    ),
    "comprehensiveness": ProtocolWords(
        title="Deletion: comprehensiveness",
        question="Whose most important tokens, deleted, does the prediction miss most?",
        source="ERASER: DeYoung et al. 2020",
        method=_DELETED.format("deleted")
        + "The value is the mean drop of the predicted class's probability.",
        value="comprehensiveness",
        axis="deleted",
        falls="probability",
        label=_PREDICTION,
    ),
    "sufficiency": ProtocolWords(
        title="Deletion: sufficiency",
        question="Whose most important tokens, alone, are enough for the prediction?",
        source="ERASER: DeYoung et al. 2020",
        method=_DELETED.format("kept and all others deleted")
        + "The value is the mean drop of the predicted class's probability: the lower, the better.",
        value="sufficiency",
        axis="kept",
        falls="probability",
        label=_PREDICTION,
        lower_is_better=True,
        starts_intact=False,
    ),
    "evidence": ProtocolWords(
        title="Evidence: rank of the word that decides",
        question="Who gives the deciding word the highest rank?",
        source="BLiMP's minimal pairs: Warstadt et al. 2020; indirect objects: Wang et al. 2023",
        method="Words are ranked by the sum of their tokens' scores. The value is the mean "
        "reciprocal rank of the deciding word; of several occurrences the best counts.",
        value="MRR",
    ),
    "cosine-aopc": ProtocolWords(
        title="Masking: the cosine's AOPC",
        question="Whose most important tokens, masked, cost the similarity of two texts most?",
        source="AOPC (Samek et al. 2017) of the cosine with the other text's vector",
        method=_MASKED + "The value is the mean drop of the cosine.",
        value="AOPC of the cosine",
        axis="masked",
        label="cosine",
    ),
    "contrast-drop-end": ProtocolWords(
        title="Replacement by the end-of-text token: contrast drop",
        question="Whose most important tokens, replaced by the end-of-text token, cost the "
        "contrast most?",
        source="AOPC (Samek et al. 2017) of a causal model's contrast",
        method=_REPLACED.format("the end-of-text token"),
        value="contrast drop",
        axis="replaced",
        label="logit(target) − logit(contrast)",
    ),
    "contrast-drop-random": ProtocolWords(
        title="Replacement by random tokens: contrast drop",
        question="Whose most important tokens, replaced by random ones, cost the contrast most?",
        source="AOPC (Samek et al. 2017) of a causal model's contrast",
        method=_REPLACED.format("random tokens (the same for every method)"),
        value="contrast drop",
        axis="replaced",
        label="logit(target) − logit(contrast)",
    ),
}


def same_family(a: str, b: str) -> bool:
    """Whether two methods are rules of the same frozen network: normlens, normlens-gradient, …"""
    return all(name == NORMLENS or name.startswith(f"{NORMLENS}-") for name in (a, b))


def words_of(protocol: str) -> ProtocolWords:
    """The words of a protocol; of one that is not listed, general ones."""
    return PROTOCOLS.get(protocol) or ProtocolWords(
        title=protocol,
        question="Whose values are the highest?",
        source="a protocol of the run",
        method="As the run's measure defines it.",
        value="value",
        axis="removed",
    )


def in_order(protocols: Iterable[str]) -> list[str]:
    """Put protocols into the report's order; those that are not listed come last."""
    given = list(dict.fromkeys(protocols))
    listed = [name for name in PROTOCOLS if name in given]
    return listed + sorted(set(given).difference(listed))


# A protocol's methods from the best to the worst, with intervals over examples.


RESAMPLES = 10_000


@dataclass(frozen=True)
class Ranking:
    """One protocol's values on every example, and its table of methods, the best first."""

    protocol: str
    words: ProtocolWords
    values: pd.DataFrame  # (example, method), the most important tokens first
    table: pd.DataFrame  # a row per method, sorted
    seed: int

    @property
    def methods(self) -> list[str]:
        return list(self.table["method"])

    @property
    def examples(self) -> int:
        """Examples on which some method has a value."""
        return int(self.values.notna().any(axis=1).sum())

    @property
    def certain(self) -> bool:
        """Whether there are enough examples for intervals."""
        return self.examples >= LEAST_EXAMPLES

    @property
    def rival(self) -> str | None:
        """The best method that is not of the winner's own family, or else the second."""
        winner, *others = self.methods
        foreign = [name for name in others if not same_family(winner, name)]
        return next(iter(foreign or others), None)

    def row(self, method: str) -> pd.Series:
        return self.table.set_index("method").loc[method]


def rank(evidence: Evidence, protocol: str, seed: int) -> Ranking:
    """Read a protocol's values and rank the methods by their means."""
    words = words_of(protocol)
    by_first = protocol_values(evidence, protocol)
    values = by_first.get(MOST, next(iter(by_first.values())))
    values = values[[name for name in values if values[name].notna().any()]]
    columns = _with_interval(values, seed, ("value", "low", "high"))
    columns["examples"] = values.notna().sum()
    if LEAST in by_first:
        names = ("least first", "least first low", "least first high")
        columns |= _with_interval(by_first[LEAST].reindex(columns=values.columns), seed, names)
    for first, accuracy in accuracies(evidence, protocol).items():
        name = "accuracy" if first == MOST else f"accuracy, {first} first"
        columns[name] = accuracy.mean().reindex(values.columns)
    table = pd.DataFrame(columns)
    # Methods of the same value stand in the order of their names.
    table = table.sort_index().sort_values(
        "value", ascending=words.lower_is_better, kind="stable", na_position="last"
    )
    table = table.reset_index(names="method")
    order = [name for name in table if name != "examples"]
    return Ranking(protocol, words, values, table[[*order, "examples"]], seed)


def _with_interval(
    values: pd.DataFrame, seed: int, names: tuple[str, str, str]
) -> dict[str, pd.Series]:
    """Take means and intervals by method; too few examples have no interval."""
    means = mean_intervals(values.to_numpy(), RESAMPLES, seed)
    few = (values.notna().sum() < LEAST_EXAMPLES).to_numpy()
    columns = (means.mean, np.where(few, np.nan, means.low), np.where(few, np.nan, means.high))
    return {
        name: pd.Series(column, index=values.columns)
        for name, column in zip(names, columns, strict=True)
    }


def ranking_table(ranking: Ranking) -> Table:
    """Write the ranking as the report's table."""
    words, table = ranking.words, ranking.table
    better = words.better_with(MOST)
    about = f"{words.value[0].upper()}{words.value[1:]} of every method ({better} is better)"
    about += (
        f", with 95 % bootstrap intervals over {ranking.examples} examples."
        if ranking.certain
        else f"; {ranking.examples} examples are too few for intervals (at least {LEAST_EXAMPLES})."
    )
    if "least first" in table:
        about += (
            " Least first: the same with the least important tokens first "
            f"({words.better_with(LEAST)} is better)."
        )
    if "accuracy" in table:
        about += " Accuracy: of the changed texts, averaged over all shares."
    formats = {name: ".3f" for name in table if name not in ("method", "examples")}
    return Table(table, about, formats, open=True)


# Paired differences between methods: the winner and NormLens against every other.


FLIPS = 100_000
LEVEL = 0.05
HOLM = "p (Holm)"


@dataclass(frozen=True)
class Differences:
    """The comparisons of one protocol, all in one family for Holm's correction."""

    frame: pd.DataFrame  # method, against, difference, low, high, p, p (Holm), examples

    def of(self, method: str) -> pd.DataFrame:
        """Take one method's comparisons, turned so that it comes first."""
        ahead = self.frame[self.frame["method"] == method]
        behind = self.frame[self.frame["against"] == method]
        turned = behind.assign(
            method=behind["against"],
            against=behind["method"],
            difference=-behind["difference"],
            low=-behind["high"],
            high=-behind["low"],
        )
        return pd.concat([turned, ahead], ignore_index=True)

    def between(self, method: str, against: str) -> pd.Series:
        rows = self.of(method)
        return rows[rows["against"] == against].iloc[0]


def significant(row: pd.Series) -> bool:
    """Whether a difference's interval excludes 0 and its adjusted p is below 5 %."""
    return bool((row["low"] > 0 or row["high"] < 0) and row[HOLM] < LEVEL)


def compare_methods(ranking: Ranking) -> Differences:
    """Compare the winner with every other method, and NormLens with every other."""
    methods = ranking.methods
    winner = methods[0]
    pairs = [(winner, other) for other in methods[1:]]
    if NORMLENS in methods[1:]:
        pairs += [(NORMLENS, other) for other in methods if other not in (NORMLENS, winner)]
    values = ranking.values
    if not pairs:
        columns = ("method", "against", "difference", "low", "high", "p", HOLM, "examples")
        return Differences(pd.DataFrame(columns=list(columns)))
    compared = paired_differences(
        values[[first for first, _ in pairs]].to_numpy(),
        values[[second for _, second in pairs]].to_numpy(),
        RESAMPLES,
        FLIPS,
        ranking.seed,
    )
    few = compared.examples < LEAST_EXAMPLES
    p = np.where(few, np.nan, compared.p)
    return Differences(
        pd.DataFrame(
            {
                "method": [first for first, _ in pairs],
                "against": [second for _, second in pairs],
                "difference": compared.mean,
                "low": np.where(few, np.nan, compared.low),
                "high": np.where(few, np.nan, compared.high),
                "p": p,
                HOLM: holm(p),
                "examples": compared.examples,
            }
        )
    )


def difference_tables(ranking: Ranking, differences: Differences) -> dict[str, Table]:
    """Write one table for the winner, and one for NormLens if that is another method."""
    methods = ranking.methods
    if len(methods) < 2:
        return {}
    shown = {"winner": methods[0]}
    if NORMLENS in methods[1:]:
        shown[NORMLENS] = NORMLENS
    family = count(len(differences.frame), "comparison")
    better = "above" if not ranking.words.lower_is_better else "below"
    formats = {"difference": "+.3f", "low": "+.3f", "high": "+.3f", "p": ".5f", HOLM: ".5f"}
    return {
        f"{ranking.protocol}-{name}": Table(
            differences.of(method).drop(columns="method"),
            f"{method} against every other method on the same examples ({better} 0: {method} is "
            "better), with 95 % bootstrap intervals; p by flipping signs, and adjusted by Holm "
            f"over this protocol's {family}.",
            formats,
            open=True,
        )
        for name, method in shown.items()
    }

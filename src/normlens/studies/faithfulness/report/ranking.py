"""A protocol's methods from best to worst, their differences, and what each protocol asks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from normlens.measures.bootstrap import LEAST_EXAMPLES, holm, mean_intervals, paired_differences
from normlens.studies.faithfulness.tables import LEAST, MOST
from normlens.studies.reports.contents import Evidence, Table
from normlens.studies.reports.words import count

# The SQL queries that a faithfulness report shows, and what the model says of the whole texts.


PASSES = """SELECT method, avg(forward) AS forward, avg(backward) AS backward, count(*) AS texts
FROM method_passes GROUP BY method"""


def protocols(evidence: Evidence) -> list[str]:
    """List the protocols that a run holds values of; those that are not described come last."""
    rows = evidence.sql("SELECT DISTINCT protocol FROM faithfulness WHERE value IS NOT NULL")
    order = list(PROTOCOLS)
    names = sorted(rows["protocol"])
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def values_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, value
FROM faithfulness WHERE protocol = {_literal(protocol)}"""


def curves_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, share, score, probability,
  CAST(correct AS DOUBLE) AS correct
FROM removals WHERE protocol = {_literal(protocol)}"""


def intact(evidence: Evidence) -> pd.DataFrame:
    """Take what the model says of every whole text."""
    return evidence.sql(
        'SELECT *, CAST(correct AS DOUBLE) AS right_class FROM examples ORDER BY "index"'
    )


def _literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


# What each protocol asks, where it comes from, and which way its values are better.


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


# A protocol's methods from the best to the worst, with intervals over examples.


RESAMPLES = 10_000


@dataclass(frozen=True)
class Ranking:
    """One protocol's values on every example, and its table of methods, the best first."""

    protocol: str
    values: pd.DataFrame  # (example, method), the most important tokens first
    table: pd.DataFrame  # a row per method, sorted
    seed: int

    @property
    def words(self) -> ProtocolWords:
        return words_of(self.protocol)

    @property
    def methods(self) -> list[str]:
        return list(self.table["method"])

    @property
    def examples(self) -> int:
        """Examples on which some method has a value."""
        return int(self.values.notna().any(axis=1).sum())

    @property
    def rival(self) -> str | None:
        """The best method that is no other rule of the winner's own network, or else the second."""
        winner, *others = self.methods
        if winner.startswith(NORMLENS):
            others = [name for name in others if not name.startswith(NORMLENS)] or others
        return next(iter(others), None)

    def row(self, method: str) -> pd.Series:
        return self.table.set_index("method").loc[method]


def rank(evidence: Evidence, protocol: str, seed: int) -> Ranking:
    """Read a protocol's values and rank the methods by their means."""
    by_first = _by_first(evidence.sql(values_query(protocol)))
    values = by_first.get(MOST, next(iter(by_first.values())))
    values = values[[name for name in values if values[name].notna().any()]]
    table = averages(values, seed)
    examples = table.pop("examples")
    if LEAST in by_first:
        least = averages(by_first[LEAST].reindex(columns=values.columns), seed)
        names = {"value": "least first", "low": "least first low", "high": "least first high"}
        table = table.join(least.rename(columns=names)[list(names.values())])
    # The share of the changed texts that the model still classifies right.
    right = evidence.sql(
        f"""SELECT "index", "first", method, avg(CAST(correct AS DOUBLE)) AS value
FROM removals WHERE protocol = {_literal(protocol)} AND correct IS NOT NULL GROUP BY ALL"""
    )
    for first, accuracy in _by_first(right).items():
        name = "accuracy" if first == MOST else f"accuracy, {first} first"
        table[name] = accuracy.mean()
    table["examples"] = examples
    # Methods of the same value stand in the order of their names.
    table = table.sort_index().sort_values(
        "value", ascending=words_of(protocol).lower_is_better, kind="stable", na_position="last"
    )
    return Ranking(protocol, values, table.reset_index(names="method"), seed)


def _by_first(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Values by what goes first, the most important at the head: a column per method."""
    tables = {
        str(first): some.pivot(index="index", columns="method", values="value").astype(float)
        for first, some in rows.groupby("first")
    }
    return {first: tables[first] for first in sorted(tables, key=lambda first: first != MOST)}


def averages(values: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Average each column over examples, with intervals where there are enough of them."""
    means = mean_intervals(values.to_numpy(float), RESAMPLES, seed)
    examples = values.notna().sum()
    few = examples < LEAST_EXAMPLES
    return pd.DataFrame(
        {
            "value": means.mean,
            "low": np.where(few, np.nan, means.low),
            "high": np.where(few, np.nan, means.high),
            "examples": examples,
        },
        index=values.columns,
    )


def ranking_table(ranking: Ranking) -> Table:
    """Write the ranking as the report's table."""
    words, table = ranking.words, ranking.table
    better = words.better_with(MOST)
    about = f"{words.value[0].upper()}{words.value[1:]} of every method ({better} is better)"
    about += (
        f", with 95 % bootstrap intervals over {ranking.examples} examples."
        if ranking.examples >= LEAST_EXAMPLES
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
HOLM = "p (Holm)"


def compare_methods(ranking: Ranking) -> pd.DataFrame:
    """Compare the winner with every other method, and NormLens with every other.

    All comparisons of a protocol are one family for Holm's correction.
    """
    winner, *others = ranking.methods
    pairs = [(winner, other) for other in others]
    if NORMLENS in others:
        pairs += [(NORMLENS, other) for other in others if other != NORMLENS]
    first, second = map(list, zip(*pairs, strict=True))
    compared = paired_differences(
        ranking.values[first].to_numpy(),
        ranking.values[second].to_numpy(),
        RESAMPLES,
        FLIPS,
        ranking.seed,
    )
    few = compared.examples < LEAST_EXAMPLES
    p = np.where(few, np.nan, compared.p)
    return pd.DataFrame(
        {
            "method": first,
            "against": second,
            "difference": compared.mean,
            "low": np.where(few, np.nan, compared.low),
            "high": np.where(few, np.nan, compared.high),
            "p": p,
            HOLM: holm(p),
            "examples": compared.examples,
        }
    )


def comparisons_of(method: str, differences: pd.DataFrame) -> pd.DataFrame:
    """Take one method's comparisons, turned so that it comes first."""
    behind = differences[differences["against"] == method]
    turned = behind.assign(
        method=behind["against"],
        against=behind["method"],
        difference=-behind["difference"],
        low=-behind["high"],
        high=-behind["low"],
    )
    return pd.concat([turned, differences[differences["method"] == method]], ignore_index=True)


def difference_tables(ranking: Ranking) -> dict[str, Table]:
    """Write one table for the winner, and one for NormLens if that is another method."""
    winner, *others = ranking.methods
    if not others:
        return {}
    shown = {"winner": winner} | ({NORMLENS: NORMLENS} if NORMLENS in others else {})
    differences = compare_methods(ranking)
    family = count(len(differences), "comparison")
    better = "below" if ranking.words.lower_is_better else "above"
    formats = {"difference": "+.3f", "low": "+.3f", "high": "+.3f", "p": ".5f", HOLM: ".5f"}
    return {
        f"{ranking.protocol}-{name}": Table(
            comparisons_of(method, differences).drop(columns="method"),
            f"{method} against every other method on the same examples ({better} 0: {method} is "
            "better), with 95 % bootstrap intervals; p by flipping signs, and adjusted by Holm "
            f"over this protocol's {family}.",
            formats,
            open=True,
        )
        for name, method in shown.items()
    }

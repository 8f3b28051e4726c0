"""What an ablation changes for the worse: the loss, and for sentence encoders the agreement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from normlens.ablation.loss_names import CLASSES, DRIFT, MASKED, NEXT_TOKEN
from normlens.ablation.report.evidence import AblationEvidence
from normlens.measures.bootstrap import Array

_LOSSES = {
    NEXT_TOKEN: ("next-token loss", "nats per token"),
    MASKED: ("loss of masked tokens", "nats per token"),
    CLASSES: ("classification loss", "nats"),
    DRIFT: ("drift of the sentence vector", "1 − cos"),
}


@dataclass(frozen=True)
class Cost:
    """What a component is worth in one unit: positive where its ablation does harm.

    `changes` has a row per ablation, with `change`, `low` and `high`. A drift can only grow, so
    that its interval tells nothing from 0 (`has_zero` is False).
    """

    name: str
    symbol: str
    unit: str
    changes: pd.DataFrame
    drawn: Callable[[list[int]], Array]
    has_zero: bool
    moves: str = "rises by"  # what harm does to it
    digits: int = 3


def loss_cost(evidence: AblationEvidence) -> Cost:
    """The change of the loss."""
    name, unit = _LOSSES[evidence.told.loss]
    drift = evidence.told.loss == DRIFT
    symbol = "drift" if drift else "Δ loss"
    return Cost(name, symbol, unit, evidence.changes, evidence.drawn, not drift)


def agreement_cost(evidence: AblationEvidence) -> Cost | None:
    """The loss of Spearman's ρ with gold scores; None without such scores."""
    if not evidence.has_gold:
        return None
    rows = evidence.agreement
    turned = rows.assign(change=-rows["change"], low=-rows["high"], high=-rows["low"])
    return Cost(
        "agreement with gold scores",
        "−Δ ρ(gold)",
        "Spearman's ρ that is lost",
        turned,
        lambda numbers: -evidence.drawn_agreement(numbers),
        True,
        "falls by",
    )


def costs(evidence: AblationEvidence) -> list[Cost]:
    """Everything that the page asks about, the loss first."""
    agreement = agreement_cost(evidence)
    return [loss_cost(evidence), *([] if agreement is None else [agreement])]


def verdict_cost(evidence: AblationEvidence) -> Cost:
    """What decides whether a component can go: agreement where it is known, or else the loss."""
    return agreement_cost(evidence) or loss_cost(evidence)

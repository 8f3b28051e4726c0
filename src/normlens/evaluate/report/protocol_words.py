"""What each protocol asks, where it comes from, and which way its values are better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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

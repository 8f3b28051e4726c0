"""Evidence: the rank of the word that must decide between two next words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.faithfulness.protocols.base import Example, Protocol, Removal
from normlens.faithfulness.protocols.orders import MOST, ordered
from normlens.faithfulness.questions import NEXT_TOKEN
from normlens.faithfulness.scoring import Scored
from normlens.inputs.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Evidence(Protocol):
    """1 / the rank of the deciding word among the text's words; its mean is the MRR.

    A word's score is the sum of its tokens'. Where the deciding word stands several times, its best
    place counts. A text of one word says nothing.
    """

    name = "evidence"
    kind = NEXT_TOKEN

    @classmethod
    def on(cls, lens: Lens) -> Evidence:
        return cls()

    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        return []

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        assert example.evidence is not None
        words, deciding = deciding_words(example.question.encoded, example.evidence)
        count = max(words.max(initial=-1) + 1, 0)
        if count < 2:
            return {MOST: None}
        own = words >= 0
        totals = np.bincount(words[own], scores[own], minlength=count).astype(np.float64)
        order = ordered(totals, example.numbers("words", count), MOST)
        rank = 1 + int(np.flatnonzero(np.isin(order, sorted(deciding)))[0])
        return {MOST: 1 / rank}


def deciding_words(encoded: Encoded, evidence: str) -> tuple[NDArray[np.intp], set[int]]:
    """The word of each token (−1: none), and the words that are `evidence`.

    It is looked for as a whole word, with its capitals. Evidence that the tokenizer calls several
    words counts as one.
    """
    text = encoded.text
    if encoded.words is None or not isinstance(text, str):
        raise InputError("its words are not known, which evidence is looked for among")
    matches = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(evidence)}(?!\w)", text)]
    spans = _spans(text, encoded.word_labels)
    # The words of one match take the number of its first; numbers are then made dense.
    number = list(range(len(spans)))
    starts = []
    for low, high in matches if evidence else []:
        inside = [word for word, (a, b) in enumerate(spans) if a < high and b > low]
        if inside:
            starts.append(inside[0])
            for word in inside:
                number[word] = number[inside[0]]
    if not starts:
        raise InputError(f"its evidence {evidence!r} is not a word of the text")
    dense = {old: new for new, old in enumerate(sorted(set(number)))}
    words = [-1 if word is None else dense[number[word]] for word in encoded.words]
    return np.array(words, np.intp), {dense[number[start]] for start in starts}


def _spans(text: str, labels: Sequence[str]) -> list[tuple[int, int]]:
    """Where each word stands in the text; they come in its order."""
    spans, start = [], 0
    for label in labels:
        low = text.find(label, start)
        start = start if low < 0 else low + len(label)
        spans.append((start, start) if low < 0 else (low, start))
    return spans

"""One text's rows in the tables of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.faithfulness.asking import Asked, Asking
from normlens.faithfulness.costs import Passes
from normlens.faithfulness.protocols.base import Removal
from normlens.faithfulness.protocols.evidence import deciding_words
from normlens.faithfulness.scoring import Scored
from normlens.faithfulness.tables import (
    ATTRIBUTIONS,
    EXAMPLES,
    FAITHFULNESS,
    PASSES,
    REMOVALS,
    TABLES,
)
from normlens.inputs.text import Encoded


@dataclass(frozen=True)
class Attributed:
    """A method's scores of a text's tokens, and what they cost."""

    scores: NDArray[np.float64]
    passes: Passes


@dataclass(frozen=True)
class Tested:
    """What a protocol says of a method's scores of one text."""

    protocol: str
    method: str
    removals: Sequence[Removal]
    outcomes: Scored
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Evaluated:
    """Everything that is known of one text."""

    item: Item
    asked: Asked
    intact: Scored
    methods: Mapping[str, Attributed]
    tests: Sequence[Tested]

    def tables(self, asking: Asking) -> dict[str, pa.Table]:
        """The rows of every table."""
        return {
            EXAMPLES: self._table(EXAMPLES, [self._example(asking)]),
            ATTRIBUTIONS: self._attributions(),
            REMOVALS: self._removals(),
            FAITHFULNESS: self._table(
                FAITHFULNESS,
                [
                    {"protocol": test.protocol, "method": test.method, "first": k, "value": v}
                    for test in self.tests
                    for k, v in test.values.items()
                ],
            ),
            PASSES: self._table(
                PASSES,
                [
                    {"method": name, "forward": one.passes.forward, "backward": one.passes.backward}
                    for name, one in self.methods.items()
                ],
            ),
        }

    def _table(self, name: str, rows: list[dict[str, Any]]) -> pa.Table:
        whose = {"index": self.item.index, "sequence": self.item.sequence}
        return pa.Table.from_pylist([{**whose, **row} for row in rows], schema=TABLES[name])

    def _example(self, asking: Asking) -> dict[str, Any]:
        example, question = self.asked.example, self.asked.example.question
        return {
            "tokens": len(question),
            "ordinary": len(question.ordinary),
            "target_id": question.target,
            "target": asking.name_of(question.target),
            "contrast_id": question.contrast,
            "contrast": asking.name_of(question.contrast),
            "label": asking.name_of(self.asked.label),
            "evidence": example.evidence,
            **self._scores(self.intact, 0),
        }

    def _scores(self, scored: Scored, place: int) -> dict[str, Any]:
        score, probability = float(scored.score[place]), float(scored.probability[place])
        return {
            "score": score,
            "probability": None if np.isnan(probability) else probability,
            "correct": self.asked.correct(score, int(scored.predicted[place])),
        }

    def _attributions(self) -> pa.Table:
        encoded = self.asked.example.question.encoded
        ordinary = {*self.asked.example.question.ordinary}
        words, deciding = _words(encoded, self.asked.example.evidence)
        rows = [
            {
                "method": name,
                "position": place,
                "token": encoded.tokens[place],
                "ordinary": place in ordinary,
                "word": words[place],
                "evidence": None if deciding is None else words[place] in deciding,
                "score": score,
            }
            for name, one in self.methods.items()
            for place, score in enumerate(one.scores.tolist())
        ]
        return self._table(ATTRIBUTIONS, rows)

    def _removals(self) -> pa.Table:
        rows = [
            {
                "protocol": test.protocol,
                "method": test.method,
                "first": removal.first,
                "share": removal.share,
                "removed": removal.removed,
                **self._scores(test.outcomes, place),
            }
            for test in self.tests
            for place, removal in enumerate(test.removals)
        ]
        return self._table(REMOVALS, rows)


def _words(encoded: Encoded, evidence: str | None) -> tuple[list[int | None], set[int] | None]:
    """The word of each token, and the deciding ones; evidence of several words is one."""
    if evidence is None:
        return list(encoded.words or [None] * len(encoded)), None
    words, deciding = deciding_words(encoded, evidence)
    return [None if word < 0 else word for word in words.tolist()], deciding

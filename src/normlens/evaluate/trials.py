"""Trials: one text's changed versions, for all methods and protocols, run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.evaluate.protocols.base import Example, Protocol, Removal
from normlens.evaluate.rows import Attributed, Tested
from normlens.evaluate.scoring import Scored, score_variants

if TYPE_CHECKING:
    from normlens.lens import Lens


class Trial:
    """What every protocol makes of every method's scores of one text.

    Methods, orders and shares often come to the same tokens: a variant is run once, and the text
    itself, which is known already, not again.
    """

    def __init__(
        self,
        protocols: Sequence[Protocol],
        example: Example,
        intact: Scored,
        methods: Mapping[str, Attributed],
    ):
        self.example, self.intact, self.methods = example, intact, methods
        self._plan = [
            (protocol, name, protocol.removals(example, one.scores))
            for protocol in protocols
            for name, one in methods.items()
        ]
        removals = (removal for _, _, planned in self._plan for removal in planned)
        whole = example.question.whole
        #: what has to be run
        self.variants = [v for v in dict.fromkeys(r.variant for r in removals) if v != whole]
        self._places = {v: place for place, v in enumerate([whole, *self.variants])}

    def tested(self, scored: Scored) -> list[Tested]:
        """The protocols' values, from what the model says of the variants."""
        known = _joined(self.intact, scored)
        return [self._tested(known, *planned) for planned in self._plan]

    def _tested(
        self, known: Scored, protocol: Protocol, method: str, removals: Sequence[Removal]
    ) -> Tested:
        places = np.array([self._places[removal.variant] for removal in removals], np.intp)
        outcomes = Scored(known.score[places], known.probability[places], known.predicted[places])
        scores = self.methods[method].scores
        values = protocol.values(self.example, scores, self.intact, removals, outcomes)
        return Tested(protocol.name, method, removals, outcomes, values)


def _joined(*parts: Scored) -> Scored:
    return Scored(
        np.concatenate([part.score for part in parts]),
        np.concatenate([part.probability for part in parts]),
        np.concatenate([part.predicted for part in parts]),
    )


def run_trials(lens: Lens, trials: Sequence[Trial], batch_size: int | str) -> list[list[Tested]]:
    """Run the variants of several texts, which share batches."""
    asked = [(trial.example.question, trial.variants) for trial in trials]
    scored = score_variants(lens, asked, batch_size=batch_size)
    return [trial.tested(outcomes) for trial, outcomes in zip(trials, scored, strict=True)]

"""The contract of a method: a lens and questions make one score for each token of each text.

A higher score says that the token speaks more for the question's score. Methods with a direction
give signed scores of that very number; the others say how much a token is mixed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.user_code import sources_of
from normlens.errors import InputError
from normlens.faithfulness.costs import Passes, no_passes
from normlens.faithfulness.questions import Question, same_kind
from normlens.options import AUTO, parse_bytes

if TYPE_CHECKING:
    from normlens.lens import Lens

Scores: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class MethodOptions:
    """How methods run; `seed` is that of `random`, `steps` are those of integrated gradients."""

    batch_size: int | str = AUTO
    memory_limit: int | float | str | None = None
    seed: int = 0
    steps: int = 50

    def __post_init__(self) -> None:
        parse_bytes(self.memory_limit)
        if self.steps < 1:
            raise InputError(f"integrated gradients take at least 1 step, not {self.steps}")


Compute: TypeAlias = Callable[["Lens", Sequence[Question], MethodOptions], Sequence[Any]]


def needs_nothing(lens: Lens) -> None:
    """Every model will do."""


@dataclass(frozen=True)
class Method:
    """A method by its name; calling it gives a score for every token of every question."""

    name: str
    compute: Compute
    #: raises, in one line, for a lens that the method cannot work with
    needs: Callable[[Lens], None] = needs_nothing
    #: passes of the frozen network for a text of so many tokens, which no hook on the model sees
    frozen_passes: Callable[[int], Passes] = no_passes
    #: a user's function, for its source
    function: Callable[..., Any] | None = None

    def __call__(
        self, lens: Lens, questions: Sequence[Question], options: MethodOptions = MethodOptions()
    ) -> list[Scores]:
        """One score per token of each text, special tokens included, in float64."""
        self.needs(lens)
        if not questions:
            return []
        same_kind(questions)
        given = list(self.compute(lens, questions, options))
        if len(given) != len(questions):
            raise InputError(
                f"the method {self.name!r} gave {len(given)} arrays of scores for "
                f"{len(questions)} questions; it must give one for each"
            )
        return [self._checked(q, scores) for q, scores in zip(questions, given, strict=True)]

    def sources(self) -> dict[str, str | None] | None:
        """Hashes of the files that a user's method comes from; None for a built-in one."""
        return None if self.function is None else sources_of(self.name, self)

    def _checked(self, question: Question, given: Any) -> Scores:
        try:
            scores = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the method {self.name!r} gave {type(given).__name__}, which is no array of "
                "numbers; return one score per token"
            ) from error
        if scores.shape != (len(question),):
            shape = "×".join(map(str, scores.shape)) or "one number"
            raise InputError(
                f"the method {self.name!r} gave scores of shape {shape} for a text of "
                f"{len(question)} tokens; it must give one per token, special tokens included"
            )
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise InputError(
                f"the method {self.name!r} gave {scores[place]} for token {place} "
                f"({question.encoded.tokens[place]!r}); scores must be finite numbers"
            )
        return scores

"""What is asked of the model about one sequence, and what a loss says of the answer."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.inputs.text import Encoded


@dataclass(frozen=True)
class Question:
    """One sequence as a loss has the model read it; the same for all ablations.

    `key` names the sequence in the data: masks and resampling depend on it.
    """

    key: str
    encoded: Encoded
    places: tuple[int, ...] = ()  # the positions whose scores are read
    targets: tuple[int, ...] = ()  # the token at each of them, or one class
    second: Encoded | None = None  # the other text of a pair, which is run by itself

    @property
    def texts(self) -> tuple[Encoded, ...]:
        """The texts to run."""
        return (self.encoded,) if self.second is None else (self.encoded, self.second)

    @property
    def keys(self) -> tuple[str, ...]:
        """A name for each text."""
        return (self.key,) if self.second is None else (self.key, f"{self.key}\nsecond")

    @property
    def parts(self) -> tuple[Question, ...]:
        """The same about each text of a pair by itself."""
        if self.second is None:
            return (self,)
        return tuple(Question(key, text) for key, text in zip(self.keys, self.texts, strict=True))


@dataclass(frozen=True)
class Outcome:
    """The loss of one sequence, which is a mean over `count` tokens (or classes, or vectors).

    It is NaN or infinite where the values of an ablated model overflow.
    """

    loss: float
    count: int
    cosine: float | None = None  # of a pair's two vectors

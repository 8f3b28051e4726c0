"""What stands behind a model's last layer: heads, written with components as layers are.

A head takes the vectors behind the last layer and reads scores from them: logits of words or of
classes. An adapter describes it (`Adapter.head`); sentence encoders have one without an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from normlens.components import Linear, Norm, cast

#: What a head's scores are about.
CAUSAL = "causal language model"
MASKED = "masked language model"
GENERATOR = "generating encoder–decoder"
SEQUENCES = "sequence classifier"
TOKENS = "token classifier"
IMAGES = "picture classifier"
SENTENCES = "sentence encoder"
#: Heads whose scores are about tokens of a vocabulary.
OF_TOKENS = (CAUSAL, MASKED, GENERATOR)
#: Heads whose scores are about classes.
OF_CLASSES = (SEQUENCES, TOKENS, IMAGES)

#: Which of the last vectors a head reads: any one, the first, the last real one, or their mean.
ANY, FIRST, LAST, MEAN = "any", "first", "last", "mean"
#: Of a picture also: the patches' mean; the first vector and that mean, or the first two vectors,
#: one behind the other.
PATCHES, FIRST_AND_PATCHES, FIRST_TWO = "patches", "first and patches", "first two"


@dataclass(frozen=True, eq=False)
class Dense:
    """``y ↦ y W + b``."""

    linear: Linear

    symbol = "DENSE"


@dataclass(frozen=True, eq=False)
class Elementwise:
    """``y ↦ g(y)``, an activation by its name."""

    activation: str

    symbol = "ACT"


HeadStep = Norm | Dense | Elementwise


@dataclass(frozen=True, eq=False)
class Head:
    """From the vectors behind the last layer to scores.

    `body` steps act on every vector; then those are read that `reads` names; `steps` act on what
    was read, and each column of `output` is one score.
    """

    task: str
    reads: str
    body: tuple[HeadStep, ...] = ()  # the body's own end, such as a final norm
    steps: tuple[HeadStep, ...] = ()
    output: Linear | None = None  # (d, words or classes); None: the vector itself is the result
    soft_cap: float | None = None  # scores are c · tanh(score / c)
    labels: Mapping[int, str] = field(default_factory=dict)  # names of classes
    exclusive: bool = True  # one class excludes the others, so scores have probabilities
    note: str | None = None  # what a user should know about it
    prefix: int = 0  # how many tokens stand before the patches of a picture

    def pools(self, position: int | None, n: int) -> list[slice]:
        """The groups of n vectors whose means are read, one behind the other."""
        if position is not None:
            return [slice(position, position + 1)]
        first, patches = slice(0, 1), slice(self.prefix, n)
        return {
            MEAN: [slice(0, n)],
            PATCHES: [patches],
            FIRST_AND_PATCHES: [first, patches],
            FIRST_TWO: [first, slice(1, 2)],
        }[self.reads]

    def to(self, dtype: torch.dtype) -> Head:
        """The same head with the weights of its steps in `dtype`.

        The output stays as it is: only the columns that are asked for are ever converted.
        """
        return replace(
            self,
            body=tuple(cast(step, dtype) for step in self.body),
            steps=tuple(cast(step, dtype) for step in self.steps),
        )

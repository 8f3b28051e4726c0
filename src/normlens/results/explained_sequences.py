"""The sequences that an explanation is about: a text, or the source and the prefix of a target.

An encoder–decoder's explanation has both stacks in one list of layers, the encoder's first, and
both sequences in one list of tokens, the source first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from normlens import analysis
from normlens.errors import InputError
from normlens.results.explanation_words import PREFIX, SOURCE
from normlens.results.tokens import TokenAxis

if TYPE_CHECKING:
    from normlens.results.axes import LayerTargetSource
    from normlens.results.explanation import Explanation

ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class SequencePart:
    """What the tokens of one sequence contribute to a score."""

    name: str  # `SOURCE` or `PREFIX`; empty: there is no other sequence
    axis: TokenAxis
    contributions: NDArray[np.floating]  # [token]
    first: int = 0  # the place of its first token among all of the explanation's

    @property
    def tokens(self) -> list[str]:
        """The tokens as people read them."""
        return self.axis.tokens

    @property
    def total(self) -> float:
        """What the tokens contribute together."""
        return float(self.contributions.sum(dtype=np.float64))

    def __len__(self) -> int:
        return len(self.axis)


@dataclass(frozen=True)
class Shares:
    """How much of a score an encoder–decoder's two sequences supply, and what no token owns."""

    source: float  # Σ contributions of the source's tokens
    prefix: float  # Σ contributions of the target's tokens up to where the score is read
    bias: float
    source_share: float  # |source| / (|source| + |prefix|)
    source_share_absolute: float  # Σ|c| of the source's tokens / Σ|c| of all tokens

    @property
    def prefix_share(self) -> float:
        return 1 - self.source_share

    @property
    def prefix_share_absolute(self) -> float:
        return 1 - self.source_share_absolute


class ExplainsSequences:
    """The part of an explanation that knows which tokens and layers belong together."""

    position: int | None  # fields of `Explanation`, which says what they hold
    encoder_tokens: int | None
    encoder_layers: int

    @property
    def _why(self) -> Explanation:
        return cast("Explanation", self)

    @property
    def has_two_sequences(self) -> bool:
        """Whether an encoder–decoder's score is explained."""
        return self.encoder_tokens is not None

    @property
    def read_at(self) -> int | None:
        """The place of `position` among all tokens; None: the score is read everywhere."""
        return None if self.position is None else self.position + (self.encoder_tokens or 0)

    @property
    def seen(self) -> int:
        """How many of the tokens can contribute: not those that a decoder has yet to read."""
        every = len(self._why.raw_tokens)
        return every if self.encoder_tokens is None else (self.read_at or 0) + 1

    @cached_property
    def sequences(self) -> list[SequencePart]:
        """The source and the prefix, or the one text; a prefix ends where the score is read."""
        axis, contributions = self._why.axis, self._why.contributions
        if self.encoder_tokens is None:
            return [SequencePart("", axis, contributions)]
        m, end = self.encoder_tokens, self.seen
        return [
            SequencePart(SOURCE, axis.take(range(m)), contributions[:m]),
            SequencePart(PREFIX, axis.take(range(m, end)), contributions[m:end], m),
        ]

    @property
    def source(self) -> SequencePart:
        """What the source's tokens contribute to an encoder–decoder's score."""
        return self._two()[0]

    @property
    def prefix(self) -> SequencePart:
        """What the target's tokens contribute, up to where the score is read."""
        return self._two()[1]

    @property
    def shares(self) -> Shares:
        """How much of the score the source supplies, and how much the prefix."""
        source, prefix = self._two()
        values = source.contributions, prefix.contributions
        return Shares(
            source.total,
            prefix.total,
            self._why.remainder,
            analysis.share_of_sums(*values),
            analysis.share_of_sizes(*values),
        )

    @property
    def layer_names(self) -> list[str]:
        """What each layer is called: a number, behind its stack where there are two."""
        count = len(self._why.nodes)
        if not self.has_two_sequences:
            return [str(layer) for layer in range(count)]
        return [" ".join(map(str, self.stack_of(layer))) for layer in range(count)]

    @property
    def token_sequences(self) -> list[str]:
        """The sequence that each token belongs to; those behind a prefix are of it, too."""
        m = self.encoder_tokens or 0
        return [SOURCE] * m + [PREFIX] * (len(self._why.raw_tokens) - m)

    def stack_of(self, layer: int | str) -> tuple[str, int | str]:
        """The stack of a layer among those of both, and its place there; "head" is behind all."""
        if isinstance(layer, str):
            return DECODER, layer
        inside = layer < self.encoder_layers
        return (ENCODER, layer) if inside else (DECODER, layer - self.encoder_layers)

    @property
    def cross_flow(self) -> LayerTargetSource:
        """How much goes from the source to the target's tokens, [decoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self._why.flow[self.encoder_layers :, m:, :m]

    @property
    def encoder_flow(self) -> LayerTargetSource:
        """How much goes where in the encoder, [encoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self._why.flow[: self.encoder_layers, :m, :m]

    @property
    def decoder_flow(self) -> LayerTargetSource:
        """How much goes where among the target's tokens, [decoder layer, target, source]."""
        self._two()
        m = self.encoder_tokens
        return self._why.flow[self.encoder_layers :, m:, m:]

    def _two(self) -> list[SequencePart]:
        if not self.has_two_sequences:
            raise InputError(
                "this explanation is of one sequence; only an encoder–decoder's has a source and "
                "a prefix"
            )
        return self.sequences

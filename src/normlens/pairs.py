"""Two sequences for an encoder–decoder: a source and the target that the decoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from normlens.text import Encoded, Text


@dataclass(frozen=True)
class Pair:
    """A source and a target, both tokenised and without padding."""

    source: Encoded
    target: Encoded  # what the decoder reads, its start token first
    generated: str | None = None  # how the model generated the target itself; None: it was given
    features: torch.Tensor | None = None  # what an encoder hears, (mel bins, frames)

    def __len__(self) -> int:
        """The longer of the two, which decides how much memory a pair may take."""
        return max(len(self.source), len(self.target))


#: What a lens analyses: a sequence, or the two of an encoder–decoder.
Item: TypeAlias = Encoded | Pair


def sequences_of(item: Item) -> tuple[Encoded, ...]:
    """The sequence that each stack of the model reads, the encoder's first."""
    return (item.source, item.target) if isinstance(item, Pair) else (item,)


def texts_among(items: Sequence[Item]) -> list[Encoded]:
    """Those that are one sequence."""
    return [item for item in items if isinstance(item, Encoded)]


def pairs_among(items: Sequence[Item]) -> list[Pair]:
    """Those that are two."""
    return [item for item in items if isinstance(item, Pair)]


def texts_of(pair: Pair) -> Text | None:
    """Both texts, if both are known."""
    source, target = pair.source.text, pair.target.text
    return (source, target) if isinstance(source, str) and isinstance(target, str) else None

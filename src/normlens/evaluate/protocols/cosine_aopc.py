"""The cosine's AOPC: how far two texts fall apart as the tokens of one are masked."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.evaluate.protocols.aopc import Masking
from normlens.evaluate.protocols.drops import SCORE
from normlens.evaluate.questions import COSINE


@dataclass(frozen=True)
class CosineAopc(Masking):
    """``mean_K [cos(u, v) − cos(u with the first K masked, v)]``, K = 0, 10, …, 90 %.

    u is the first text's vector and loses its tokens, v is the second text's and is fixed.
    """

    name = "cosine-aopc"
    kind = COSINE
    reads = SCORE

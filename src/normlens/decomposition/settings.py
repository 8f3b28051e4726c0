"""Settings of a decomposition."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.precisions import AUTO


@dataclass(frozen=True)
class Settings:
    """The settings of a decomposition, apart from its scopes."""

    rule: str = "ig"
    heads: bool = False
    memory_limit: int | None = None
    statistics: bool = False
    samples: int = 64  # permutations of the Shapley rule
    seed: int = 0
    precision: str = AUTO  # of the feed-forward products on a GPU; `engine` names them
    sample_kernels: bool = True  # compare a few of a kernel's norms with an exact recomputation

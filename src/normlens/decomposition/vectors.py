"""Whole vectors: what each of the model's input tokens gave to every vector behind it.

    V^0_ik = δ_ik e_k,        V^ℓ_·k = the frozen layer's linear face of V^{ℓ−1}_·k
    Σ_k V^ℓ_ik + b^ℓ_i = x^ℓ_i                                               (completeness)

Some sources k are pushed through a layer at a time, so that memory is sources · n · d. Where no
token sees a later one, a source has given nothing to earlier targets, and those are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens.decomposition.completeness import relative_error
from normlens.decomposition.frozen import FrozenLayer


@dataclass(frozen=True)
class Sources:
    """What neighbouring sources gave to every target from `since` on, at one point."""

    first: int  # the first of the sources
    since: int  # earlier targets have nothing of them
    vectors: Tensor  # V (k, b, i, d)

    @classmethod
    def at_input(cls, x: Tensor, first: int, count: int, causal: bool) -> Sources:
        """Sources `first` to `first + count` as they enter the model: each is its own vector."""
        since = first if causal else 0
        b, n, d = x.shape
        count = min(count, n - first)
        vectors = x.new_zeros(count, b, n - since, d)
        chosen = torch.arange(count, device=x.device)
        vectors[chosen, :, chosen + first - since] = x[:, first : first + count].transpose(0, 1)
        return cls(first, since, vectors)

    def through(self, frozen: FrozenLayer, observe: Callable[[int, Sources], None]) -> Sources:
        """The same sources behind a layer; `observe` is shown them behind each of its steps."""

        def seen(step: int, vectors: Tensor) -> None:
            observe(step, replace(self, vectors=vectors))

        behind = frozen.from_token(self.since).forward(self.vectors, observe=seen)
        return replace(self, vectors=behind)

    @property
    def own(self) -> Tensor:
        """``V_kk`` of these sources, (k, b, d)."""
        count = torch.arange(len(self.vectors), device=self.vectors.device)
        return self.vectors[count, :, count + self.first - self.since]


@dataclass(frozen=True)
class WholeNorms:
    """What is kept of the whole vectors at one point, filled with sources as they come."""

    norms: Tensor  # ‖V_ik‖ (b, i, k)
    own: Tensor  # V_ii (b, i, d)
    total: Tensor  # Σ_k V_ik (b, i, d)

    @classmethod
    def empty(cls, x: Tensor) -> WholeNorms:
        """Nothing yet, for vectors like `x` (b, i, d)."""
        b, n, _ = x.shape
        return cls(x.new_zeros(b, n, n), torch.zeros_like(x), torch.zeros_like(x))

    def add(self, sources: Sources) -> None:
        """Take the norms of these sources' vectors, and add them to the sums."""
        k = slice(sources.first, sources.first + len(sources.vectors))
        norms = torch.linalg.vector_norm(sources.vectors, dim=-1)  # (k, b, i)
        self.norms[:, sources.since :, k] = norms.permute(1, 2, 0)
        self.own[:, k] = sources.own.transpose(0, 1)
        self.total[:, sources.since :] += sources.vectors.sum(0)

    def mixing(self) -> tuple[Tensor, Tensor]:
        """``‖V_ii‖`` and ``‖Σ_{k≠i} V_ik‖``, (b, i)."""
        own = torch.linalg.vector_norm(self.own, dim=-1)
        return own, torch.linalg.vector_norm(self.total - self.own, dim=-1)

    def error(self, bias: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
        """The worst relative error of ``Σ_k V_ik + b_i`` against the model's vectors."""
        return relative_error(self.total + bias, real, lengths)

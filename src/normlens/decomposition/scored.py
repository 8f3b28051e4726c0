"""What one component does to a score: the result that every component's `score` returns.

A score s is linear in the vectors behind a component. With ``g_i = ∂s/∂y_i`` there, the component's
output adds ``g_i · y_i``: what its input vectors own, and what no token owns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """One component's share of a score; `…` are scores side by side."""

    arriving: Tensor  # ∂s/∂(the component's input) (…, b, j, d)
    passed: Tensor | None = None  # (…, b, i), what its output owes to its input
    unowned: Tensor | None = None  # (…, b, i), what its output owes to biases
    heads: Tensor | None = None  # (…, b, h, i), `passed` by head
    at_heads: Tensor | None = None  # ∂s/∂(what each head reads) (…, b, h, i, d_head)


def inner(g: Tensor, vectors: Tensor | None) -> Tensor | None:
    """``g_i · v_i`` of vectors (…, b, i, d); None of none."""
    return None if vectors is None else (g * vectors).sum(-1)

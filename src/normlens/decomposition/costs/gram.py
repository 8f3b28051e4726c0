"""Norms of parts before the feed-forward block, by PyTorch: Gram matrices in float64.

``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ`` (H, H), some sources at a time.
"""

from __future__ import annotations

CHUNK_ELEMENTS = 1 << 22
CHUNK_ELEMENTS_ON_GPU = 1 << 24  # fewer launches


def gram_sources(heads: int, targets: int, d: int, device: str) -> int:
    """How many sources are treated at a time, so that U (j, h, d) and A (j, i, h) fit a chunk."""
    chunk = CHUNK_ELEMENTS if device == "cpu" else CHUNK_ELEMENTS_ON_GPU
    return max(1, chunk // (heads * max(targets, d)))


def exact_itemsize(device: str) -> int:
    """Bytes per number of the quadratic form: float64 where the device has it."""
    return 4 if device == "mps" else 8


def gram_memory(sources: int, heads: int, targets: int, d: int, device: str) -> int:
    """Bytes of one chunk: U; and A, A G and A G ⊙ A.

    `sources` counts those of the whole batch.
    """
    some = min(sources, gram_sources(heads, targets, d, device))
    return exact_itemsize(device) * some * heads * (d + 3 * targets)


def gram_operations(sources: int, heads: int, targets: int, d: int) -> int:
    """Operations of G_j = U_j U_jᵀ, and of A_ij G_j for every target."""
    return 2 * sources * heads * heads * (d + targets)

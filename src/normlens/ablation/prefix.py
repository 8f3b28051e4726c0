"""What layers returned in the intact pass, kept within a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.ablation.kinds import Ablation


def layers_to_keep(
    ablations: Sequence[Ablation], n_layers: int, bytes_each: int, limit: int
) -> list[int]:
    """The layers whose outputs are worth keeping: as many as fit, evenly spread.

    An ablation starts behind the last kept layer before its first one.
    """
    wanted = sorted({ablation.first - 1 for ablation in ablations if ablation.first > 0})
    wanted = [layer for layer in wanted if layer < n_layers]
    fitting = limit // max(1, bytes_each)
    if fitting >= len(wanted):
        return wanted
    # Of every stretch of layers the first is kept: behind it all others of the stretch can start.
    return [wanted[k * len(wanted) // fitting] for k in range(fitting)]


def start_behind(ablation: Ablation, kept: dict[int, Any]) -> int:
    """The last kept layer before an ablation's first; −1: none."""
    return max((layer for layer in kept if layer < ablation.first), default=-1)

"""Memory of a sequence in a batch, and the number of sequences that fit on a device."""

from __future__ import annotations

import torch

from normlens.decomposition.memory import device_memory

LARGEST_BATCH = 64
SHARE = 4  # a batch takes this fraction (1/4) of the memory that the weights leave free


def sequence_memory(n: int, heads: int, d: int, itemsize: int) -> int:
    """Bytes of one sequence of n tokens in a batch.

    The attention weights (h, i, j) as the model returned them, by source, and in two products; U
    (j, h, d) before, inside and behind a norm; twelve vectors per token.
    """
    return itemsize * n * (4 * heads * n + 3 * heads * d + 12 * d)


def affordable_sequences(device: torch.device, weights: int, per_sequence: int) -> int:
    """How many sequences fit into a quarter of the memory that `weights` bytes leave free.

    The memory that happens to be free at the moment does not count: results must not depend on
    what ran before. On a CPU one sequence already fills the machine, and padding would only add
    work.
    """
    if device.type == "cpu":
        return 1
    room = max(0, device_memory(device) - weights)
    return max(1, min(LARGEST_BATCH, room // SHARE // per_sequence))

"""Fingerprints of weights: numbers that depend on every bit, to notice any change.

The bits of a tensor, as 64-bit words x_k, are reduced to ``Σ_k a_k x_k mod 2^64`` with fixed random
odd a_k. A change of one word always changes the sum; a change of several leaves it as it was with a
probability near 2^-64. Versions and addresses of tensors would not do: weights that are edited
through ``.data`` keep both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from normlens.late import formed

ROW = 1 << 15  # words that are multiplied by the same factors
SLAB = 1 << 7  # rows at a time, so that the products stay small beside the weights
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Fingerprint = tuple[Hashable, ...]


def fingerprints(weights: Mapping[Hashable, Sequence[Tensor]]) -> dict[Hashable, Fingerprint]:
    """Fingerprints of some tensors by key: shape, strides, dtype, device and content of each.

    A device is waited for only once.
    """
    tensors = [tensor for group in weights.values() for tensor in group]
    if not tensors:
        return dict.fromkeys(weights, ())
    sums = [_content(formed(tensor)) for tensor in tensors]
    # Layers may lie on several devices.
    numbers = iter(torch.stack([each.to(sums[0].device) for each in sums]).tolist())
    return {
        key: tuple((*description(tensor), next(numbers)) for tensor in group)
        for key, group in weights.items()
    }


def description(tensor: Tensor) -> tuple[Hashable, ...]:
    """The part of a fingerprint that does not need the tensor's content."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _content(tensor: Tensor) -> Tensor:
    """``Σ_k a_k x_k``, a 64-bit number that is still on the tensor's device."""
    data = tensor.detach()
    if data.dim() == 2 and not data.is_contiguous():
        data = data.T  # a weight is often a transposed view; in memory order it needs no copy
    words = data.contiguous().view(-1).view(_WORDS[data.element_size()])
    per_word = 8 // words.element_size()
    if words.storage_offset() % per_word:
        words = words.clone()
    whole = words.numel() // per_word * per_word
    wide = [words[:whole].view(torch.int64), words[whole:].to(torch.int64)]
    return sum((_reduced(part) for part in wide), wide[0].new_zeros(()))


def _reduced(words: Tensor) -> Tensor:
    sums = []
    full = words.numel() // ROW * ROW
    rows = words[:full].view(-1, ROW)
    for start in range(0, len(rows), SLAB):
        sums.append((rows[start : start + SLAB] * _factors(ROW, words.device)).sum(1))
    rest = words[full:]
    sums.append((rest * _factors(ROW, words.device)[: len(rest)]).sum()[None])
    joined = torch.cat(sums)
    # Rows have factors that differ from those of words, or an exchange of rows would go unnoticed.
    return (joined * _factors(len(joined), words.device, seed=1)).sum()


@lru_cache(maxsize=256)
def _factors(count: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return (2 * drawn + 1).to(device)

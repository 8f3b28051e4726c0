"""Whether a memory limit that a user gives suffices, asked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normlens.analysing.stacks import Stack
from normlens.decomposition.least import check_limit, check_vectors_limit
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.models.two_stacks import DECODER
from normlens.origins import INPUT
from normlens.pairs import Item, sequences_of

if TYPE_CHECKING:
    from normlens.lens import Lens


def check_memory_limit(lens: Lens, stack: Stack, items: Sequence[Item]) -> None:
    """Raise unless the limit suffices for what is asked of a stack."""
    request, itemsize = stack.request, lens.compute_dtype.itemsize
    limit = request.settings.memory_limit or DEFAULT_LIMIT
    both = [sequences_of(item) for item in items]
    reads_encoder = stack.name == DECODER
    lengths = [len(sequences[-1 if reads_encoder else 0]) for sequences in both]
    if request.origin == INPUT:
        # A token of a source has vectors in both stacks.
        lengths = [sum(map(len, sequences)) for sequences in both]
        check_vectors_limit(limit, lens.layers, lengths, itemsize)
        return
    check_limit(
        limit,
        [stack.layers[index] for index in request.layers],
        lengths,
        lens.scopes if request.settings.statistics else request.scopes,
        request.settings.rule,
        itemsize,
        [len(sequences[0]) for sequences in both] if reads_encoder else (),
    )

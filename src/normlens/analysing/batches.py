"""Batches: the sequences that are analysed together, halved where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from normlens.decomposition.costs.batches import affordable_sequences, sequence_memory
from normlens.decomposition.costs.vectors import VectorSizes
from normlens.decomposition.source_parts import source_memory
from normlens.errors import MemoryLimitError
from normlens.memory_shortage import is_out_of_memory, process_limit
from normlens.models.readiness import padding_spoils
from normlens.options import at_least_one

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.results.maps import Maps

Each = TypeVar("Each", bound=Sized)  # a sequence, or a pair of them
Started = TypeVar("Started")


def batches(lens: Lens, encoded: Sequence[Sized], batch_size: int | str) -> Iterator[list[int]]:
    """Indices of the sequences in each batch, which are of similar length."""
    if len(encoded) == 1:
        size = 1
    elif batch_size == "auto":
        size = affordable(lens, max(map(len, encoded), default=1))
    else:
        size = at_least_one(int(batch_size), "batch_size")
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        if padding_spoils(lens.layers, lens.dtype, [len(encoded[i]) for i in batch]):
            yield from ([index] for index in batch)
        else:
            yield from _of_one_shape(encoded, batch, by_length=lens.adapter.padding_leaks)


def _of_one_shape(
    encoded: Sequence[Sized], batch: list[int], by_length: bool
) -> Iterator[list[int]]:
    """The batch, or its items of each shape where they are not padded: pictures and sounds.

    With `by_length`, texts are not padded, either.
    """
    shapes: dict[Any, list[int]] = {}
    for index in batch:
        signal = getattr(encoded[index], "signal", None)
        length = len(encoded[index]) if by_length else None
        shape = length if signal is None else signal.shape
        shapes.setdefault(shape, []).append(index)
    yield from shapes.values()


def affordable(lens: Lens, n: int) -> int:
    """How many sequences of n tokens a batch has on the model's device.

    Other programs may leave less memory than this assumes; then `launched` halves the batch.
    """
    # A decoder layer that reads the encoder has the weights of two attentions.
    heads = max(sum(attention.heads for attention in layer.attentions) for layer in lens.layers)
    d = lens.layers[0].width
    each = sequence_memory(n, heads, d, lens.compute_dtype.itemsize)
    weights = sum(parameter.nbytes for parameter in lens.model.parameters())
    return affordable_sequences(lens.device, weights, each)


def vector_batch(lens: Lens, n: int, wanted: int, limit: int) -> int:
    """How many of the `wanted` sequences of n tokens hold whole vectors within a memory limit."""
    sizes = VectorSizes.of(lens.layers, 1, n, lens.compute_dtype.itemsize)
    return max(1, min(wanted, limit // sizes.least))


def part_batch(lens: Lens, n: int, wanted: int, limit: int) -> int:
    """How many of them hold the parts of one source, where layers follow parts as vectors."""
    itemsize = lens.compute_dtype.itemsize
    each = [source_memory(layer, 1, n, itemsize) for layer in lens.layers if layer.by_source]
    return max(1, min(wanted, limit // max(each))) if each else wanted


def launched(
    batch: list[Each],
    launch: Callable[[list[Each]], Started],
    finish: Callable[[list[Each], Started], list[Maps]],
    device: torch.device,
) -> Callable[[], list[Maps]]:
    """Launch one batch and return a function that waits for its maps.

    A batch that runs out of memory is halved.
    """

    def halves() -> list[Maps]:
        half = len(batch) // 2
        smaller = batch[:half], batch[half:]
        return [maps for part in smaller for maps in launched(part, launch, finish, device)()]

    try:
        started = launch(batch)
    except (RuntimeError, MemoryError) as error:
        _check_memory(error, batch, device)
        return halves

    def wait() -> list[Maps]:
        try:
            return finish(batch, started)
        except (RuntimeError, MemoryError) as error:
            _check_memory(error, batch, device)
        return halves()

    return wait


def _check_memory(error: BaseException, batch: list[Each], device: torch.device) -> None:
    """Raise `error`, or one that explains it, unless a smaller batch may help."""
    if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
        raise error
    if len(batch) == 1:
        raise MemoryLimitError(
            f"{len(batch[0])} tokens do not fit into the memory of {device}; use a "
            "shorter text, fewer layers, or another device (`normlens estimate` says what it "
            f"needs){process_limit()}"
        )

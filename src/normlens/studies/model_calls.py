"""Calls of a lens's unmodified model by the studies: exclusive, in batches, and as an analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from normlens.inputs.text import Encoded
from normlens.pipeline.batches import halves
from normlens.trace.checks import check_chunks, check_weights, explain_failure
from normlens.trace.locking import exclusive
from normlens.trace.run import plain_options, reading

if TYPE_CHECKING:
    from normlens.lens import Lens

T = TypeVar("T")


def alone(lens: Lens, work: Callable[[], T], *, gradients: bool = False) -> T:
    """Call `work` while no other thread uses the model, in evaluation mode and without autocast."""
    whole = lens.adapter.whole

    def run() -> T:
        with (
            reading(whole, lens.adapter),
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
        ):
            return work()

    return exclusive(whole, run)


def on_batches(
    lens: Lens,
    items: Sequence[Encoded],
    batches: Iterable[list[int]],
    work: Callable[[list[int]], Iterable[T]],
    *,
    gradients: bool = False,
) -> list[T]:
    """Call `work` on the places of each batch of items, for a result of each; see `alone`.

    Where memory runs out, the halves of a batch go one after the other.
    """
    results: dict[int, T] = {}
    waiting = list(batches)
    while waiting:
        places = waiting.pop(0)
        try:
            found = alone(lens, partial(work, places), gradients=gradients)
        except (RuntimeError, MemoryError) as error:
            waiting[:0] = halves(lens, items, places, error)
            continue
        results |= zip(places, found, strict=True)
    return [results[place] for place in range(len(items))]


def call(lens: Lens, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """What the model, or its body, returns. For use inside `alone`."""
    check_weights(model, lens.layers)
    check_chunks(list(lens.adapter.blocks()), inputs["input_ids"].shape[1])
    try:
        return model(**inputs, **plain_options(model))
    except RuntimeError as error:
        explain_failure(model, error)
        raise


def with_input(
    change: Callable[[Tensor], Tensor | None], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The arguments of a module's call with its vectors changed; None where they stay.

    For hooks before a module, which takes its vectors first or by name.
    """
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs), "")
    changed = change(args[0] if args else kwargs[name])
    if changed is None:
        return None
    return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, name: changed})


def first_of(output: Any) -> Tensor:
    """A module's vectors: its output, or the first element of it."""
    return output[0] if isinstance(output, (tuple, list)) else output

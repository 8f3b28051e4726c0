"""What the model itself says of variants: logits where they are read, and texts' vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from normlens.errors import MemoryLimitError, is_out_of_memory, process_limit
from normlens.explain.backward import ask_for_places, chooses_positions, rows_read
from normlens.explain.whole_vectors import text_vector
from normlens.faithfulness.variants import Variant
from normlens.layers import ANY, LAST, Head
from normlens.models.unwrapping import check_chunks, check_weights
from normlens.options import AUTO, DEFAULT_LIMIT
from normlens.pipeline.batches import batches
from normlens.plan.costs import SHARE, device_memory
from normlens.trace.locking import Hooks, exclusive
from normlens.trace.run import model_inputs, plain_options, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens

T = TypeVar("T")

#: Most variants of a batch; a processor gains nothing beyond a few.
LARGEST, LARGEST_ON_CPU = 512, 32
ROOM_ON_CPU = 1 << 30

#: Takes the vectors (b, i, d) that are about to enter the first layer and returns what does.
Entering = Callable[[Tensor], Tensor]


def alone(lens: Lens, work: Callable[[], T], *, gradients: bool = False) -> T:
    """Call `work` while no other thread uses the model, which runs as an analysis would run it."""

    def run() -> T:
        with ExitStack() as stack:
            stack.enter_context(without_autocast(lens.device))
            stack.enter_context(reading(lens.adapter.whole, lens.adapter))
            if gradients:
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.enable_grad())
            return work()

    return exclusive(lens.adapter.whole, run)


def by_batches(
    lens: Lens,
    head: Head,
    variants: Sequence[Variant],
    batch_size: int | str,
    work: Callable[[list[int]], Tensor],
    *,
    gradients: bool = False,
) -> Tensor:
    """What `work` says of each variant, (variant, …), in float64 on the CPU.

    `work` is given the places of the variants in a batch. They are of similar length; where memory
    runs out, the halves go one after the other.
    """
    rows: dict[int, Tensor] = {}
    for places in _batches(lens, head, variants, batch_size, gradients):
        done = _halved(lens, variants, places, work, gradients)
        rows |= zip(places, done.double().cpu(), strict=True)
    return torch.stack([rows[place] for place in range(len(variants))])


def logits(lens: Lens, batch: Sequence[Variant], entering: Entering | None = None) -> Tensor:
    """The model's scores (b, word or class) where each variant is read. For use inside `alone`."""
    whole = lens.adapter.whole
    inputs: dict[str, Any] = dict(_inputs(lens, batch))
    positions = [variant.position for variant in batch]
    places = ask_for_places(whole, inputs, positions)
    output = _call(lens, whole, inputs, entering)
    return torch.stack(rows_read(output, places, enumerate(positions)))


def text_vectors(
    lens: Lens, head: Head, batch: Sequence[Variant], entering: Entering | None = None
) -> Tensor:
    """The vectors u (b, d) of texts, as `head` pools them. For use inside `alone`."""
    output = _call(lens, lens.model, _inputs(lens, batch), entering)
    last = output.last_hidden_state.to(lens.compute_dtype)  # (b, i, d)
    pooled = head.to(lens.compute_dtype)
    return torch.stack([text_vector(pooled, last[b, : len(v)]) for b, v in enumerate(batch)])


def affordable(lens: Lens, n: int, *, gradients: bool = False) -> int:
    """How many variants of n tokens go through the model together.

    The memory that happens to be free at the moment does not count: numbers must not depend on
    what ran before.
    """
    # Autograd keeps what every layer computed.
    each = _row_memory(lens, n) * (2 * lens.n_layers if gradients else 1)
    if lens.device.type == "cpu":
        return max(1, min(LARGEST_ON_CPU, ROOM_ON_CPU // each))
    weights = sum(parameter.nbytes for parameter in lens.adapter.whole.parameters())
    room = max(0, device_memory(lens.device) - weights) // SHARE
    return max(1, min(LARGEST, room // each))


def _row_memory(lens: Lens, n: int) -> int:
    """Bytes of one sequence of n tokens inside a layer: scores, vectors, neurons."""
    layers = lens.layers
    heads = max(layer.attention.heads for layer in layers)
    d = layers[0].attention.output.weight.shape[1]
    widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
    return lens.dtype.itemsize * n * (3 * heads * n + 8 * d + 3 * widest)


def sentence_head(lens: Lens) -> Head:
    """How the lens makes one vector of a text."""
    return lens.pooling.head(lens.adapter.end(), lens.device)


def _inputs(lens: Lens, batch: Sequence[Variant]) -> dict[str, Tensor]:
    return model_inputs(lens.adapter, [variant.encoded for variant in batch], lens.device)


def _call(lens: Lens, model: nn.Module, inputs: dict[str, Any], entering: Entering | None) -> Any:
    blocks = list(lens.adapter.blocks())
    check_weights(model, lens.layers)
    check_chunks(blocks, inputs["input_ids"].shape[1])
    if entering is None:
        return model(**inputs, **plain_options(model))
    with _entered(blocks[0], entering):
        return model(**inputs, **plain_options(model))


@contextmanager
def _entered(first: nn.Module, entering: Entering) -> Iterator[None]:
    """While this is open, the first layer reads what `entering` makes of the embeddings.

    A block that serves as several layers is changed when it runs as the first of them.
    """
    is_changed = False

    def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal is_changed
        if is_changed:
            return None
        is_changed = True
        if args:
            return (entering(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": entering(kwargs["hidden_states"])}

    with Hooks() as hooks:
        hooks.before(first, change)
        yield


def _batches(
    lens: Lens, head: Head, variants: Sequence[Variant], batch_size: int | str, gradients: bool
) -> Iterator[list[int]]:
    """The places of the variants in each batch."""
    if head.reads == LAST and getattr(lens.adapter.config, "pad_token_id", None) is None:
        # Such a classifier cannot tell padding from text.
        yield from ([place] for place in range(len(variants)))
        return
    longest = max(map(len, variants), default=1)
    size = affordable(lens, longest, gradients=gradients) if batch_size == AUTO else int(batch_size)
    if head.output is not None and head.reads == ANY and not chooses_positions(lens.adapter.whole):
        # The model returns the logits of all positions.
        each = longest * head.output.weight.shape[1] * lens.dtype.itemsize
        size = max(1, min(size, DEFAULT_LIMIT // each))
    yield from batches(lens, [variant.encoded for variant in variants], size)


def _halved(
    lens: Lens,
    variants: Sequence[Variant],
    places: list[int],
    work: Callable[[list[int]], Tensor],
    gradients: bool,
) -> Tensor:
    try:
        return alone(lens, lambda: work(places), gradients=gradients)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryLimitError) or not is_out_of_memory(error):
            raise
        if len(places) == 1:
            raise MemoryLimitError(
                f"{len(variants[places[0]])} tokens do not fit into the memory of {lens.device}; "
                f"use a shorter text or another device{process_limit()}"
            ) from None
    half = len(places) // 2
    parts = places[:half], places[half:]
    return torch.cat([_halved(lens, variants, part, work, gradients) for part in parts])

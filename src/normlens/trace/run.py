"""Run an unmodified model once and hand over, layer by layer, what the frozen layer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from normlens.errors import UnsupportedModelError
from normlens.gpu.matmul import is_split, times, times_plus
from normlens.inputs.text import Encoded, pad
from normlens.models.base import Adapter
from normlens.models.parts import SignalEncoder
from normlens.models.unwrapping import check_chunks, check_weights, explain_failure
from normlens.trace.locking import exclusive
from normlens.trace.patches import (
    Hooks,
    eager_attention,
    evaluation,
    other_methods,
    plain_experts,
    plain_options,
    uncompiled,
    whole_float32,
)
from normlens.trace.recorder import Call, Consumer, LayerTrace, Recorder, unique

# A float32 model's own products on a GPU, formed as the algebra forms its own.


#: Vectors from which on this takes less time than it costs in Python.
FEWEST = 4096


class split_linears(TorchFunctionMode):
    """Form linear maps of many vectors by `normlens.gpu.matmul`, to its 22 digits."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and not kwargs:
            x, weight, *bias = args
            if _is_large(x, weight.T):
                if not bias or bias[0] is None:
                    return times(x, weight.T)
                return times_plus(x, weight.T, bias[0])
        elif function is torch.addmm and not kwargs and len(args) == 3:
            bias, x, weight = args
            if bias.dim() == 1 and _is_large(x, weight):
                return times_plus(x, weight, bias)
        return function(*args, **(kwargs or {}))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let functions be called directly: this mode makes each of them pass through Python."""
        if _get_current_function_mode() is not self:  # one that was entered since lies on top
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()


def are_many(inputs: dict[str, Any]) -> bool:
    """Whether a GPU is given enough tokens for this to be worth its while."""
    return any(
        isinstance(given, Tensor) and given.is_cuda and given.numel() >= FEWEST
        for given in inputs.values()
    )


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return x.numel() >= FEWEST * x.shape[-1] and is_split(x, weight)


# What a model is called with, and how the caller's surroundings are kept out of the call.


def model_inputs(
    adapter: Adapter, batch: Sequence[Encoded], device: torch.device
) -> dict[str, Any]:
    """The arguments of the model's call for a batch; texts are padded on the right."""
    padding, read_first = _padding_id(adapter), [item.sequences[0] for item in batch]
    signals = [each.signal for each in read_first if each.signal is not None]
    if signals:
        # Pictures or sounds of one shape; padding would be seen and heard.
        dtype = next(p.dtype for p in adapter.model.parameters() if p.is_floating_point())
        values = torch.stack(signals).to(device, dtype)
        if isinstance(adapter, SignalEncoder):
            return {adapter.argument: values, **adapter.call_options(values)}
        inputs = {"input_features": values}
    else:
        inputs = pad(read_first, padding, device)
    # A tokenizer may give types that its model does not know.
    types = {kind for each in read_first for kind in each.type_ids or ()}
    if types and max(types) >= adapter.token_types():
        del inputs["token_type_ids"]
    if batch[0].source is not None:
        inputs |= {f"decoder_{name}": row for name, row in pad(batch, padding, device).items()}
    return inputs


def _padding_id(adapter: Adapter) -> int:
    """The id of padding: any will do under the mask; some configurations name none, or −1."""
    pad_id = getattr(adapter.config, "pad_token_id", None)
    return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Switch a caller's autocast off; a device that knows none (meta) needs nothing.

    It would run the model in one precision and the algebra in another.
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


# Run an unmodified model once and hand over, layer by layer, what the algebra needs.
#
# Hooks read each block's input, its attention weights and the vectors that it really computes. A
# layer is handed to its consumer as soon as the block has run and is forgotten afterwards, so no
# more than one layer's attention is ever held.


def trace(
    adapter: Adapter,
    inputs: dict[str, Tensor],
    layers: Sequence[int],
    consume: Consumer,
    *,
    spread: bool = False,
    then: Callable[[], object] | None = None,
) -> None:
    """Run the model on `inputs` and pass the trace of each wanted layer to `consume`.

    Other threads that trace the same model wait until this one is through, with what it has to do
    `then`, too. With `spread` its layers may lie on several devices, each on one.
    """

    def run() -> None:
        with reading(adapter.model, adapter):
            run_traced(adapter, adapter.model, inputs, layers, consume, spread=spread)
            if then is not None:
                then()

    exclusive(adapter.model, run)


@contextmanager
def reading(model: nn.Module, adapter: Adapter) -> Iterator[None]:
    """Run a model as an analysis must: no dropout, no gradients, attention that shows its weights.

    `model` is the adapter's or holds it. The thread must be alone with the model
    (`normlens.trace.locking`).
    """
    with (
        torch.no_grad(),
        evaluation(model),
        eager_attention(model),
        plain_experts(model),
        uncompiled(model),
        whole_float32(),
        other_methods(adapter.forward_patches()),
    ):
        yield


def run_traced(
    adapter: Adapter,
    model: nn.Module,
    inputs: dict[str, Any],
    layers: Sequence[int],
    consume: Consumer,
    *,
    spread: bool = False,
) -> Any:
    """Call `model`, which is the adapter's or holds it, and trace the layers; returns its output.

    For use inside `reading`.
    """
    blocks = list(adapter.blocks())
    if "input_ids" in inputs:  # sound has frames, which no family cuts into chunks
        check_chunks(blocks, inputs["input_ids"].shape[1])
    splitting = split_linears() if are_many(inputs) else None

    def consume_layer(traced: LayerTrace) -> None:
        with nullcontext() if splitting is None else splitting.paused():
            consume(traced)

    recorder = Recorder(adapter, set(layers), consume_layer)
    with Hooks() as hooks:
        described = [recorder.watch(block, hooks) for block in unique(blocks)]
        check_weights(model, described, blocks if spread else None)
        try:
            with nullcontext() if splitting is None else splitting:
                output = model(**inputs, **plain_options(model))
        except RuntimeError as error:
            explain_failure(model, error)
            raise
    if recorder.calls != len(blocks):
        raise UnsupportedModelError(
            f"the model ran {recorder.calls} blocks where its adapter lists {len(blocks)}"
        )
    return output


def run_again(adapter: Adapter, index: int, block: nn.Module, call: Call) -> LayerTrace:
    """Call one block as it was called before and trace it again, without rows of its modules.

    For use inside `reading`.
    """
    traces: list[LayerTrace] = []
    recorder = Recorder(adapter, {index}, traces.append)
    recorder.calls = index
    with Hooks() as hooks:
        recorder.watch(block, hooks, rows=False)
        block(*call[0], **call[1])
    return traces[0]

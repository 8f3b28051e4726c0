"""Run an unmodified model once and hand over, layer by layer, what the algebra needs.

Hooks read each block's input, its attention weights and the vectors that it really computes. A
layer is handed to its consumer as soon as the block has run and is forgotten afterwards, so no
more than one layer's attention is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.models.readiness import check_chunks, check_weights, explain_failure
from normlens.tracing.eager import eager_attention
from normlens.tracing.forwards import other_methods
from normlens.tracing.recorder import Call, Consumer, LayerTrace, Recorder, unique
from normlens.tracing.running import (
    Hooks,
    evaluation,
    plain_experts,
    plain_options,
    uncompiled,
    whole_float32,
)
from normlens.tracing.split_linears import are_many, split_linears
from normlens.tracing.turns import alone_with_model


def trace(
    adapter: Adapter,
    inputs: dict[str, Tensor],
    layers: Sequence[int],
    consume: Consumer,
    *,
    spread: bool = False,
) -> None:
    """Run the model on `inputs` and pass the trace of each wanted layer to `consume`.

    Other threads that trace the same model wait until this one is through. With `spread` its layers
    may lie on several devices, each on one.
    """

    def run() -> None:
        with reading(adapter.model, adapter):
            run_traced(adapter, adapter.model, inputs, layers, consume, spread=spread)

    alone_with_model(adapter.model, run)


@contextmanager
def reading(model: nn.Module, adapter: Adapter) -> Iterator[None]:
    """Run a model as an analysis must: no dropout, no gradients, attention that shows its weights.

    `model` is the adapter's or holds it. The thread must be alone with the model
    (`normlens.tracing.turns`).
    """
    with (
        torch.no_grad(),
        evaluation(model),
        eager_attention(model),
        plain_experts(model),
        uncompiled(model),
        whole_float32(),
        other_methods(adapter.stand_ins()),
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
    """Call one block as it was called before and trace it again.

    For use inside `reading`.
    """
    traces: list[LayerTrace] = []
    recorder = Recorder(adapter, {index}, traces.append)
    recorder.calls = index
    with Hooks() as hooks:
        recorder.watch(block, hooks)
        block(*call[0], **call[1])
    return traces[0]

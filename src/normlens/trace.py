"""Run an unmodified model once and hand over, layer by layer, what the algebra needs.

Hooks read each block's input, its attention weights and the vectors that it really computes. A
layer is handed to its consumer as soon as the block has run and is forgotten afterwards, so no
more than one layer's attention is ever held.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Attention, Branch, FeedForward, Layer, Norm, Residual
from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.models.readiness import check_chunks, check_weights, explain_failure
from normlens.rows import RowKeeper, Rows
from normlens.turns import alone_with_model

#: The arguments of a block's call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class LayerTrace:
    """One layer as the model ran it."""

    index: int  # 0-based
    block: nn.Module
    layer: Layer
    x: Tensor  # (b, j, d) the layer's input
    alpha: Tensor  # (b, h, i, j) attention weights
    real: dict[int, Tensor]  # step index → the model's own vector behind that step (b, i, d)
    rows: dict[nn.Module, Rows]  # what went into the layer's linear modules, and came out
    output: Tensor  # (b, i, d) what the block returned
    call: Call  # how the model called the block


Consumer = Callable[[LayerTrace], None]


def trace(
    adapter: Adapter, inputs: dict[str, Tensor], layers: Sequence[int], consume: Consumer
) -> None:
    """Run the model on `inputs` and pass the trace of each wanted layer to `consume`.

    Other threads that trace the same model wait until this one is through.
    """
    alone_with_model(adapter.model, lambda: _trace(adapter, inputs, layers, consume))


def _trace(
    adapter: Adapter, inputs: dict[str, Tensor], layers: Sequence[int], consume: Consumer
) -> None:
    with reading(adapter.model):
        run_traced(adapter, adapter.model, inputs, layers, consume)


@contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """Run a model as an analysis must: no dropout, no gradients, attention that shows its weights.

    The thread must be alone with the model (`normlens.turns`).
    """
    with torch.no_grad(), _evaluation(model), _eager_attention(model), _uncompiled(model):
        yield


def run_traced(
    adapter: Adapter,
    model: nn.Module,
    inputs: dict[str, Any],
    layers: Sequence[int],
    consume: Consumer,
) -> Any:
    """Call `model`, which is the adapter's or holds it, and trace the layers; returns its output.

    For use inside `reading`.
    """
    blocks = list(adapter.blocks())
    check_chunks(blocks, inputs["input_ids"].shape[1])
    recorder = _Recorder(adapter, set(layers), consume)
    try:
        with _Hooks() as hooks:
            check_weights(model, [recorder.watch(block, hooks) for block in _unique(blocks)])
            try:
                output = model(**inputs, **_plain_options(model))
            except RuntimeError as error:
                explain_failure(model, error)
                raise
    finally:
        # Ctrl-C inside torch may keep a hook from being noted; it must not listen to later calls.
        recorder.thread = None
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
    recorder = _Recorder(adapter, {index}, traces.append)
    recorder.calls = index
    try:
        with _Hooks() as hooks:
            recorder.watch(block, hooks)
            block(*call[0], **call[1])
    finally:
        recorder.thread = None
    return traces[0]


class _Recorder:
    """Collects what the hooks see during one block and hands it over when the block ends.

    Only the thread that traces is listened to: another one may run the model for its own ends.
    """

    def __init__(self, adapter: Adapter, wanted: set[int], consume: Consumer):
        self.adapter, self.wanted, self.consume = adapter, wanted, consume
        self.thread: int | None = threading.get_ident()
        self.calls = 0
        self.x: Tensor | None = None
        self.call: Call = ((), {})
        self.seen: dict[tuple[str, nn.Module], list[Tensor]] = {}
        self.rows = RowKeeper()

    def watch(self, block: nn.Module, hooks: _Hooks) -> Layer:
        """Read this block whenever it runs; returns what the adapter says it is."""
        layer = self.adapter.layer(block)

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._is_traced():
                return
            self._forget()
            self.x = args[0] if args else kwargs["hidden_states"]
            self.call = args, kwargs

        def end(block: nn.Module, _: Any, output: Any) -> None:
            if not self._is_traced():
                return
            index, self.calls = self.calls, self.calls + 1
            if index in self.wanted:
                self.consume(self._layer_trace(index, block, layer, _first(output)))
            self._forget()

        for module, event in _probes(layer):
            hooks.handles.append(self._probe(module, event))
        for module in _unique(_linear_modules(layer)):
            hooks.handles.append(module.register_forward_hook(self._keep_rows, with_kwargs=True))
        hooks.handles.append(block.register_forward_pre_hook(begin, with_kwargs=True))
        hooks.handles.append(block.register_forward_hook(end))
        return layer

    def _probe(self, module: nn.Module, event: str) -> Any:
        def keep(value: Any) -> None:
            if self._is_traced() and self.calls in self.wanted and isinstance(value, Tensor):
                self.seen.setdefault((event, module), []).append(value.detach())

        if event == "input":
            return module.register_forward_pre_hook(lambda _, args: keep(args[0]))
        if event == "weights":
            return module.register_forward_hook(lambda _, __, out: keep(_second(out)))
        return module.register_forward_hook(lambda _, __, out: keep(_first(out)))

    def _keep_rows(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self._is_traced() and self.calls in self.wanted:
            self.rows.keep(module, args, kwargs, _first(output))

    def _forget(self) -> None:
        self.seen.clear()
        self.rows.clear()

    def _is_traced(self) -> bool:
        return threading.get_ident() == self.thread

    def _layer_trace(
        self, index: int, block: nn.Module, layer: Layer, output: Tensor
    ) -> LayerTrace:
        assert self.x is not None
        x = self.x.detach()
        seen = self.seen.get(("weights", _weights_module(layer)))
        if not seen or seen[0].dim() != 4:
            raise UnsupportedModelError(
                f"layer {index} returned no attention weights; load the model with "
                'attn_implementation="eager"'
            )
        real: dict[int, Tensor] = {}
        for step, (module, event) in _checkpoints(layer).items():
            vectors = [output] if module is None else self.seen.get((event, module))
            if not vectors:
                continue
            # A block that is chunked over the sequence calls its modules several times.
            vector = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
            real[step] = vector.reshape(x.shape)
        rows = self.rows.rows()
        return LayerTrace(index, block, layer, x, seen[0], real, rows, output, self.call)


def _weights_module(layer: Layer) -> nn.Module:
    module = layer.attention.weights
    if module is None:
        raise UnsupportedModelError("the adapter does not say which module returns the weights")
    return module


def _checkpoints(layer: Layer) -> dict[int, tuple[nn.Module | None, str]]:
    """Where the model's own vector behind each step can be read; module None: the block's output.

    Behind a residual it is the input of the norm that follows, or the block's output at the end.
    """
    places: dict[int, tuple[nn.Module | None, str]] = {}
    steps = [(i, step) for i, step in enumerate(layer.steps) if not isinstance(step, Branch)]
    for position, (index, step) in enumerate(steps):
        following = steps[position + 1][1] if position + 1 < len(steps) else None
        if index not in layer.scope_of_step:
            continue
        if following is None:
            places[index] = (None, "output")
        elif isinstance(step, Residual):
            if isinstance(following, Norm) and following.module is not None:
                places[index] = (following.module, "input")
        elif isinstance(step, (Norm, Attention, FeedForward)) and step.module is not None:
            places[index] = (step.module, "output")
    return places


def _probes(layer: Layer) -> list[tuple[nn.Module, str]]:
    """Every module to hook for this layer, and what to read there."""
    reads = [
        (module, event) for module, event in _checkpoints(layer).values() if module is not None
    ]
    return [*reads, (_weights_module(layer), "weights")]


def _linear_modules(layer: Layer) -> list[nn.Module]:
    return [linear.module for linear in layer.linear_maps if linear.module is not None]


def _unique(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    return list({id(block): block for block in blocks}.values())


def _first(output: Any) -> Any:
    """A module's vector: transformers 5 returns it alone in some families, in a tuple in others."""
    return output[0] if isinstance(output, (tuple, list)) else output


def _second(output: Any) -> Any:
    if isinstance(output, (tuple, list)):
        return output[1] if len(output) > 1 else None
    return output


class _Hooks:
    """Hooks that are all taken off at the end."""

    def __init__(self) -> None:
        self.handles: list[Any] = []

    def __enter__(self) -> _Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        _undo(self._remove)

    def _remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def _undo(change: Callable[[], None]) -> None:
    """Undo a change to the end, though Ctrl-C may strike meanwhile."""
    try:
        change()
    except KeyboardInterrupt:
        change()
        raise


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Dropout off, and every module's mode put back afterwards."""
    training = [module for module in model.modules() if module.training]

    def restore() -> None:
        for module in training:
            module.training = True

    try:
        model.eval()
        yield
    finally:
        _undo(restore)


@contextmanager
def _eager_attention(model: Any) -> Iterator[None]:
    """Only eager attention returns its weights; under sdpa the model silently returns none."""
    previous = getattr(model.config, "_attn_implementation", "eager")
    if previous in ("eager", None) or not hasattr(model, "set_attn_implementation"):
        yield
        return
    try:
        model.set_attn_implementation("eager")
        yield
    finally:
        _undo(lambda: model.set_attn_implementation(previous))


@contextmanager
def _uncompiled(model: nn.Module) -> Iterator[None]:
    """Run compiled modules as they were written: compiled code may pass by the hooks."""
    compiled = any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    if not compiled:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _plain_options(model: nn.Module) -> dict[str, Any]:
    """Switch the key–value cache off where there is one: it would keep every layer's keys."""
    parameters = inspect.signature(model.forward).parameters
    return {"use_cache": False} if "use_cache" in parameters else {}

"""Hooks that record a block's input, attention weights, routing and the vectors it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.layers import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Residual,
    Routing,
    Step,
)
from normlens.models.base import Adapter
from normlens.models.reading import class_name
from normlens.trace.patches import Hooks

# Where a layer's weights and vectors can be read while the model runs: modules and events.


def weights_module(attention: Attention) -> nn.Module:
    if attention.weights is None:
        raise UnsupportedModelError("the adapter does not say which module returns the weights")
    return attention.weights


def value_module(attention: Attention) -> nn.Module:
    if attention.value.module is None:
        raise UnsupportedModelError(
            "the adapter does not say which module projects the values of "
            f"{attention.source!r}, where its vectors can be read"
        )
    return attention.value.module


def weights_event(attention: Attention) -> str:
    """What to read at the module of the weights: its only output, or one of several."""
    return f"weights {attention.weights_at}"


def checkpoints(layer: Layer) -> dict[int, tuple[nn.Module | None, str]]:
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
        elif not isinstance(step, (Branch, ParallelFeedForward)) and step.module is not None:
            places[index] = (step.module, "output")
    return places


def factor_behind(step: Step) -> float | Tensor:
    """What the model multiplies the vector by that a component's module returns."""
    if isinstance(step, Experts):
        return step.scale
    if isinstance(step, Attention):
        last = step.output
    elif isinstance(step, FeedForward):
        last = step.down
    else:
        return 1.0
    return last.scale if step.module is last.module else 1.0


def probes(layer: Layer) -> list[tuple[nn.Module, str]]:
    """Every module to hook for this layer, and what to read there."""
    reads = [(module, event) for module, event in checkpoints(layer).values() if module is not None]
    for attention in layer.attentions:
        reads.append((weights_module(attention), weights_event(attention)))
        if attention.source is not None:
            reads.append((value_module(attention), "input"))
    return list(dict.fromkeys(reads))  # what is hooked twice would be read twice


def linear_modules(layer: Layer) -> list[nn.Module]:
    return [linear.module for linear in layer.linear_maps if linear.module is not None]


# A few rows of the input and output of each linear module.


#: Tokens whose vectors are kept of each module: enough to check that it computes x W + b, and very
#: little memory beside a layer's.
ROWS = 8


class Rows(NamedTuple):
    """Some rows of a module's input, and the same rows of its output."""

    input: Tensor  # (row, in)
    output: Tensor  # (row, out)


class RowKeeper:
    """Collects the rows of one layer's modules as they run."""

    def __init__(self) -> None:
        self._calls: dict[nn.Module, list[Rows]] = {}

    def keep(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Keep some rows of a call, evenly spread; a chunked block makes several calls."""
        calls = self._calls.setdefault(module, [])
        if sum(len(rows.input) for rows in calls) >= ROWS:
            return
        tensors = args[0] if args else next(iter(kwargs.values())), output
        tables = [tensor.detach().reshape(-1, tensor.shape[-1]) for tensor in tensors]
        stride = max(1, len(tables[0]) // ROWS)
        # A view would keep the whole tensor alive.
        calls.append(Rows(*(table[::stride][:ROWS].clone() for table in tables)))

    def rows(self, device: torch.device | None = None) -> dict[nn.Module, Rows]:
        """The rows of each module since the last `clear`, on this device if one is given."""
        return {
            module: Rows(
                *(torch.cat(tables).to(device=device) for tables in zip(*calls, strict=True))
            )
            for module, calls in self._calls.items()
        }

    def clear(self) -> None:
        self._calls.clear()


# Hooks that read a block's input, its attention weights and the vectors that it computes.


#: The arguments of a block's call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class LayerTrace:
    """One layer as the model ran it."""

    index: int  # 0-based
    block: nn.Module
    layer: Layer
    x: Tensor  # (b, j, d) the layer's input
    alphas: tuple[Tensor, ...]  # (b, h, i, j) the weights of each attention, in order
    real: dict[int, Tensor]  # step index → the model's own vector behind that step (b, i, d)
    rows: dict[nn.Module, Rows]  # what went into the layer's linear modules, and came out
    output: Tensor  # (b, i, d) what the block returned
    call: Call  # how the model called the block
    #: (b, j, d) the vectors of each other sequence that an attention reads, by its name
    sources: dict[str, Tensor] = field(default_factory=dict)
    outputs: int = 0  # what the block returned in a tuple, the vector first; 0: the vector alone


Consumer = Callable[[LayerTrace], None]


class Recorder:
    """Collects what the hooks see during one block and hands it over when the block ends."""

    def __init__(self, adapter: Adapter, wanted: set[int], consume: Consumer):
        self.adapter, self.wanted, self.consume = adapter, wanted, consume
        self.calls = 0
        self.x: Tensor | None = None
        self.call: Call = ((), {})
        self.seen: dict[tuple[str, nn.Module], list[Tensor]] = {}
        self.rows = RowKeeper()
        self.routing: dict[nn.Module, Any] = {}  # experts and weights of tokens, and of shared ones

    def watch(self, block: nn.Module, hooks: Hooks, rows: bool = True) -> Layer:
        """Read this block whenever it runs; returns what the adapter says it is."""
        layer = self.adapter.layer(block)

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._forget()
            self.x = args[0] if args else kwargs["hidden_states"]
            self.call = args, kwargs

        def end(block: nn.Module, _: Any, __: Any, output: Any) -> None:
            index, self.calls = self.calls, self.calls + 1
            if index in self.wanted:
                count = len(output) if isinstance(output, (tuple, list)) else 0
                traced = self._layer_trace(index, block, layer, _first(output))
                self.consume(replace(traced, outputs=count))
            self._forget()

        for module, event in probes(layer):
            self._probe(module, event, hooks)
        for module in unique(linear_modules(layer)) if rows else ():
            hooks.behind(module, self._keep_rows)
        if (experts := layer.experts) is not None:
            hooks.behind(experts.router, partial(self._keep_routing, experts.read))
            if experts.shared_gate is not None:
                hooks.behind(experts.shared_gate, partial(self._keep_routing, _sigmoid))
        hooks.before(block, begin)
        hooks.behind(block, end)
        return layer

    def _probe(self, module: nn.Module, event: str, hooks: Hooks) -> None:
        def keep(value: Any) -> None:
            if self._is_wanted() and isinstance(value, Tensor):
                self.seen.setdefault((event, module), []).append(value.detach())

        if event == "input":
            hooks.before(module, lambda _, args, kwargs: keep([*args, *kwargs.values()][0]))
        elif event.startswith("weights"):
            place = int(event.split()[1])
            hooks.behind(module, lambda *call: keep(_at(call[-1], place)))
        else:
            hooks.behind(module, lambda *call: keep(_first(call[-1])))

    def _keep_rows(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self._is_wanted():
            self.rows.keep(module, args, kwargs, _first(output))

    def _keep_routing(self, read: Callable[..., Any], module: nn.Module, *call: Any) -> None:
        if self._is_wanted():
            self.routing[module] = read(*call)

    def _forget(self) -> None:
        self.seen.clear()
        self.rows.clear()
        self.routing.clear()

    def _is_wanted(self) -> bool:
        return self.calls in self.wanted

    def _layer_trace(
        self, index: int, block: nn.Module, layer: Layer, output: Tensor
    ) -> LayerTrace:
        assert self.x is not None
        alphas, sources = self._alphas(index, layer), self._sources(index, layer)
        # Where layers lie on several devices, a hook sees vectors before they are brought along.
        place = alphas[0].device
        x, output = self.x.detach().to(place), output.to(place)
        layer = self._routed(index, layer, x)
        real: dict[int, Tensor] = {}
        for step, (module, event) in checkpoints(layer).items():
            vectors = [output] if module is None else self.seen.get((event, module))
            if not vectors:
                continue
            # A block that is chunked over the sequence calls its modules several times.
            vector = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
            real[step] = vector.reshape(*x.shape[:2], -1).to(place)
            factor = factor_behind(layer.steps[step]) if module is not None else 1.0
            if isinstance(factor, Tensor) or factor != 1.0:
                real[step] = real[step] * factor
        sources = {name: vectors.to(place) for name, vectors in sources.items()}
        rows = self.rows.rows(place)
        return LayerTrace(index, block, layer, x, alphas, real, rows, output, self.call, sources)

    def _routed(self, index: int, layer: Layer, x: Tensor) -> Layer:
        """The layer with the routing of the tokens in `x` (b, i, d), if it has experts."""
        experts = layer.experts
        if experts is None:
            return layer
        tokens = x.shape[:2]
        chosen = self.routing.get(experts.router)
        if chosen is None or chosen[0].shape[0] != tokens.numel():
            raise UnsupportedModelError(
                f"layer {index} did not show which experts its tokens use: "
                f"{class_name(experts.router)} did not run once for all of them; load the model "
                "without kernels that take its place"
            )
        places, weights = (tensor.detach().reshape(*tokens, -1) for tensor in chosen)
        shared = None
        if experts.shared_gate is not None:
            shared = self.routing[experts.shared_gate].reshape(tokens)
        return layer.routed(Routing(places, weights, shared))

    def _alphas(self, index: int, layer: Layer) -> tuple[Tensor, ...]:
        """The weights that each attention's module returned; one module may serve several."""
        calls: Counter[nn.Module] = Counter()
        alphas = []
        for attention in layer.attentions:
            module = weights_module(attention)
            returned = self.seen.get((weights_event(attention), module), [])[calls[module] :]
            if not returned or returned[0].dim() != 4:
                raise UnsupportedModelError(
                    f"layer {index} returned no attention weights; load the model with "
                    'attn_implementation="eager"'
                )
            calls[module] += 1
            alphas.append(returned[0])
        return tuple(alphas)

    def _sources(self, index: int, layer: Layer) -> dict[str, Tensor]:
        """What the value projections of attentions to other sequences read."""
        sources: dict[str, Tensor] = {}
        for attention in layer.attentions:
            if attention.source is None:
                continue
            read = self.seen.get(("input", value_module(attention)))
            if not read or read[0].dim() != 3:
                raise UnsupportedModelError(
                    f"the value projection of layer {index} read no vectors of "
                    f"{attention.source!r} in this call"
                )
            sources.setdefault(attention.source, read[0])
        return sources


def unique(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    return list({id(block): block for block in blocks}.values())


def _sigmoid(_: Any, __: Any, output: Tensor) -> Tensor:
    return output.detach().sigmoid()


def _first(output: Any) -> Any:
    """A module's vector: transformers 5 returns it alone in some families, in a tuple in others."""
    return output[0] if isinstance(output, (tuple, list)) else output


def _at(output: Any, place: int) -> Any:
    """One of a module's several outputs, or its only one; None if there are fewer."""
    if isinstance(output, (tuple, list)):
        return output[place] if len(output) > place else None
    return output

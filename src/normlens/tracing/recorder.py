"""Hooks that read a block's input, its attention weights and the vectors that it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Layer
from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.tracing.probes import (
    checkpoints,
    factor_behind,
    linear_modules,
    probes,
    value_module,
    weights_event,
    weights_module,
)
from normlens.tracing.routing import RoutingReader
from normlens.tracing.rows import RowKeeper, Rows
from normlens.tracing.running import Hooks

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
        self.routing = RoutingReader()

    def watch(self, block: nn.Module, hooks: Hooks) -> Layer:
        """Read this block whenever it runs; returns what the adapter says it is."""
        layer = self.adapter.layer(block)

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._forget()
            self.x = args[0] if args else kwargs["hidden_states"]
            self.call = args, kwargs

        def end(block: nn.Module, _: Any, __: Any, output: Any) -> None:
            index, self.calls = self.calls, self.calls + 1
            if index in self.wanted:
                self.consume(self._layer_trace(index, block, layer, _first(output)))
            self._forget()

        for module, event in probes(layer):
            self._probe(module, event, hooks)
        for module in unique(linear_modules(layer)):
            hooks.behind(module, self._keep_rows)
        if layer.experts is not None:
            self.routing.watch(layer.experts, hooks, self._is_wanted)
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
        layer = self.routing.routed(index, layer, x)
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


def _first(output: Any) -> Any:
    """A module's vector: transformers 5 returns it alone in some families, in a tuple in others."""
    return output[0] if isinstance(output, (tuple, list)) else output


def _at(output: Any, place: int) -> Any:
    """One of a module's several outputs, or its only one; None if there are fewer."""
    if isinstance(output, (tuple, list)):
        return output[place] if len(output) > place else None
    return output

"""Which experts tokens use, read from the calls of a layer's modules while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from normlens.components import Experts, Layer, Routing
from normlens.errors import UnsupportedModelError
from normlens.models.reading import class_name
from normlens.tracing.running import Hooks


class RoutingReader:
    """Keeps the routing of one layer as its modules are called."""

    def __init__(self) -> None:
        self._chosen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._shared: dict[nn.Module, Tensor] = {}

    def watch(self, experts: Experts, hooks: Hooks, listens: Callable[[], bool]) -> None:
        """Hook the modules that show the routing of `experts`, for while it `listens`."""

        def chosen(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            if listens():
                self._chosen[module] = experts.read(args, kwargs, output)

        def shared(module: nn.Module, _: Any, __: Any, output: Tensor) -> None:
            if listens():
                self._shared[module] = output.detach().sigmoid()

        hooks.behind(experts.router, chosen)
        if experts.shared_gate is not None:
            hooks.behind(experts.shared_gate, shared)

    def routed(self, index: int, layer: Layer, x: Tensor) -> Layer:
        """The layer with the routing of the tokens in `x` (b, i, d), if it has experts."""
        experts = layer.experts
        if experts is None:
            return layer
        tokens = x.shape[:2]
        chosen = self._chosen.get(experts.router)
        if chosen is None or chosen[0].shape[0] != tokens.numel():
            raise UnsupportedModelError(
                f"layer {index} did not show which experts its tokens use: "
                f"{class_name(experts.router)} did not run once for all of them; load the model "
                "without kernels that take its place"
            )
        places, weights = (tensor.detach().reshape(*tokens, -1) for tensor in chosen)
        shared = None
        if experts.shared_gate is not None:
            shared = self._shared[experts.shared_gate].reshape(tokens)
        return layer.routed(Routing(places, weights, shared))

    def clear(self) -> None:
        self._chosen.clear()
        self._shared.clear()

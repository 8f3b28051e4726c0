"""Whether a model will do the same again: what its calls depend on beside their inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlens.tracing.turns import while_idle

#: Packages whose modules do nothing but what their tensors and plain attributes say.
PLAIN = ("torch.", "transformers.")
#: Attributes of a module that, if they are there, may do something else.
HIDDEN = (
    "forward",
    "_compiled_call_impl",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
#: Hooks on all modules.
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
#: Attributes that are dictionaries, whose contents belong to a module's state.
INSIDE = ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks")
#: Values that are compared; others must be the same objects.
COMPARED = {bool, int, float, str, type(None)}


@dataclass
class ModelState:
    """The state of a model, for comparison with what it is later.

    It has the addresses of all tensors, not their contents, and every attribute of modules and
    configurations.
    """

    model: nn.Module
    attributes: list[tuple[dict[str, Any], list[Any]]] = field(default_factory=list)
    tensors: list[tuple[Tensor, tuple[Any, ...]]] = field(default_factory=list)
    forward: dict[type[nn.Module], Callable[..., Any]] = field(default_factory=dict)
    settings: tuple[Any, ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> ModelState | None:
        """The state of a model to whose calls nobody listens; None if anything could be hidden.

        Another thread that analyses with it is waited for: hooks of an analysis are not the
        model's.
        """
        return while_idle(model, lambda: cls._of(model))

    @classmethod
    def _of(cls, model: nn.Module) -> ModelState | None:
        if any(getattr(nn.modules.module, name, None) for name in GLOBAL_HOOKS):
            return None
        state = cls(model, settings=_settings())
        for module in model.modules():
            attributes = vars(module)
            if any(attributes.get(name) for name in HIDDEN):
                return None
            if not type(module).__module__.startswith(PLAIN):
                return None
            state.forward[type(module)] = type(module).forward
            state._hold(attributes)
            for name in INSIDE:
                state._hold(attributes[name])
            if "config" in attributes:
                state._hold(vars(attributes["config"]))
            for tensor in (*attributes["_parameters"].values(), *attributes["_buffers"].values()):
                if tensor is None:
                    continue
                if type(tensor) not in (nn.Parameter, Tensor):
                    return None  # a tensor that is more than its memory
                state.tensors.append((tensor, _memory(tensor)))
        if len({tensor.device for tensor, _ in state.tensors}) > 1:
            return None  # one device cannot record what another one does
        return state

    def _hold(self, attributes: dict[str, Any]) -> None:
        self.attributes.append((attributes, list(attributes.values())))

    def holds(self) -> bool:
        """Whether the model is still as it was, or will be when other threads are done with it."""
        return self._holds() or while_idle(self.model, self._holds)

    def _holds(self) -> bool:
        return (
            self.settings == _settings()
            and not any(getattr(nn.modules.module, name, None) for name in GLOBAL_HOOKS)
            and all(_same(now, before) for now, before in self.attributes)
            and self.holds_memory()
            and all(kind.forward is before for kind, before in self.forward.items())
        )

    def holds_memory(self) -> bool:
        """Whether its tensors still lie where they lay."""
        return all(_memory(tensor) == before for tensor, before in self.tensors)


def _settings() -> tuple[Any, ...]:
    return torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _same(now: dict[str, Any], before: list[Any]) -> bool:
    if len(now) != len(before):
        return False
    if all(map(operator.is_, now.values(), before)):
        return True
    return all(
        a is b or (type(a) is type(b) and type(a) in COMPARED and a == b)
        for a, b in zip(now.values(), before, strict=True)
    )

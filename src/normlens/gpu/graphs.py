"""Capture work as a CUDA graph, and detect changes to a model that invalidate it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normlens.gpu.transfer import holding
from normlens.trace.locking import exclusive

# Work on a GPU that is captured as a CUDA graph, and replayed on other inputs.


#: Whether this torch can tell, layer by layer, how far a replay has come.
HAS_GRAPH_EVENTS = "external" in inspect.signature(torch.cuda.Event.__new__).parameters

Inputs = Mapping[str, Any]  # tensors, and what else a model is told
T = TypeVar("T")


class Captured(Generic[T]):
    """The kernels of a run, with the tensors that they read and write."""

    def __init__(self, run: Callable[[dict[str, Any]], T], inputs: Inputs):
        self._inputs = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        with holding() as self._constants:
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                run(dict(self._inputs))  # compiles kernels and fills caches
            current.wait_stream(stream)
            before = torch.cuda.memory_reserved()
            self._graph = torch.cuda.CUDAGraph()
            graph = torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local")
            with graph, _NumbersFromPython(self._constants):
                self._result = run(dict(self._inputs))
        #: Memory of its own, which holds results and whatever a replay needs on its way.
        self.bytes = max(0, torch.cuda.memory_reserved() - before)

    def replay(self, inputs: Inputs) -> T:
        """Start the same on other inputs; the tensors of the result are there when it is done."""
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                self._inputs[name].copy_(value, non_blocking=True)
        self._graph.replay()
        return self._result


def described(inputs: Inputs) -> tuple[Any, ...]:
    """What inputs must have in common for one capture to stand for them."""
    return tuple(
        (name, value.shape, value.dtype) if isinstance(value, Tensor) else (name, value)
        for name, value in inputs.items()
    )


class _NumbersFromPython(TorchFunctionMode):
    """Lets ``torch.tensor(0.0, device="cuda")`` be recorded, which models write in their masks.

    Its memory must not move until the last replay.
    """

    def __init__(self, constants: list[Tensor]):
        super().__init__()
        self._constants = constants

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        device = options.get("device")
        if function is not torch.tensor or device is None or torch.device(device).type != "cuda":
            return function(*args, **options)
        del options["device"]
        constant = torch.tensor(*args, **options).pin_memory()
        self._constants.append(constant)
        return constant.to(device, non_blocking=True)


# Whether a model will do the same again: what its calls depend on beside their inputs.


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
        return exclusive(model, lambda: cls._of(model), again=True)

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
        return self._holds() or exclusive(self.model, self._holds, again=True)

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

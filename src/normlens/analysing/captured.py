"""Work on a GPU that is captured as a CUDA graph, and replayed on other inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normlens.device_constants import holding

#: Whether this torch can tell, layer by layer, how far a replay has come.
TELLS = "external" in inspect.signature(torch.cuda.Event.__new__).parameters

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

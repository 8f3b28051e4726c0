"""How much memory there is, and what running out of it looks like."""

from __future__ import annotations

import pytest
import torch

from normlens.decomposition.memory import device_memory, free_memory, is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"),
        RuntimeError("MPS backend out of memory"),
    ],
)
def test_out_of_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("no"), KeyError("x")])
def test_other_errors(error):
    assert not is_out_of_memory(error)


def test_what_a_device_has():
    cpu = torch.device("cpu")
    assert free_memory(cpu) > 0
    assert device_memory(cpu) == device_memory(cpu) > 0

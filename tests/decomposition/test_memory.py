"""Memory limits as users write them, and what running out of memory looks like."""

from __future__ import annotations

import pytest
import torch

from normlens.decomposition.memory import (
    device_memory,
    free_memory,
    is_out_of_memory,
    parse_bytes,
)
from normlens.errors import InputError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (1000, 1000),
        (2e9, 2_000_000_000),
        ("512", 512),
        ("512b", 512),
        ("4k", 4 << 10),
        ("512MB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1.5 GiB", 3 << 29),
        (" 2G ", 2 << 30),
        ("1TB", 1 << 40),
        ("2e9", 2_000_000_000),
        ("1e3 kb", 1000 << 10),
    ],
)
def test_sizes(given, expected):
    assert parse_bytes(given) == expected


@pytest.mark.parametrize(
    "given", ["", "much", "GB", "-1", -1, 0, "0MB", "1.2.3 GB", "5 apples", "1 PB", "nan", "inf"]
)
def test_what_is_not_a_size(given):
    with pytest.raises(InputError, match="512MB"):
        parse_bytes(given)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "1e400", "9" * 400])
def test_sizes_that_are_not_finite(given):
    with pytest.raises(InputError, match="512MB"):
        parse_bytes(given)


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

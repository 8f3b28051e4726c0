"""What is sent arrives where it belongs; a CPU stands in for the GPU, whose streams do nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from normlens.gpu import transfer
from normlens.gpu.transfer import DeviceTransfer


class Instant:
    """An event, or a stream, at which nothing is waited for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> DeviceTransfer:
    real = torch.empty
    monkeypatch.setattr(torch.cuda, "Event", Instant)
    monkeypatch.setattr(torch.cuda, "Stream", Instant)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: real(*a, **k))
    monkeypatch.setattr(transfer, "_SLOTS", transfer._Slots())
    monkeypatch.setattr(transfer, "SLOT", 1 << 10)
    monkeypatch.setattr(transfer, "ROWS", 8)
    return DeviceTransfer(torch.device("cpu"))


@pytest.mark.parametrize("waiting", [0, 1 << 30])
@pytest.mark.parametrize("shape", [(1, 30, 30), (2, 3, 17, 23), (1, 2, 300)])
def test_everything_arrives(
    sent: DeviceTransfer, shape: tuple[int, ...], waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "WAITING", waiting)
    tensors = [torch.randn(shape) for _ in range(5)]
    into = [torch.zeros(shape) for _ in tensors]
    sent.send(tensors, into)
    sent.wait()
    for tensor, place in zip(tensors, into, strict=True):
        assert torch.equal(tensor, place)


def test_sources_behind_a_causal_target_may_be_left_out(sent: DeviceTransfer) -> None:
    first = 4  # columns of another sequence
    tensors = [torch.randn(1, 30, first + 30) for _ in range(3)]
    into = [torch.zeros(1, 30, first + 30) for _ in tensors]
    sent.send(tensors, into, first=first)
    sent.wait()
    for tensor, place in zip(tensors, into, strict=True):
        assert torch.equal(tensor.tril(first), place.tril(first))
        assert (place[0, :8, first + 8 :] == 0).all()

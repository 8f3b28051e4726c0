"""Results that wait on their device: whichever way they come home, they are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from one_case import in_one_case
from torch import Tensor

from normlens.trace.checks import Deferred

LAYERS = 3
#: By group and name: one layer's result (b, …), of two types.
RESULTS = {
    ("arrays", "a"): torch.arange(12.0).view(2, 2, 3),
    ("numbers", "b"): torch.arange(4).view(2, 2),
    ("numbers", "c"): torch.arange(2.0),
}


class Copies:
    """An outbox that sends numbers when it is waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[Tensor, Tensor]] = []

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        self.sent.append((tensor, into))

    def wait(self) -> None:
        for tensor, into in self.sent:
            into.copy_(tensor)
        self.sent.clear()


def added(transfer: Copies | None = None) -> Deferred:
    results = Deferred(transfer)  # type: ignore[arg-type]
    for layer in range(LAYERS):
        for key, tensor in RESULTS.items():
            results.add(key, tensor + 100 * layer)
    return results


def check(results: Deferred) -> None:
    arrived = results.arrived()
    assert set(arrived) == set(RESULTS)
    for key, tensor in RESULTS.items():
        expected = np.stack([tensor.numpy() + 100 * layer for layer in range(LAYERS)])
        np.testing.assert_array_equal(arrived[key], expected)
        assert arrived[key].dtype == expected.dtype
    assert set(results.arrived()) == set(RESULTS)


def as_they_are(results: Deferred) -> Deferred:
    return results


def in_two_pieces(results: Deferred) -> Deferred:
    """As numbers that filled the device's memory before the last layers had run."""
    pieces = Deferred()
    for key, tensors in results._waiting.items():
        pieces.add(key, tensors[0])
    pieces.arrived()
    for key, tensors in results._waiting.items():
        for tensor in tensors[1:]:
            pieces.add(key, tensor)
    return pieces


def settled(results: Deferred) -> Deferred:
    results.stack_pending()
    return results


def brought_home(results: Deferred) -> Deferred:
    results.stack_pending()
    results.to_host()
    return results


def replayed(results: Deferred) -> Deferred:
    """As the results of a recorded batch, which the next replay writes over."""
    recorded = brought_home(results)
    others = Deferred(None)
    others.replayed(recorded)
    others.take()
    for flat, _ in recorded._stacked:
        flat.zero_()
    return others


@in_one_case("way", [as_they_are, in_two_pieces, settled, brought_home, replayed])
def test_results_come_home(way: Callable[[Deferred], Deferred]) -> None:
    check(way(added()))


def test_results_are_sent_off_before_they_are_asked_for() -> None:
    transfer = Copies()
    results = settled(added(transfer))
    results.leave()
    assert len(transfer.sent) == 2  # one for each type
    transfer.wait()
    check(results)
    assert not transfer.sent

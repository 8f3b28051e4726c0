"""What an attribution costs: rows that pass the model's layers, forward and backward.

A row is one sequence. Passes are counted layer by layer, so that a method that runs single layers
again is charged for those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from normlens.trace.locking import Hooks

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Passes:
    """Passes of single texts through all layers."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)

    def per(self, texts: int) -> Passes:
        """The same for one of several texts that went together."""
        return Passes(self.forward / texts, self.backward / texts)


def no_passes(tokens: int) -> Passes:
    """None, whatever the number of a text's tokens."""
    return Passes()


def every_source(tokens: int) -> Passes:
    """A pass forward for each token, which is pushed through the frozen network alone."""
    return Passes(forward=float(tokens))


class Counter:
    """Counts while `counted` is open."""

    def __init__(self, layers: int):
        self._layers = layers
        self._forward = self._backward = 0

    @property
    def passes(self) -> Passes:
        """What has been counted so far."""
        return Passes(self._forward / self._layers, self._backward / self._layers)

    def watch(self, block: nn.Module, hooks: Hooks) -> None:
        """Count the rows of a block's calls."""

        def behind(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
            vectors: Tensor = output[0] if isinstance(output, (tuple, list)) else output
            rows = len(vectors)
            self._forward += rows
            if vectors.requires_grad:
                vectors.register_hook(lambda _: self._back(rows))

        hooks.behind(block, behind)

    def _back(self, rows: int) -> None:
        # Autograd calls it on a thread of its own.
        self._backward += rows


@contextmanager
def counted(lens: Lens) -> Iterator[Counter]:
    """Count the passes through the model that this thread causes while this is open."""
    blocks = list(lens.adapter.blocks())
    counter = Counter(len(blocks))
    with Hooks() as hooks:
        for block in {id(block): block for block in blocks}.values():
            counter.watch(block, hooks)
        yield counter

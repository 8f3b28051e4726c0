"""What a frozen step says of itself, and what it does with the state of a layer.

A step is affine for one input. It says how it acts on vectors (`linear`), on gradients (`adjoint`),
on scores (`score`), on parts (`on_parts`), on the model's own vectors (`apply`), and what it adds
that no token owns (`unowned`). Where it reads and where it writes is said once for all of these
(`pass_on`), and once for the way back (`backward`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.parts import Bias, Parts
from normlens.options import NOT_LINEAR

T = TypeVar("T")


@dataclass
class State(Generic[T]):
    """What passes a layer, at one point of it: vectors, gradients, parts or biases.

    They can be added; None is nothing.
    """

    stream: T
    saved: list[T] = field(default_factory=list)  # at branches, for the residuals to come
    start: T | None = None  # at the layer's input, which blocks beside the attention read
    others: dict[str, T] = field(default_factory=dict)  # of other sequences, by name

    @classmethod
    def at_input(cls, stream: T) -> State[T]:
        """The state before the first step."""
        return cls(stream, start=stream)

    def add(self, more: T | None) -> None:
        """Add to the stream."""
        here: Any = self.stream
        if more is not None:
            self.stream = more if here is None else here + more

    @property
    def arrived(self) -> T:
        """What has arrived at the layer's input on the way back."""
        here: Any = self.stream
        return here if self.start is None else here + self.start


# What one component does to a score: the result that every component's `score` returns.
#
# A score s is linear in the vectors behind a component. With ``g_i = ∂s/∂y_i`` there, the
# component's output adds ``g_i · y_i``: what its input vectors own, and what no token owns.


@dataclass(frozen=True)
class Scored:
    """One component's share of a score; `…` are scores side by side."""

    arriving: Tensor  # ∂s/∂(the component's input) (…, b, j, d)
    passed: Tensor | None = None  # (…, b, i), what its output owes to its input
    unowned: Tensor | None = None  # (…, b, i), what its output owes to biases
    heads: Tensor | None = None  # (…, b, h, i), `passed` by head
    at_heads: Tensor | None = None  # ∂s/∂(what each head reads) (…, b, h, i, d_head)


def inner(g: Tensor, vectors: Tensor | None) -> Tensor | None:
    """``g_i · v_i`` of vectors (…, b, i, d); None of none."""
    return None if vectors is None else (g * vectors).sum(-1)


class FrozenStep:
    """A step that reads the stream and replaces it; others override `pass_on` and `backward`."""

    def linear(self, v: Tensor) -> Tensor:
        """What the step makes of vectors (…, b, i, d), without any bias."""
        raise InputError(NOT_LINEAR)

    def adjoint(self, g: Tensor) -> Tensor:
        """The transpose of `linear`: the gradient at the input of g (…, b, i, d) at the output."""
        raise InputError(NOT_LINEAR)

    def gradient(self, g: Tensor) -> Scored:
        """The adjoint alone, for `backward`."""
        return Scored(self.adjoint(g))

    def score(self, g: Tensor) -> Scored:
        """The adjoint, and what the step adds to the score of g."""
        raise InputError(NOT_LINEAR)

    def from_token(self, first: int) -> FrozenStep:
        """The linear face for the tokens from `first` on."""
        raise InputError(NOT_LINEAR)

    @property
    def unowned(self) -> Tensor | None:
        """What the step adds that no token owns, (b, i, d) or (d,)."""
        return None

    def apply(self, y: Tensor) -> Tensor:
        """What the step makes of the model's own vectors (b, i, d), biases included."""
        raise NotImplementedError

    def on_parts(self, parts: Parts) -> Parts:
        """What the step makes of parts."""
        raise NotImplementedError

    def on_bias(self, bias: Bias | None) -> Bias | None:
        """The bias behind the step; None before tokens are mixed, when tokens own all biases."""
        raise NotImplementedError

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Read from the state, and write what `act`, one of the above, makes of it."""
        state.stream = act(state.stream)

    def forward(self, state: State[Tensor], biases: bool = False) -> None:
        """Pass vectors (…, b, i, d) on; with `biases`, add what no token owns."""
        self.pass_on(state, self.linear)
        if biases:
            state.add(self.unowned)

    def backward(self, state: State[Tensor], act: Callable[[Tensor], Scored]) -> Scored:
        """Hand a gradient back from what the step wrote to what it read.

        `act` is `gradient` or `score`.
        """
        scored = act(state.stream)
        state.stream = scored.arriving
        return scored


class FrozenBlock(FrozenStep):
    """A step with an output of its own, by which ways through a layer are told apart."""

    @property
    def output(self) -> Tensor:
        """The real output (b, i, d)."""
        raise NotImplementedError

    def apply(self, y: Tensor) -> Tensor:
        """The real output: the block is frozen at its input."""
        return self.output

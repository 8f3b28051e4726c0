"""Mixtures of experts as components: how transformers keeps experts, and how it calls them.

Experts lie in three-dimensional parameters, the first axis of which counts experts: one that gives
the gate and the values that it gates, and one behind them. They are called with the vectors of all
tokens, the experts of each token, and their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from torch import Tensor

from normlens.components import Experts, FeedForward, Linear
from normlens.models.reading import UnreadableModule, read_tensor

#: What transformers calls an expert that all tokens share.
SHARED = ("shared_expert", "shared_experts", "shared_mlp")


@dataclass(frozen=True)
class StackedExperts(Sequence[FeedForward]):
    """Gated experts in the parameters `gate_up_proj` and `down_proj` of one module.

    They are (expert, out, in), or (expert, in, out) if `transposed`. The gate's neurons come before
    those that it gates, or alternate with them.
    """

    module: Any
    activation: str
    transposed: bool = False
    alternating: bool = False
    limit: float | None = None

    def __len__(self) -> int:
        return len(self._read("down_proj"))

    @overload
    def __getitem__(self, expert: int) -> FeedForward: ...

    @overload
    def __getitem__(self, expert: slice) -> Sequence[FeedForward]: ...

    def __getitem__(self, expert: int | slice) -> FeedForward | Sequence[FeedForward]:
        if isinstance(expert, slice):
            return [self[place] for place in range(len(self))[expert]]
        both, down = self._linear("gate_up_proj", expert), self._linear("down_proj", expert)
        m = down.weight.shape[0]
        gate, up = slice(0, m), slice(m, 2 * m)
        if self.alternating:
            gate, up = slice(0, None, 2), slice(1, None, 2)
        return FeedForward(
            gate=_part(both, gate),
            up=_part(both, up),
            down=down,
            activation=self.activation,
            limit=self.limit,
        )

    def _linear(self, name: str, expert: int) -> Linear:
        weight = self._read(name)[expert]
        bias = read_tensor(self.module, f"{name}_bias")
        return Linear(
            weight if self.transposed else weight.T, None if bias is None else bias[expert]
        )

    def _read(self, name: str) -> Tensor:
        tensor = read_tensor(self.module, name)
        if tensor is None or tensor.dim() != 3:
            raise UnreadableModule(
                self.module,
                f"has no three-dimensional parameter `{name}` of all experts",
                "load the model without quantisation, in a version of transformers from 5 on",
            )
        return tensor


def routed(block: Any, members: Sequence[FeedForward], used: int, **also: Any) -> Experts:
    """The experts of a module `block`, which calls `block.experts` with their routing."""
    return Experts(
        members=members, used=used, router=block.experts, read=routing_of_call, module=block, **also
    )


def routing_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> tuple[Tensor, Tensor]:
    """Experts and weights (token, k) in a call of experts with (vectors, experts, weights)."""
    _, *given = (*args, *kwargs.values())
    experts, weights = sorted(given, key=lambda tensor: tensor.is_floating_point())
    if weights.shape[-1] != experts.shape[-1]:  # a column for every expert, used or not
        weights = weights.gather(-1, experts)
    return experts, weights


def _part(linear: Linear, columns: slice) -> Linear:
    bias = None if linear.bias is None else linear.bias[columns]
    return Linear(linear.weight[:, columns], bias)

"""One batch on its way through a model of one stack and back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from normlens.advancing import Progress
from normlens.decomposition.faces import Errors
from normlens.errors import UnsupportedModelError
from normlens.explain.network import FrozenNetwork
from normlens.explain.packing import Packed, pack
from normlens.explain.readings import Start
from normlens.explain.walk import Carried, Wanted, bring_home, carry, wait_for
from normlens.models.base import Adapter
from normlens.scopes import resolve_all
from normlens.text import Encoded
from normlens.tracing.model_inputs import model_inputs
from normlens.tracing.wide_copies import end_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens


class BatchRun(Protocol):
    """What answering questions about a batch needs of the model's stacks."""

    @property
    def read(self) -> FrozenNetwork:
        """The stack behind whose layers scores are read."""

    @property
    def tokens(self) -> int:
        """How many tokens the longest of the batch's texts has, of all sequences together."""

    @property
    def layer_names(self) -> list[str]:
        """How errors call the layers."""

    def inputs(self) -> dict[str, Tensor]:
        """What the model is called with."""

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Run the model once; return its output."""

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        """What the model, which has run, returns in float32 from the last layer's vectors on.

        Also an adapter of that copy, and how far frozen steps between stacks miss what it computes.
        """

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Carry the scores `starts`[t][b] back, and keep what is asked for on the way."""

    def wait(self) -> None:
        """Wait for what was carried last."""

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        """The numbers of score t of text b, which were carried last."""

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""


class OneStackRun:
    """A batch of sequences."""

    def __init__(self, lens: Lens, batch: Sequence[Encoded], rule: str, kept_bytes: int):
        if any(a.source is not None for layer in lens.layers for a in layer.attentions):
            raise UnsupportedModelError(
                f"the layers of {lens.name} read another sequence, whose tokens would own a part "
                "of the score, too; describe it as an encoder–decoder "
                "(normlens.models.two_stacks.TwoStacks)"
            )
        self.lens, self.batch = lens, batch
        lengths = [len(sequence) for sequence in batch]
        dtype = lens.compute_dtype
        self.read = FrozenNetwork(lens.adapter, lengths, rule, dtype, kept_bytes, guard=lens.guard)
        self.tokens = max(lengths)
        self.layer_names = [f"layer {index}" for index in range(lens.n_layers)]
        self.carried = Carried()

    def afresh(self) -> OneStackRun:
        """The same batch as the model has run it, with nothing carried back."""
        other = copy.copy(self)
        other.read, other.carried = replace(self.read, errors={}), Carried()
        return other

    def inputs(self) -> dict[str, Tensor]:
        return model_inputs(self.lens.adapter, self.batch, self.lens.device)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        return self.read.run(model, inputs)

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        return *end_in_float32(self.lens.adapter, model, inputs, self.read.returned), iter(())

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self.read.errors.clear()
        chosen = frozenset(resolve_all(scopes, self.lens.scopes))
        self.carried = carry(self.read, starts, Wanted(flow, heads, chosen), progress)
        bring_home(self.carried)

    def wait(self) -> None:
        wait_for(self.lens.device)

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        return pack(self.carried, t, b, self.read.lengths[b], began, value)

    def check(self, dtype: torch.dtype) -> None:
        self.read.check(dtype)

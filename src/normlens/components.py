"""The components of a Transformer layer: the vocabulary that the rest of the package shares.

Axis words, the same everywhere:

    batch b · layer · head h · target i (output, row) · source j (input, column)
    d_model d · d_head · d_ff m

Vectors are rows, as in the papers: ``y = x W + b`` with ``W`` of shape (in, out).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from normlens.feed_forward import Experts, FeedForward, Routing
from normlens.linear_map import Linear, Projection, cast
from normlens.reach import Reach
from normlens.scopes import WEIGHT_SCOPES
from normlens.steps import Attention, Branch, Latent, Norm, ParallelFeedForward, Residual

__all__ = [
    "Attention",
    "Branch",
    "Experts",
    "FeedForward",
    "Latent",
    "Layer",
    "Linear",
    "Norm",
    "ParallelFeedForward",
    "Projection",
    "Reach",
    "Residual",
    "Routing",
    "Step",
    "cast",
]


Step = (
    Branch | Residual | Norm | Projection | Attention | FeedForward | Experts | ParallelFeedForward
)


class Layer:
    """One layer: its steps in the order in which the model runs them."""

    def __init__(self, steps: Sequence[Step], reach: Reach = Reach()):
        self.steps = tuple(steps)
        self.reach = reach
        kinds = [type(step) for step in self.steps]
        blocks = [index for index, kind in enumerate(kinds) if kind in (FeedForward, Experts)]
        if Attention not in kinds:
            raise ValueError("a layer has an Attention")
        last_attention = len(kinds) - 1 - kinds[::-1].index(Attention)
        if blocks and blocks[0] < last_attention:
            raise ValueError("a feed-forward block before an attention is not supported")
        if self.by_source and (len(self.attentions) > 1 or Experts in kinds):
            raise ValueError(
                "a layer with several FeedForward steps, or a Projection behind its Attention, has "
                "one Attention and no Experts"
            )
        if any(isinstance(s, Branch) and s.through for s in self.steps[last_attention:]):
            raise ValueError("a Branch has steps of its own only before the Attention")
        self_attentions = [step for step in self.attentions if step.source is None]
        if len(self_attentions) > 1:
            raise ValueError("a layer has one Attention over its own tokens")
        if kinds.count(Branch) != kinds.count(Residual):
            raise ValueError("a layer needs one Branch for each Residual")

    def to(self, dtype: torch.dtype, split: bool = False) -> Layer:
        """The same layer with all weights in `dtype` (the same tensors where they are already).

        With `split`, matrices stay as they are where products with them are split.
        """
        return Layer([cast(step, dtype, split) for step in self.steps], self.reach)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Every attention, in order."""
        return tuple(step for step in self.steps if isinstance(step, Attention))

    @property
    def attention(self) -> Attention:
        """The first attention."""
        return self.attentions[0]

    @property
    def feed_forward(self) -> FeedForward | Experts | None:
        """The first feed-forward block behind the attention, if there is one."""
        return next((step for step in self.steps if isinstance(step, (FeedForward, Experts))), None)

    @property
    def by_source(self) -> bool:
        """Whether parts behind the feed-forward block are followed as vectors, source by source.

        They are where more follows than tiles and kernels know: a second block, or a projection.
        """
        blocks = sum(isinstance(step, (FeedForward, Experts)) for step in self._behind)
        return blocks > 1 or any(isinstance(step, Projection) for step in self._behind)

    @property
    def _behind(self) -> tuple[Step, ...]:
        """The first attention, and every step behind it."""
        return self.steps[self.steps.index(self.attention) :]

    @property
    def d_model(self) -> int:
        """The size of the vectors behind the layer."""
        last = [
            self.attention.output,
            *(s.linear for s in self._behind if isinstance(s, Projection)),
        ]
        return last[-1].weight.shape[1]

    @property
    def width(self) -> int:
        """The size of the widest vectors on the way through the layer."""
        sizes = [max(linear.weight.shape) for linear in self.projections]
        return max(self.attention.output.weight.shape[1], *sizes, 0)

    @property
    def projections(self) -> list[Linear]:
        """The linear maps of every projection, those of branches included."""
        steps = [
            each for s in self.steps for each in (s.through if isinstance(s, Branch) else (s,))
        ]
        return [step.linear for step in steps if isinstance(step, Projection)]

    @property
    def experts(self) -> Experts | None:
        """The feed-forward block, if it is a mixture of experts."""
        block = self.feed_forward
        return block if isinstance(block, Experts) else None

    def routed(self, routing: Routing) -> Layer:
        """The same layer with the routing of one run."""
        steps = [
            replace(step, routing=routing) if isinstance(step, Experts) else step
            for step in self.steps
        ]
        return Layer(steps, self.reach)

    @property
    def norm_behind_feed_forward(self) -> Norm | None:
        """The first norm behind the feed-forward block, if there is one."""
        block = self.feed_forward
        behind = () if block is None else self.steps[self.steps.index(block) :]
        return next((step for step in behind if isinstance(step, Norm)), None)

    @property
    def linear_maps(self) -> list[Linear]:
        """Every linear map of the layer, in the order of its steps."""
        maps: list[Linear | None] = []
        for step in self.steps:
            if isinstance(step, Attention):
                latent = [] if step.latent is None else [step.latent.down]
                maps += [*latent, step.value, step.output]
                continue
            beside = step.through if isinstance(step, Branch) else (step,)
            maps += [each.linear for each in beside if isinstance(each, Projection)]
            blocks: tuple[FeedForward, ...] = ()
            if isinstance(step, FeedForward):
                blocks = (step,)
            elif isinstance(step, ParallelFeedForward):
                blocks = (step.feed_forward,)
            elif isinstance(step, Experts):
                blocks = step.examples
            for block in blocks:
                maps += [block.gate, block.up, block.down]
        return [linear for linear in maps if linear is not None]

    @cached_property
    def scope_of_step(self) -> dict[int, str]:
        """The scope that ends with each step: the concatenated components from ATTN on."""
        names: dict[int, str] = {}
        prefix = ""
        for index, step in enumerate(self.steps):
            if isinstance(step, Branch) or (not prefix and not isinstance(step, Attention)):
                continue
            prefix += step.symbol
            names[index] = f"{prefix}-N"
        return names

    @cached_property
    def step_names(self) -> dict[int, str]:
        """A name for each component, no two alike; before the attention they are bracketed."""
        kinds = {
            index: (step.symbol, index in self.scope_of_step)
            for index, step in enumerate(self.steps)
            if not isinstance(step, Branch)
        }
        every, seen = list(kinds.values()), list[tuple[str, bool]]()
        names: dict[int, str] = {}
        for index, kind in kinds.items():
            seen.append(kind)
            name = kind[0] + (str(seen.count(kind)) if every.count(kind) > 1 else "")
            names[index] = name if kind[1] else f"({name})"
        return names

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of this layer: those of weights alone, then one per prefix."""
        cross = any(attention.source is not None for attention in self.attentions)
        weights = WEIGHT_SCOPES if cross else WEIGHT_SCOPES[:2]
        return (*weights, *self.scope_of_step.values())

    @property
    def component_sequence(self) -> str:
        """The components in order, as text; those before the attention are in brackets."""
        words: list[str] = []
        for step in self.steps:
            if isinstance(step, Branch):
                continue
            before_attention = isinstance(step, (Norm, Projection)) and "ATTN" not in words
            if isinstance(step, ParallelFeedForward):
                words.append("∥ FF" if step.norm is None else "∥ (LN) FF")
            else:
                words.append(f"({step.symbol})" if before_attention else step.symbol)
        return " ".join(words)

"""The vocabulary of a Transformer layer: attention, norms, feed-forward blocks, residuals, heads.

A family describes each of its layers with these components, in the order in which the model runs
them; everything else reads that description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normlens.gpu.matmul import LazyTensor, formed, splits, times, times_plus
from normlens.scopes import OWN_SCOPES, WEIGHT_SCOPES

# A linear map of a model, and where the model computes it.
#
# Vectors are rows, as in the papers: ``y = x W + b`` with ``W`` of shape (in, out).


C = TypeVar("C")


def cast(component: C, dtype: torch.dtype, split: bool = False) -> C:
    """The same component with its tensors converted to `dtype`, those formed that are late.

    With `split`, matrices stay as they are where products with them are split (`gpu.matmul`).
    A component with a method `to` converts itself.
    """
    if isinstance(component, Linear) and component.is_scaled:
        return component.folded(dtype)  # type: ignore[return-value]
    if hasattr(component, "to"):
        return component.to(dtype, split)
    changes: dict[str, Any] = {}
    for entry in fields(component):  # type: ignore[arg-type]
        value = getattr(component, entry.name)
        if isinstance(value, Tensor):
            value = formed(value) if isinstance(value, LazyTensor) else value
            stays = split and value.dim() == 2 and splits(value)
            changes[entry.name] = value.detach() if stays else value.detach().to(dtype)
        elif is_dataclass(value):
            changes[entry.name] = cast(value, dtype, split)
        elif isinstance(value, tuple):
            changes[entry.name] = tuple(map(partial(cast, dtype=dtype, split=split), value))
    return replace(component, **changes)  # type: ignore[type-var]


#: Selects all of a module's output.
WHOLE = nn.Identity()


@dataclass(frozen=True, eq=False)
class Linear:
    """``x ↦ x W + b``."""

    weight: Tensor  # (in, out)
    bias: Tensor | None = None  # (out,)
    module: nn.Module | None = None  # where the model computes it
    part: Callable[[Tensor], Tensor] = WHOLE  # selects this map's share of the module's output
    bias_outside: bool = False  # the model adds the bias to what the module returns
    scale: float | Tensor = 1.0  # what the model multiplies x W + b by; a number or (out,)

    @property
    def is_scaled(self) -> bool:
        return isinstance(self.scale, Tensor) or self.scale != 1.0

    def folded(self, dtype: torch.dtype) -> Linear:
        """The same map in `dtype` with its scale inside the weight and the bias.

        Only here is a copy made, and of one layer at a time; in half precision the products of the
        model's own weights would be rounded.
        """
        scale = self.scale.detach().to(dtype) if isinstance(self.scale, Tensor) else self.scale
        weight = self.weight.detach().to(dtype) * scale
        bias = None if self.bias is None else self.bias.detach().to(dtype) * scale
        whole = replace(self, scale=1.0)
        return replace(whole, weight=weight, bias=bias, part=lambda y: whole.part(y) * scale)

    def __call__(self, x: Tensor) -> Tensor:
        w, b = self.weight, self.bias
        y = times(x, w) if b is None else times_plus(x, w, b)
        return y * self.scale if self.is_scaled else y


@dataclass(frozen=True, eq=False)
class Projection:
    """``y ↦ y W + b`` on the way of all parts: into a narrower bottleneck, or out of it."""

    linear: Linear

    symbol = "PROJ"

    @property
    def module(self) -> nn.Module | None:
        return self.linear.module


# Which sources a target may see.


@dataclass(frozen=True)
class Reach:
    """The sources that a target sees: ``i − back ≤ j ≤ i + ahead``; None: no limit."""

    back: int | None = None
    ahead: int | None = None

    @property
    def integers(self) -> tuple[int, int]:
        """How many tokens back and ahead a target sees, for kernels: no limit is a large number."""
        far = 1 << 29
        return far if self.back is None else self.back, far if self.ahead is None else self.ahead

    @property
    def in_words(self) -> str:
        """What errors say of it."""
        back, ahead = ("all" if side is None else side for side in (self.back, self.ahead))
        return f"{back} earlier and {ahead} later tokens"

    def mask(self, n: int, device: torch.device | None = None) -> Tensor:
        """Which (target, source) pairs attention allows, as (n, n) booleans."""
        allowed = torch.ones(n, n, dtype=torch.bool, device=device)
        if self.ahead is not None:
            allowed = allowed.tril(self.ahead)
        return allowed if self.back is None else allowed.triu(-self.back)

    def pairs(self, n: int) -> int:
        """How many pairs the mask allows."""
        pairs = n
        for reach in (self.back, self.ahead):
            far = n - 1 if reach is None else min(reach, n - 1)
            pairs += far * n - far * (far + 1) // 2
        return pairs

    def then(self, other: Reach) -> Reach:
        """How far a target sees through this reach and another one behind it."""
        back = None if self.back is None or other.back is None else self.back + other.back
        ahead = None if self.ahead is None or other.ahead is None else self.ahead + other.ahead
        return Reach(back, ahead)

    def sources(self, first: int, last: int, n: int) -> tuple[int, int]:
        """The half-open range of sources that any target in [first, last) may see."""
        start = 0 if self.back is None else max(0, first - self.back)
        stop = n if self.ahead is None else min(n, last + self.ahead)
        return start, stop


# Feed-forward blocks: one that all tokens use, and a mixture of which each token uses some.


@dataclass(frozen=True, eq=False)
class FeedForward:
    """``g(y W_up) W_down``, or gated ``(g(y W_gate) ⊙ y W_up) W_down``."""

    up: Linear  # (d, m)
    down: Linear  # (m, d)
    activation: str
    gate: Linear | None = None  # (d, m)
    module: nn.Module | None = None  # returns the block's output vector
    #: gpt-oss limits both arguments: ``g(min(a, L)) ⊙ (clip(u, −L, L) + 1)``
    limit: float | None = None

    symbol = "FF"

    @property
    def inputs(self) -> tuple[Linear, ...]:
        """The input projections: up, or gate and up."""
        return (self.up,) if self.gate is None else (self.gate, self.up)


@dataclass(frozen=True, eq=False)
class Routing:
    """The experts that each token used in one run, and the weights that they had."""

    experts: Tensor  # (b, i, k), numbers of experts
    weights: Tensor  # (b, i, k)
    shared: Tensor | None = None  # (b, i), the weight of the shared expert; None: 1


@dataclass(frozen=True, eq=False)
class Experts:
    """``Σ_e w_ie FF_e(y_i)`` over the experts that token i used, and one that all tokens use.

    Which experts those are is decided while the model runs, and read there.
    """

    members: Sequence[FeedForward]  # of equal sizes
    used: int  # experts of one token
    router: nn.Module  # the module at whose call the routing can be read
    #: what a call of `router` (arguments, keywords, output) says: experts and weights, (token, k)
    read: Callable[[tuple[Any, ...], dict[str, Any], Any], tuple[Tensor, Tensor]]
    module: nn.Module | None = None  # returns the block's output vector
    shared: FeedForward | None = None
    shared_gate: nn.Module | None = None  # σ of its output is the weight of `shared`; None: 1
    weighs_input: bool = False  # w multiplies what an expert reads, not what it returns
    scale: float = 1.0  # what the model multiplies the whole output by
    routing: Routing | None = None  # of one run
    precision: tuple[torch.dtype, bool] | None = None  # of `member`, as `cast` takes it

    symbol = "FF"

    def __post_init__(self) -> None:
        if self.weighs_input and self.scale != 1:
            raise ValueError("experts whose input is weighed have no factor behind them")

    def to(self, dtype: torch.dtype, split: bool) -> Experts:
        """The same block in `dtype`, to which experts are converted one at a time, when asked for.

        A copy of all of a layer's experts could be larger than the rest of the model.
        """
        return replace(self, precision=(dtype, split))

    def member(self, expert: int | None) -> FeedForward:
        """One expert in the block's precision; None is the shared one."""
        block = self.shared if expert is None else self.members[expert]
        assert block is not None
        return block if self.precision is None else cast(block, *self.precision)

    @property
    def examples(self) -> tuple[FeedForward, ...]:
        """One of the experts, which are all alike, and the shared one."""
        return (self.members[0],) if self.shared is None else (self.members[0], self.shared)

    @property
    def active(self) -> int:
        """The neurons that a token uses, in all of its experts."""
        shared = 0 if self.shared is None else self.shared.up.weight.shape[1]
        return self.used * self.members[0].up.weight.shape[1] + shared

    @property
    def widest(self) -> int:
        """The neurons of the largest expert."""
        return max(block.up.weight.shape[1] for block in self.examples)


# The steps of a layer that are no feed-forward block of their own: what each of them holds.


@dataclass(frozen=True, eq=False)
class Branch:
    """The point whose parts a residual connection adds back, behind the steps in `through`."""

    through: tuple[Projection | Norm, ...] = ()  # only before the attention

    symbol = ""


@dataclass(frozen=True, eq=False)
class Residual:
    """``y ↦ y + (y at the last branch)``."""

    symbol = "RES"


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm (``centred``) or RMSNorm, ``(y − mean) / σ ⊙ γ + β``.

    Without an ε there is no σ: ``y ⊙ γ + β``, which MobileBERT has in the place of its norms.
    """

    gamma: Tensor | None  # (d,)
    beta: Tensor | None  # (d,)
    eps: float | None
    centred: bool
    module: nn.Module | None = None  # where the model computes it

    symbol = "LN"


@dataclass(frozen=True, eq=False)
class Latent:
    """The compressed vector ``norm(x W + b)`` that latent attention projects its values from."""

    down: Linear  # (d, rank)
    norm: Norm


@dataclass(frozen=True, eq=False)
class Attention:
    """Multi-head attention; head h reads the value group ``h // (heads // groups)``."""

    value: Linear  # (d, groups · d_head), or (rank, groups · d_head) behind `latent`
    output: Linear  # (heads · d_head, d)
    heads: int
    groups: int
    weights: nn.Module | None = None  # returns α, alone or beside other outputs
    module: nn.Module | None = None  # returns the attention's output vector
    source: str | None = None  # another sequence that it reads; None: the layer's tokens
    weights_at: int = 1  # the place of α among several outputs of `weights`
    latent: Latent | None = None  # what the value projection reads, if it is not the input itself
    sinks: bool = False  # rows of α may sum to less than 1; the rest belongs to no token

    @property
    def symbol(self) -> str:
        return "ATTN" if self.source is None else "CROSS"


@dataclass(frozen=True, eq=False)
class ParallelFeedForward:
    """A feed-forward block beside the attention: it reads the layer's input token by token."""

    feed_forward: FeedForward
    norm: Norm | None = None

    symbol = "FF"

    @property
    def module(self) -> nn.Module | None:
        return self.feed_forward.module


# The components of a Transformer layer: the vocabulary that the rest of the package shares.
#
# Axis words, the same everywhere:
#
#     batch b · layer · head h · target i (output, row) · source j (input, column)
#     d_model d · d_head · d_ff m
#
# Vectors are rows, as in the papers: ``y = x W + b`` with ``W`` of shape (in, out).


Step = (
    Branch | Residual | Norm | Projection | Attention | FeedForward | Experts | ParallelFeedForward
)


def blocks_of(step: Step) -> tuple[FeedForward, ...]:
    """The feed-forward blocks of a step: its own, or those that stand for its experts."""
    if isinstance(step, Experts):
        return step.examples
    if isinstance(step, ParallelFeedForward):
        return (step.feed_forward,)
    return (step,) if isinstance(step, FeedForward) else ()


class Layer:
    """One layer: its steps in the order in which the model runs them."""

    def __init__(self, steps: Sequence[Step], reach: Reach = Reach()):
        self.steps, self.reach = tuple(steps), reach
        attentions: list[Attention] = []
        #: Names of the other sequences that attentions read.
        self.others: list[str] = []
        blocks: list[FeedForward | Experts] = []
        before: list[Linear] = []  # of projections: before the attention, and behind it
        behind: list[Linear] = []
        open_branches = 0
        for step in self.steps:
            open_branches += isinstance(step, Branch) - isinstance(step, Residual)
            if isinstance(step, Attention):
                attentions.append(step)
                self.others += [] if step.source is None else [step.source]
                if blocks:
                    raise ValueError("a feed-forward block before an attention is not supported")
            elif isinstance(step, (FeedForward, Experts)):
                blocks.append(step)
            elif isinstance(step, Projection):
                (behind if attentions else before).append(step.linear)
            elif isinstance(step, Branch):
                if step.through and attentions:
                    raise ValueError("a Branch has steps of its own only before the Attention")
                for each in step.through:
                    before += [each.linear] if isinstance(each, Projection) else []
        if open_branches != 0:
            raise ValueError("a layer needs one Branch for each Residual")
        if not attentions:
            raise ValueError("a layer has an Attention")
        if len(attentions) - len(self.others) > 1:
            raise ValueError("a layer has one Attention over its own tokens")
        #: Every attention, in order, and the first of them.
        self.attentions, self.attention = tuple(attentions), attentions[0]
        #: The first feed-forward block behind the attention, if there is one, and as experts.
        self.feed_forward = blocks[0] if blocks else None
        self.experts = self.feed_forward if isinstance(self.feed_forward, Experts) else None
        #: Whether parts behind the feed-forward block are followed as vectors, source by source.
        #: They are where more follows than tiles and kernels know: a second block, or a projection.
        self.by_source = len(blocks) > 1 or bool(behind)
        if self.by_source and (len(attentions) > 1 or self.experts is not None):
            raise ValueError(
                "a layer with several FeedForward steps, or a Projection behind its Attention, has "
                "one Attention and no Experts"
            )
        #: The size of the vectors behind the layer, and of the widest on the way through it.
        self.d_model = (behind or [self.attention.output])[-1].weight.shape[1]
        self.width = self.attention.output.weight.shape[1]
        for linear in before + behind:
            self.width = max(self.width, *linear.weight.shape)

    def to(self, dtype: torch.dtype, split: bool = False) -> Layer:
        """The same layer with all weights in `dtype` (the same tensors where they are already).

        With `split`, matrices stay as they are where products with them are split.
        """
        steps = map(partial(cast, dtype=dtype, split=split), self.steps)
        return Layer(tuple(steps), self.reach)

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

    @cached_property
    def linear_maps(self) -> list[Linear]:
        """Every linear map of the layer, in the order of its steps."""
        maps: list[Linear | None] = []
        for step in self.steps:
            if isinstance(step, Attention):
                latent = None if step.latent is None else step.latent.down
                maps += [latent, step.value, step.output]
            for each in step.through if isinstance(step, Branch) else (step,):
                if isinstance(each, Projection):
                    maps.append(each.linear)
            for block in blocks_of(step):
                maps += [block.gate, block.up, block.down]
        return list(filter(None, maps))

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

    @cached_property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of this layer: those of weights alone, then one per prefix."""
        weights = WEIGHT_SCOPES if self.others else WEIGHT_SCOPES[:2]
        return (*weights, *self.scope_of_step.values())

    def kept_steps(self, scope: str) -> list[int]:
        """The steps that a scope of a user's own keeps; none where the layer does not have them."""
        places: dict[str, int] = {}
        for index, name in self.step_names.items():
            places |= {name: index, f"{name}1": index} if index in self.scope_of_step else {}
        kept = [places.get(component, -1) for component in OWN_SCOPES.get(scope, ())]
        return kept if -1 not in kept and kept == sorted(kept) else []

    @property
    def own_scopes(self) -> list[str]:
        """The scopes of users' own that this layer has."""
        return list(filter(self.kept_steps, OWN_SCOPES))

    @property
    def component_sequence(self) -> str:
        """The components in order, as text; those before the attention are in brackets."""
        words: list[str] = []
        for index, step in enumerate(self.steps):
            if isinstance(step, ParallelFeedForward):
                words.append("∥ FF" if step.norm is None else "∥ (LN) FF")
            elif not isinstance(step, Branch):
                words.append(step.symbol if index in self.scope_of_step else f"({step.symbol})")
        return " ".join(words)


# What stands behind a model's last layer: heads, written with components as layers are.
#
# A head takes the vectors behind the last layer and reads scores from them: logits of words or of
# classes. An adapter describes it (`Adapter.head`); sentence encoders have one without an output.


#: What a head's scores are about.
CAUSAL = "causal language model"
MASKED = "masked language model"
GENERATOR = "generating encoder–decoder"
SEQUENCES = "sequence classifier"
TOKENS = "token classifier"
IMAGES = "picture classifier"
SENTENCES = "sentence encoder"
#: Heads whose scores are about tokens of a vocabulary.
OF_TOKENS = (CAUSAL, MASKED, GENERATOR)
#: Heads whose scores are about classes.
OF_CLASSES = (SEQUENCES, TOKENS, IMAGES)

#: Which of the last vectors a head reads: any one, the first, the last real one, or their mean.
ANY, FIRST, LAST, MEAN = "any", "first", "last", "mean"
#: Of a picture also: the patches' mean; the first vector and that mean, or the first two vectors,
#: one behind the other.
PATCHES, FIRST_AND_PATCHES, FIRST_TWO = "patches", "first and patches", "first two"


@dataclass(frozen=True, eq=False)
class Dense:
    """``y ↦ y W + b``."""

    linear: Linear

    symbol = "DENSE"


@dataclass(frozen=True, eq=False)
class Elementwise:
    """``y ↦ g(y)``, an activation by its name."""

    activation: str

    symbol = "ACT"


HeadStep = Norm | Dense | Elementwise


@dataclass(frozen=True, eq=False)
class Head:
    """From the vectors behind the last layer to scores.

    `body` steps act on every vector; then those are read that `reads` names; `steps` act on what
    was read, and each column of `output` is one score.
    """

    task: str
    reads: str
    body: tuple[HeadStep, ...] = ()  # the body's own end, such as a final norm
    steps: tuple[HeadStep, ...] = ()
    output: Linear | None = None  # (d, words or classes); None: the vector itself is the result
    soft_cap: float | None = None  # scores are c · tanh(score / c)
    labels: Mapping[int, str] = field(default_factory=dict)  # names of classes
    exclusive: bool = True  # one class excludes the others, so scores have probabilities
    note: str | None = None  # what a user should know about it
    prefix: int = 0  # how many tokens stand before the patches of a picture

    def pools(self, position: int | None, n: int) -> list[slice]:
        """The groups of n vectors whose means are read, one behind the other."""
        if position is not None:
            return [slice(position, position + 1)]
        first, patches = slice(0, 1), slice(self.prefix, n)
        return {
            MEAN: [slice(0, n)],
            FIRST: [first],
            LAST: [slice(n - 1, n)],
            PATCHES: [patches],
            FIRST_AND_PATCHES: [first, patches],
            FIRST_TWO: [first, slice(1, 2)],
        }[self.reads]

    def to(self, dtype: torch.dtype) -> Head:
        """The same head with the weights of its steps in `dtype`.

        The output stays as it is: only the columns that are asked for are ever converted.
        """
        return replace(
            self,
            body=tuple(cast(step, dtype) for step in self.body),
            steps=tuple(cast(step, dtype) for step in self.steps),
        )

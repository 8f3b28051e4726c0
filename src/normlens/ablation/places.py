"""Where each component of a layer can be read and replaced while the model runs.

A block's output is what its residual connection adds: the output of its last linear map, or of the
norm behind it where one stands before the residual connection (Gemma 2 and 3, OLMo 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from normlens.ablation.kinds import LAYER, PARALLEL_NORM
from normlens.layers import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Residual,
    Step,
)

INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True)
class Place:
    """The input or the output of a module, which runs once in the layer."""

    module: nn.Module | None  # None: the layer's block itself
    event: str


@dataclass(frozen=True)
class VectorPlace:
    """A block, or the whole layer: its output."""

    output: Place


@dataclass(frozen=True)
class NormPlace:
    """A norm of the layer."""

    norm: Norm
    module: nn.Module
    behind_feed_forward: bool


@dataclass(frozen=True)
class ResidualPlace:
    """A residual connection: ``sum = terms + branch``, and where the model reads that sum."""

    terms: tuple[Place, ...]
    branch: Place
    readers: tuple[Place, ...]
    #: What the next residual connection adds to the sum; it ends the layer. None: it does not
    #: branch off there.
    later: tuple[Place, ...] | None


ComponentPlace = VectorPlace | NormPlace | ResidualPlace


class NoPlace(Exception):
    """A component that cannot be replaced exactly, and why."""


def component_places(layer: Layer) -> dict[str, ComponentPlace | NoPlace]:
    """Every component of a layer by its name: where it is, or why it cannot be replaced."""
    places: dict[str, ComponentPlace | NoPlace] = {}
    if layer.by_source:
        several = NoPlace("its layers have several feed-forward blocks, or a bottleneck")
        return dict.fromkeys([*(name for name, _ in _named(layer)), LAYER], several)
    for name, index in _named(layer):
        if name in places:
            places[name] = NoPlace(f"a layer has several {name}")
            continue
        try:
            places[name] = _place(layer, index, name)
        except NoPlace as reason:
            places[name] = reason
    places[LAYER] = VectorPlace(Place(None, OUTPUT))
    return places


def _named(layer: Layer) -> Iterator[tuple[str, int]]:
    for index, name in layer.step_names.items():
        yield name, index
        step = layer.steps[index]
        if isinstance(step, ParallelFeedForward) and _norm_of_its_own(layer, step):
            yield PARALLEL_NORM, index


def _norm_of_its_own(layer: Layer, step: ParallelFeedForward) -> bool:
    """Whether a parallel block has a norm that is not the attention's, too."""
    shared = [other.module for other in layer.steps if isinstance(other, Norm)]
    return step.norm is not None and step.norm.module not in shared


def _place(layer: Layer, index: int, name: str) -> ComponentPlace:
    step = layer.steps[index]
    if isinstance(step, ParallelFeedForward) and name == PARALLEL_NORM:
        assert step.norm is not None
        return NormPlace(step.norm, _module(step.norm.module, name), False)
    if isinstance(step, Norm):
        behind = step is layer.norm_behind_feed_forward
        return NormPlace(step, _module(step.module, name), behind)
    if isinstance(step, Residual):
        return _residual(layer, index)
    if isinstance(step, (Attention, FeedForward, Experts, ParallelFeedForward)):
        return VectorPlace(_output(layer, index))
    raise NoPlace(f"{name} is a step of an unknown kind, {type(step).__name__}")


def _output(layer: Layer, index: int) -> Place:
    """What a block adds to the residual stream."""
    step = layer.steps[index]
    assert isinstance(step, (Attention, FeedForward, Experts, ParallelFeedForward))
    module, name = step.module, layer.step_names[index]
    for place in range(index + 1, len(layer.steps)):
        following = layer.steps[place]
        if isinstance(following, (Residual, ParallelFeedForward)):
            break
        if not isinstance(following, Norm):
            raise NoPlace(f"between {name} and its residual connection is a {_kind(following)}")
        module, name = following.module, layer.step_names[place]
    return Place(_module(module, name), OUTPUT)


def _residual(layer: Layer, index: int) -> ResidualPlace:
    start = _branch_of(layer, index)
    terms = _terms(layer, index)
    branch = _value_at(layer, start)
    following = layer.steps[index + 1 :]
    if not following:
        return ResidualPlace(terms, branch, (Place(None, OUTPUT),), None)
    if isinstance(following[0], Norm):
        return ResidualPlace(terms, branch, _readers(layer, index + 1), None)
    if isinstance(following[0], Branch):
        last = len(layer.steps) - 1
        if not isinstance(layer.steps[last], Residual) or _branch_of(layer, last) != index + 1:
            raise NoPlace("its sum passes through more than one residual connection")
        return ResidualPlace(terms, branch, _readers(layer, index + 2), _terms(layer, last))
    raise NoPlace(f"behind it is a {_kind(following[0])}")


def _branch_of(layer: Layer, residual: int) -> int:
    """The index of the branch that a residual connection adds: the last one before it."""
    before = [i for i in range(residual) if isinstance(layer.steps[i], Branch)]
    if not before or any(isinstance(step, Residual) for step in layer.steps[before[-1] : residual]):
        raise NoPlace("it adds what branched off before another residual connection")
    return before[-1]


def _terms(layer: Layer, residual: int) -> tuple[Place, ...]:
    """The outputs of the blocks between a branch and its residual connection."""
    between = range(_branch_of(layer, residual), residual)
    blocks = (Attention, FeedForward, Experts, ParallelFeedForward)
    chosen = [i for i in between if isinstance(layer.steps[i], blocks)]
    if any(_is_scaled(layer.steps[i]) for i in chosen):
        raise NoPlace("the model multiplies what its blocks add by a factor")
    return tuple(_output(layer, i) for i in chosen)


def _is_scaled(step: Step) -> bool:
    """Whether the model multiplies what a block's module returns by a factor."""
    if isinstance(step, Experts):
        return step.scale != 1
    if isinstance(step, Attention):
        return step.output.is_scaled
    block = step.feed_forward if isinstance(step, ParallelFeedForward) else step
    assert isinstance(block, FeedForward)
    return block.down.is_scaled


def _value_at(layer: Layer, branch: int) -> Place:
    """Where the vector at a branch can be read."""
    if branch == 0:
        return Place(None, INPUT)
    before = layer.steps[branch - 1]
    if isinstance(before, Norm):
        return Place(_module(before.module, "the norm before its branch"), OUTPUT)
    return _readers(layer, branch + 1)[0]


def _readers(layer: Layer, index: int) -> tuple[Place, ...]:
    """Where a step reads its input; a gated block reads it twice."""
    step = layer.steps[index]
    if isinstance(step, Norm):
        return (Place(_module(step.module, layer.step_names[index]), INPUT),)
    if isinstance(step, FeedForward):
        maps = [linear for linear in (step.gate, step.up) if linear is not None]
        modules = dict.fromkeys(_module(linear.module, "FF") for linear in maps)
        return tuple(Place(module, INPUT) for module in modules)
    if isinstance(step, Experts):
        return (Place(_module(step.module, "FF"), INPUT),)
    raise NoPlace(f"the input of a {_kind(step)} cannot be replaced")


def _module(module: nn.Module | None, name: str) -> nn.Module:
    if module is None:
        raise NoPlace(f"the adapter does not say which module computes {name}")
    return module


def _kind(step: Step) -> str:
    return step.symbol or type(step).__name__

"""Where each component of a layer can be read and replaced while the model runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
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
from normlens.models.base import Adapter
from normlens.studies.ablation.options import LAYER, PARALLEL_NORM
from normlens.trace.locking import Change, Hooks, other_forwards

# Seeded draws that depend on what they are for, and on nothing else.


def draws(count: int, *purpose: object) -> NDArray[np.uint64]:
    """The first `count` numbers of the random stream of this purpose.

    NumPy promises the raw stream of a bit generator for good. A longer draw begins with the shorter
    one, so the number at a position does not depend on a sequence's padding.
    """
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    generator = np.random.PCG64(int.from_bytes(digest, "big"))
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def chosen(count: int, pool: int, *purpose: object) -> NDArray[np.intp]:
    """`count` different numbers below `pool`, in ascending order."""
    return np.sort(np.argsort(draws(pool, *purpose), kind="stable")[:count])


# Where each component of a layer can be read and replaced while the model runs.
#
# A block's output is what its residual connection adds: the output of its last linear map, or of
# the norm behind it where one stands before the residual connection (Gemma 2 and 3, OLMo 2).


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


# Reading and replacing vectors at places of chosen layers while the model runs.
#
# Blocks are counted as they are called, because a family may run one block several times
# (ALBERT). A block before a given layer can be passed by: it then returns what it returned
# before.


#: Called with the vectors at a place (b, i, d); returns others to put there, or None.
Visitor = Callable[[Tensor], Tensor | None]


class LayerHooks:
    """Visitors at places of a model's layers, for the calls of one thread."""

    def __init__(self, adapter: Adapter):
        self._adapter = adapter
        self._blocks: Sequence[nn.Module] = list(adapter.blocks())
        self._visitors: dict[tuple[nn.Module, str], dict[int, list[Visitor]]] = {}
        self._expected: dict[int, set[tuple[nn.Module, str]]] = {}
        self._keeping: dict[int, dict[int, Any]] = {}
        self._seen: Counter[tuple[nn.Module, str]] = Counter()
        self._shape: Any = None  # (b, i, d) of the layer that runs
        self._layer = -1

    def visit(self, layer: int, place: Place, visitor: Visitor) -> None:
        """Have a visitor called whenever this layer's vectors are at this place."""
        key = (place.module or self._blocks[layer], place.event)
        self._visitors.setdefault(key, {}).setdefault(layer, []).append(visitor)
        self._expected.setdefault(layer, set()).add(key)

    def keep(self, layer: int, kept: dict[int, Any]) -> None:
        """Have a copy of what this layer's block returns kept under the layer's number."""
        self._keeping[layer] = kept

    @contextmanager
    def on(self, kept: Mapping[int, Any] | None = None, skip: int = -1) -> Iterator[None]:
        """Watch the model's calls; pass the layers up to `skip` by, which return `kept[skip]`.

        Everything is taken off again on every way out. One call of the model is expected.
        """
        unique = list(dict.fromkeys(self._blocks))
        self._layer = -1
        changes: dict[nn.Module, Change] = {}
        if kept is not None and skip >= 0:
            changes = dict.fromkeys(unique, self._passing_by(kept[skip], skip))
        with Hooks() as hooks, other_forwards(changes):
            for block in unique:
                hooks.before(block, self._begin)
            for (module, event), visitors in self._visitors.items():
                if event == INPUT:
                    hooks.before(module, self._reader(visitors))
                else:
                    hooks.behind(module, self._writer(visitors))
            for block in unique:
                hooks.behind(block, self._end)
            yield
        if self._layer + 1 != len(self._blocks):
            raise UnsupportedModelError(
                f"the model ran {self._layer + 1} blocks where its adapter lists "
                f"{len(self._blocks)}"
            )

    def _passing_by(self, kept: Any, skip: int) -> Change:
        def change(forward: Callable[..., Any]) -> Callable[..., Any]:
            def pass_by(*args: Any, **kwargs: Any) -> Any:
                return copied(kept) if self._layer <= skip else forward(*args, **kwargs)

            return pass_by

        return change

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._layer += 1
        self._seen.clear()
        self._shape = (args[0] if args else kwargs["hidden_states"]).shape

    def _end(self, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        if self._layer in self._keeping:
            self._keeping[self._layer][self._layer] = without_extras(output)
        for key in self._expected.get(self._layer, ()):
            if self._seen[key] != 1:
                raise UnsupportedModelError(
                    f"{self._adapter.name_of(key[0])} ran {self._seen[key]} times in layer "
                    f"{self._layer}, and an ablation needs it to run once"
                )

    def _reader(self, visitors: Mapping[int, list[Visitor]]) -> Callable[..., Any]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name = None if args else _vector_name(kwargs)
            given = args[0] if name is None else kwargs[name]
            changed = self._called(module, INPUT, visitors, given)
            if changed is None:
                return None
            if name is None:
                return (changed, *args[1:]), kwargs
            return args, {**kwargs, name: changed}

        return before

    def _writer(self, visitors: Mapping[int, list[Visitor]]) -> Callable[..., Any]:
        def after(module: nn.Module, _: Any, __: Any, output: Any) -> Any:
            changed = self._called(module, OUTPUT, visitors, first(output))
            return None if changed is None else with_first(output, changed)

        return after

    def _called(
        self, module: nn.Module, event: str, visitors: Mapping[int, list[Visitor]], given: Tensor
    ) -> Tensor | None:
        if self._layer not in visitors:
            return None
        self._seen[module, event] += 1
        changed: Tensor | None = None
        for visitor in visitors[self._layer]:
            now = given if changed is None else changed
            new = visitor(now.reshape(self._shape))
            changed = changed if new is None else new.reshape(given.shape)
        return changed


def _vector_name(kwargs: Mapping[str, Any]) -> str:
    return "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))


def first(output: Any) -> Tensor:
    """A module's vectors: alone in some families, first in a tuple in others."""
    return output[0] if isinstance(output, (tuple, list)) else output


def with_first(output: Any, vectors: Tensor) -> Any:
    """What a module returned, with other vectors."""
    if isinstance(output, (tuple, list)):
        return type(output)([vectors, *output[1:]])
    return vectors


def copied(output: Any) -> Any:
    """What a module returned, with a copy of its vectors: the model may write into them."""
    return with_first(output, first(output).clone())


def without_extras(output: Any) -> Any:
    """What a module returned, with a copy of its vectors and no other tensors."""
    if not isinstance(output, (tuple, list)):
        return output.clone()
    others = [None if isinstance(item, Tensor) else item for item in output[1:]]
    return type(output)([output[0].clone(), *others])

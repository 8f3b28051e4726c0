"""Where each component of a model can be replaced, and which ablations that allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normlens.errors import InputError
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
from normlens.measures.bootstrap import draws
from normlens.measures.maps import outlier_dimensions, special_dimensions
from normlens.scopes import layers_in_words
from normlens.studies.ablation.options import (
    CONTROLS,
    DIMENSION_KINDS,
    DRAWS,
    LAYER,
    NO_AFFINE,
    OUTLIERS,
    PARALLEL_NORM,
    RANDOM_OUTLIERS,
    SPECIAL_KINDS,
    Ablation,
    kinds_of,
)

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
    #: What the next residual connection, which ends the layer, adds to the sum if it branches off
    #: there.
    later: tuple[Place, ...] = ()


#: A block, or the whole layer, is the place of its output.
ComponentPlace = Place | NormPlace | ResidualPlace
_BLOCKS = (Attention, FeedForward, Experts, ParallelFeedForward)


class NoPlace(Exception):
    """A component that cannot be replaced exactly, and why."""


def component_places(layer: Layer) -> dict[str, ComponentPlace | NoPlace]:
    """Every component of a layer by its name: where it is, or why it cannot be replaced."""
    places: dict[str, ComponentPlace | NoPlace] = {}
    shared = [step.module for step in layer.steps if isinstance(step, Norm)]
    for index, name in layer.step_names.items():
        places[name] = _place(layer, index, name)
        step = layer.steps[index]
        norm = step.norm if isinstance(step, ParallelFeedForward) else None
        if norm is not None and norm.module is not None and norm.module not in shared:
            places[PARALLEL_NORM] = NormPlace(norm, norm.module, False)
    places[LAYER] = Place(None, OUTPUT)
    return places


def _place(layer: Layer, index: int, name: str) -> ComponentPlace | NoPlace:
    step = layer.steps[index]
    try:
        if isinstance(step, Norm):
            behind = step is layer.norm_behind_feed_forward
            return NormPlace(step, _module(step.module, name), behind)
        if isinstance(step, Residual):
            return _residual(layer, index)
        if isinstance(step, _BLOCKS):
            return _output(layer, index)
    except NoPlace as reason:
        return reason
    return NoPlace(f"{name} is a step of an unknown kind, {type(step).__name__}")


def _output(layer: Layer, index: int) -> Place:
    """What a block adds to the residual stream."""
    step = layer.steps[index]
    assert isinstance(step, _BLOCKS)
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
        return ResidualPlace(terms, branch, (Place(None, OUTPUT),))
    if isinstance(following[0], Norm):
        return ResidualPlace(terms, branch, _readers(layer, index + 1))
    if isinstance(following[0], Branch):
        last = len(layer.steps) - 1
        if not isinstance(layer.steps[last], Residual) or _branch_of(layer, last) != index + 1:
            raise NoPlace("its sum passes through more than one residual connection")
        return ResidualPlace(terms, branch, _readers(layer, index + 2), _terms(layer, last))
    raise NoPlace(f"behind it is a {_kind(following[0])}")


def _branch_of(layer: Layer, residual: int) -> int:
    """Return the index of the branch that a residual connection adds: the last before it."""
    before = [i for i in range(residual) if isinstance(layer.steps[i], Branch)]
    if not before or any(isinstance(step, Residual) for step in layer.steps[before[-1] : residual]):
        raise NoPlace("it adds what branched off before another residual connection")
    return before[-1]


def _terms(layer: Layer, residual: int) -> tuple[Place, ...]:
    """The outputs of the blocks between a branch and its residual connection."""
    between = range(_branch_of(layer, residual), residual)
    chosen = [i for i in between if isinstance(layer.steps[i], _BLOCKS)]
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


# Which ablations a model has, and one line that says why where it does not have one.


class Plan:
    """The components of a model's layers, and the ablations that they allow."""

    def __init__(self, layers: Sequence[Layer], name: str):
        self.name = name
        self.places = [component_places(layer) for layer in layers]
        self._sequences = list(dict.fromkeys(layer.component_sequence for layer in layers))

    def components(self) -> dict[str, tuple[int, ...]]:
        """Every component that can be replaced, with the layers that have it, in layer order."""
        order = dict.fromkeys(name for places in self.places for name in places if name != LAYER)
        layers_of = {name: self._layers_with(name) for name in (*order, LAYER)}
        return {name: layers for name, layers in layers_of.items() if layers}

    def kinds(self, component: str) -> tuple[str, ...]:
        """The kinds of ablation of a component, in any layer of the model."""
        return tuple(kind for kind in kinds_of(component) if self._allowing(component, kind))

    def ablations(
        self,
        *,
        components: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        layers: Sequence[int] | None = None,
        each: bool = True,
        together: bool = True,
        draws: int = DRAWS,
    ) -> list[Ablation]:
        """Ablations of each layer alone (`each`), and of all these layers `together`.

        By default of every component and kind that the model has. What is asked for by name must be
        there: otherwise one line says what is. Controls come with their special dimensions, `draws`
        of them.
        """
        wanted = list(dict.fromkeys(self.components() if components is None else components))
        for component in wanted:
            self._check_component(component)
        asked = None if kinds is None else list(dict.fromkeys(kinds))
        self._check_kinds(wanted, asked or [])
        found: list[Ablation] = []
        for component in wanted:
            for kind in self.kinds(component):
                if kind in CONTROLS.values() or (asked is not None and kind not in asked):
                    continue
                having = self._allowing(component, kind, layers)
                groups: list[tuple[int, ...]] = [(layer,) for layer in having] if each else []
                if (together and len(having) > 1) or (not each and having):
                    groups.append(having)
                for group in groups:
                    found.append(Ablation(component, kind, group))
                    if kind in CONTROLS:
                        control = CONTROLS[kind]
                        found += [Ablation(component, control, group, n) for n in range(draws)]
        if not found:
            raise InputError(f"no chosen layer has such an ablation; {self._having()}")
        return found

    def place(self, layer: int, component: str) -> ComponentPlace:
        """Where a component of a layer is."""
        place = self.places[layer].get(component)
        if place is None:
            raise InputError(f"layer {layer} of {self.name} has no {component}; {self._having()}")
        if isinstance(place, NoPlace):
            raise InputError(f"{component} in layer {layer} of {self.name} stays: {place}")
        return place

    def dimensions(
        self, layer: int, component: str, kind: str, draw: int | None = None, seed: int = 0
    ) -> Tensor:
        """The dimensions of a norm that a kind sets to 0; random ones are not the special ones."""
        place = self.place(layer, component)
        assert isinstance(place, NormPlace)
        assert place.norm.gamma is not None
        choose = outlier_dimensions if kind in (OUTLIERS, RANDOM_OUTLIERS) else special_dimensions
        special, others = choose(place.norm.gamma.detach())
        if kind in SPECIAL_KINDS:
            return special
        # The draw is the same for both controls, which differ in how many dimensions they take.
        numbers = draws(len(others), "dimensions", seed, layer, component, draw)
        order = numbers.argsort(kind="stable")
        places = torch.as_tensor(order[: len(special)]).sort().values
        return others[places.to(others.device)]

    # What is refused ----------------------------------------------------------------------------

    def _check_component(self, component: str) -> None:
        if self._layers_with(component):
            return
        for places in self.places:
            if component in places:
                reason = places[component]
                raise InputError(f"{component} of {self.name} cannot be ablated: {reason}")
        raise InputError(f"{self.name} has no {component}; {self._having()}")

    def _check_kinds(self, components: list[str], kinds: list[str]) -> None:
        """Raise unless each of these kinds is one of some of these components."""
        for kind in kinds:
            if kind in CONTROLS.values():
                special = next(name for name, control in CONTROLS.items() if control == kind)
                raise InputError(f"{kind} comes with {special}; ask for that")
            if any(kind in self.kinds(name) for name in components):
                continue
            for component in (name for name in reversed(components) if kind in kinds_of(name)):
                for layer in self._layers_with(component):  # says what is missing
                    self._check_kind(layer, component, kind)
            possible = dict.fromkeys(k for name in components for k in self.kinds(name))
            named = ", ".join(components)
            raise InputError(
                f"{named} cannot be ablated by {kind!r}, only by {', '.join(possible)}"
            )

    def _check_kind(self, layer: int, component: str, kind: str) -> None:
        """Raise unless a component of a layer can be ablated in one way."""
        place, where = self.place(layer, component), f"{component} in layer {layer} of {self.name}"
        if not isinstance(place, NormPlace) or kind not in (NO_AFFINE, *DIMENSION_KINDS):
            return
        gamma = place.norm.gamma
        if kind == NO_AFFINE:
            if gamma is None and place.norm.beta is None:
                raise InputError(f"{component} of {self.name} has neither γ nor β")
        elif not place.behind_feed_forward:
            raise InputError(f"{kind} is of the norm behind FF, not of {where}; {self._having()}")
        elif gamma is None:
            raise InputError(f"{where} has no γ")
        elif kind in (OUTLIERS, RANDOM_OUTLIERS) and not len(outlier_dimensions(gamma.detach())[0]):
            raise InputError(f"no γ of {where} lies beyond 3σ")

    def _having(self) -> str:
        parts = []
        for component, layers in self.components().items():
            everywhere = len(layers) == len(self.places)
            parts.append(component + ("" if everywhere else f" ({layers_in_words(layers)})"))
        return f"its layers ({' or '.join(self._sequences)}) have: {', '.join(parts)}"

    def _layers_with(self, component: str) -> tuple[int, ...]:
        return tuple(
            layer
            for layer, places in enumerate(self.places)
            if not isinstance(places.get(component, NoPlace()), NoPlace)
        )

    def _allowing(
        self, component: str, kind: str, layers: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """The layers, of some or of all, whose component can be ablated in one way."""
        allowing = []
        for layer in self._layers_with(component):
            if layers is None or layer in layers:
                with suppress(InputError):
                    self._check_kind(layer, component, kind)
                    allowing.append(layer)
        return tuple(allowing)

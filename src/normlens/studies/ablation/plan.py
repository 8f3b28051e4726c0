"""Which ablations a model has, and one line that says why where it does not have one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.layers import Layer
from normlens.measures.maps import outlier_dimensions, special_dimensions
from normlens.scopes import layers_in_words
from normlens.studies.ablation.options import (
    CONTROLS,
    DIMENSION_KINDS,
    DRAWS,
    LAYER,
    NO_AFFINE,
    OUTLIERS,
    RANDOM_OUTLIERS,
    SPECIAL_KINDS,
    Ablation,
    is_norm,
    kinds_of,
)
from normlens.studies.ablation.places import (
    ComponentPlace,
    NoPlace,
    NormPlace,
    chosen,
    component_places,
)


class Plan:
    """The components of a model's layers, and the ablations that they allow."""

    def __init__(self, layers: Sequence[Layer], name: str):
        self.name = name
        self.places = [component_places(layer) for layer in layers]
        self._sequences = list(dict.fromkeys(layer.component_sequence for layer in layers))

    def components(self) -> dict[str, tuple[int, ...]]:
        """Every component that can be replaced, with the layers that have it, in layer order."""
        order = dict.fromkeys(name for places in self.places for name in places if name != LAYER)
        layers_of = {name: tuple(self._layers_with(name)) for name in (*order, LAYER)}
        return {name: layers for name, layers in layers_of.items() if layers}

    def kinds(self, component: str) -> tuple[str, ...]:
        """The kinds of ablation of a component, in any layer of the model."""
        possible = [
            kind for kind in kinds_of(component) if any(self._allowing(component, kind, None))
        ]
        return tuple(possible)

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
        for layer in layers or ():
            self._check_layer(layer)
        chosen_kinds = None if kinds is None else list(dict.fromkeys(kinds))
        self._check_kinds(wanted, chosen_kinds)
        found: list[Ablation] = []
        for component in wanted:
            for kind in self.kinds(component):
                if kind in CONTROLS.values() or (
                    chosen_kinds is not None and kind not in chosen_kinds
                ):
                    continue
                having = tuple(self._allowing(component, kind, layers))
                groups: list[tuple[int, ...]] = [(layer,) for layer in having] if each else []
                if (together and len(having) > 1) or (not each and having):
                    groups.append(having)
                for group in groups:
                    found += _with_controls(component, kind, group, draws)
        if not found:
            raise InputError(
                f"no layer that was chosen of {self.name} has such an ablation; {self._having()}"
            )
        return found

    def check(self, ablation: Ablation) -> None:
        """Raise one line unless every layer of an ablation has its component and its kind."""
        self._check_component(ablation.component)
        for layer in ablation.layers:
            self._check_layer(layer)
            self.place(layer, ablation.component)
            self._check_dimensions(layer, ablation.component, ablation.kind)

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
        places = chosen(len(special), len(others), "dimensions", seed, layer, component, draw)
        return others[torch.as_tensor(places, device=others.device)]

    # What is refused ----------------------------------------------------------------------------

    def _check_component(self, component: str) -> None:
        if any(component in places for places in self.places):
            if not self._layers_with(component):
                reason = next(p[component] for p in self.places if component in p)
                raise InputError(f"{component} of {self.name} cannot be ablated: {reason}")
            return
        raise InputError(f"{self.name} has no {component}; {self._having()}")

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < len(self.places):
            raise InputError(
                f"layer {layer} is out of range; {self.name} has layers 0 to {len(self.places) - 1}"
            )

    def _check_kinds(self, components: list[str], kinds: list[str] | None) -> None:
        for kind in kinds or ():
            if kind in CONTROLS.values():
                special = next(name for name, control in CONTROLS.items() if control == kind)
                raise InputError(f"{kind} comes with {special}; ask for that")
            if any(kind in self.kinds(name) for name in components):
                continue
            if kind in SPECIAL_KINDS and any(map(is_norm, components)):
                raise InputError(self._no_dimensions(components, kind))
            possible = dict.fromkeys(k for name in components for k in self.kinds(name))
            raise InputError(
                f"{', '.join(components)} of {self.name} cannot be ablated by {kind!r}; choose one "
                f"of: {', '.join(possible)}"
            )

    def _no_dimensions(self, components: list[str], kind: str) -> str:
        """Why none of these components has special dimensions of a kind."""
        for component in components:
            for layer in self._layers_with(component):
                place = self.place(layer, component)
                if isinstance(place, NormPlace) and place.behind_feed_forward:
                    return str(self._refusal(layer, component, kind))
        return (
            f"special dimensions are those of a norm behind FF, and {self.name} has none among "
            f"{', '.join(components)}; {self._having()}"
        )

    def _check_dimensions(self, layer: int, component: str, kind: str) -> None:
        refusal = self._refusal(layer, component, kind)
        if refusal is not None:
            raise InputError(refusal)

    def _refusal(self, layer: int, component: str, kind: str) -> str | None:
        """Why a norm cannot be ablated in one way; None: it can."""
        if kind not in (NO_AFFINE, *DIMENSION_KINDS):
            return None
        place = self.place(layer, component)
        assert isinstance(place, NormPlace)
        if kind == NO_AFFINE:
            affine = place.norm.gamma is not None or place.norm.beta is not None
            return None if affine else f"{component} of {self.name} has neither γ nor β"
        if not place.behind_feed_forward:
            return (
                f"special dimensions are those of the norm behind FF, and {component} in layer "
                f"{layer} of {self.name} is not; {self._having()}"
            )
        if place.norm.gamma is None:
            return f"{component} in layer {layer} of {self.name} has no γ"
        if kind in (OUTLIERS, RANDOM_OUTLIERS) and not len(
            outlier_dimensions(place.norm.gamma.detach())[0]
        ):
            return f"no γ of {component} in layer {layer} of {self.name} lies beyond 3σ"
        return None

    def _having(self) -> str:
        parts = []
        for component, layers in self.components().items():
            everywhere = len(layers) == len(self.places)
            parts.append(component + ("" if everywhere else f" ({layers_in_words(layers)})"))
        return f"its layers ({' or '.join(self._sequences)}) have: {', '.join(parts)}"

    def _layers_with(self, component: str) -> list[int]:
        return [
            layer
            for layer, places in enumerate(self.places)
            if not isinstance(places.get(component, NoPlace()), NoPlace)
        ]

    def _allowing(self, component: str, kind: str, layers: Sequence[int] | None) -> Iterator[int]:
        for layer in self._layers_with(component):
            wanted = layers is None or layer in layers
            if wanted and self._refusal(layer, component, kind) is None:
                yield layer


def _with_controls(
    component: str, kind: str, layers: tuple[int, ...], draws: int
) -> Iterator[Ablation]:
    yield Ablation(component, kind, layers)
    if kind in CONTROLS:
        for draw in range(draws):
            yield Ablation(component, CONTROLS[kind], layers, draw)

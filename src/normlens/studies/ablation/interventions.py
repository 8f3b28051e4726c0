"""Interventions in the real model: a component's vectors are replaced while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens.errors import InputError, UnsupportedModelError
from normlens.frozen.parts import FrozenNorm
from normlens.layers import cast
from normlens.pipeline.batches import TOLERANCE
from normlens.studies.ablation.options import (
    FROZEN_SIGMA,
    LAYER,
    LEFT_OUT,
    MEAN,
    NO_AFFINE,
    ZERO,
    Ablation,
)
from normlens.studies.ablation.places import (
    INPUT,
    OUTPUT,
    LayerHooks,
    NormPlace,
    Place,
    ResidualPlace,
    VectorPlace,
    draws,
)
from normlens.studies.ablation.plan import Plan
from normlens.studies.ablation.statistics import Statistics

if TYPE_CHECKING:
    from normlens.lens import Lens

# What layers returned in the intact pass, kept within a memory limit.


def layers_to_keep(
    ablations: Sequence[Ablation], n_layers: int, bytes_each: int, limit: int
) -> list[int]:
    """The layers whose outputs are worth keeping: as many as fit, evenly spread.

    An ablation starts behind the last kept layer before its first one.
    """
    wanted = sorted({ablation.first - 1 for ablation in ablations if ablation.first > 0})
    wanted = [layer for layer in wanted if layer < n_layers]
    fitting = limit // max(1, bytes_each)
    if fitting >= len(wanted):
        return wanted
    # Of every stretch of layers the first is kept: behind it all others of the stretch can start.
    return [wanted[k * len(wanted) // fitting] for k in range(fitting)]


def start_behind(ablation: Ablation, kept: dict[int, Any]) -> int:
    """The last kept layer before an ablation's first; −1: none."""
    return max((layer for layer in kept if layer < ablation.first), default=-1)


# Interventions in the real model: a component's vectors are replaced while it runs.
#
# Nothing of the model is written: hooks replace what passes between its modules, and are taken
# off on every way out. What "left out" means: the norm returns its input. Behind a residual
# connection (post-norm) the layer then hands on the plain sum; before a block (pre-norm) the
# block reads the residual stream as it is; an RMSNorm is left out in the same way.


@dataclass
class Interventions:
    """The ablations of one model."""

    lens: Lens
    plan: Plan
    statistics: Statistics | None = None
    seed: int = 0
    #: Layers and components whose replacement was compared with the model's vectors already.
    _compared: set[tuple[int, str]] = field(default_factory=set)

    def check(self, ablation: Ablation) -> None:
        """Raise one line unless the model has this ablation and everything it needs is there."""
        self.plan.check(ablation)
        if ablation.needs_statistics:
            for layer in ablation.layers:
                self._gathered().check(layer, ablation.component, ablation.kind)

    @contextmanager
    def applied(
        self,
        ablation: Ablation | None,
        keys: Sequence[str],
        *,
        kept: Mapping[int, Any] | None = None,
        skip: int = -1,
        watching: Callable[[LayerHooks], None] | None = None,
    ) -> Iterator[None]:
        """Replace a component in the next call of the model, whose rows have these keys.

        None replaces nothing. `kept` and `skip` are those of `LayerHooks.on`; `watching` adds
        visitors. A resampled position depends on the seed, the row's key, the layer, the component
        and the position alone.
        """
        hooks = LayerHooks(self.lens.adapter)
        if ablation is not None:
            for layer in ablation.layers:
                self._intervene(hooks, ablation, layer, keys)
        if watching is not None:
            watching(hooks)
        with hooks.on(kept, skip):
            yield

    def _intervene(
        self, hooks: LayerHooks, ablation: Ablation, layer: int, keys: Sequence[str]
    ) -> None:
        place = self.plan.place(layer, ablation.component)
        if isinstance(place, NormPlace):
            self._norm(hooks, ablation, layer, place)
        elif isinstance(place, ResidualPlace):
            self._residual(hooks, ablation, layer, place, keys)
        elif ablation.component == LAYER and ablation.kind == ZERO:
            _bypass(hooks, layer)
        else:
            assert isinstance(place, VectorPlace)
            replaced = self._replacement(ablation, layer, keys)
            hooks.visit(layer, place.output, replaced)

    def _replacement(
        self, ablation: Ablation, layer: int, keys: Sequence[str]
    ) -> Callable[[Tensor], Tensor]:
        """What stands in for vectors (b, i, d): zeros, their corpus mean, or others of a corpus."""
        kind, component = ablation.kind, ablation.component
        if kind == ZERO:
            return torch.zeros_like
        if kind == MEAN:
            mean = self._gathered().mean(layer, component)
            # A copy, because some models add to what they get in place.
            return lambda y: mean.to(y).expand_as(y).clone()
        sample = self._gathered().sample(layer, component)

        def resampled(y: Tensor) -> Tensor:
            rows = [
                draws(y.shape[1], "resample", self.seed, key, layer, component) % len(sample)
                for key in keys
            ]
            places = torch.stack([torch.as_tensor(row.astype("int64")) for row in rows])
            return sample.to(y)[places.to(y.device)]

        return resampled

    def _residual(
        self,
        hooks: LayerHooks,
        ablation: Ablation,
        layer: int,
        place: ResidualPlace,
        keys: Sequence[str],
    ) -> None:
        """``terms + branch`` becomes ``terms + replacement`` wherever the sum is read."""
        replacement = self._replacement(ablation, layer, keys)
        seen: dict[Place, Tensor] = {}

        def keep(at: Place) -> None:
            # Some models (Falcon) add to a block's output in place later.
            hooks.visit(layer, at, lambda y: seen.__setitem__(at, y.clone()))

        for at in dict.fromkeys((*place.terms, place.branch, *(place.later or ()))):
            keep(at)

        def changed(total: Tensor) -> Tensor:
            branch = seen[place.branch]
            self._compare(layer, ablation.component, _total(seen, place.terms) + branch, total)
            return _total(seen, place.terms) + replacement(branch)

        for reader in place.readers:
            hooks.visit(layer, reader, changed)
        if place.later is not None:
            later = place.later

            def carried(_: Tensor) -> Tensor:
                here = _total(seen, place.terms) + replacement(seen[place.branch])
                return here + _total(seen, later)

            hooks.visit(layer, Place(None, OUTPUT), carried)

    def _norm(self, hooks: LayerHooks, ablation: Ablation, layer: int, place: NormPlace) -> None:
        kind, component = ablation.kind, ablation.component
        output = Place(place.module, OUTPUT)
        if kind not in (FROZEN_SIGMA, NO_AFFINE, LEFT_OUT):
            dimensions = self.plan.dimensions(layer, component, kind, ablation.draw, self.seed)
            hooks.visit(layer, output, lambda y: y.index_fill(-1, dimensions.to(y.device), 0))
            return
        seen: list[Tensor] = []
        hooks.visit(layer, Place(place.module, INPUT), seen.append)

        def changed(y: Tensor) -> Tensor:
            x = seen.pop()
            if kind == LEFT_OUT:
                return x.to(y.dtype)
            wide = x.to(self.lens.compute_dtype)
            norm = cast(place.norm, wide.dtype)
            real = FrozenNorm.at(norm, wide)
            self._compare(layer, component, real.apply(wide), y)
            if kind == NO_AFFINE:
                plain = replace(norm, gamma=None, beta=None)
                return FrozenNorm(plain, real.inverse_deviation).apply(wide).to(y.dtype)
            inverse = 1 / self._gathered().sigma(layer, component)
            mean = torch.full_like(real.inverse_deviation, inverse)
            return FrozenNorm(norm, mean).apply(wide).to(y.dtype)

        hooks.visit(layer, output, changed)

    def _compare(self, layer: int, component: str, described: Tensor, real: Tensor) -> None:
        """Raise where a component is not what its adapter says, such as a scaled residual."""
        if (layer, component) in self._compared:
            return
        wide = described.to(self.lens.compute_dtype), real.to(self.lens.compute_dtype)
        error = float((wide[0] - wide[1]).norm() / wide[1].norm())
        if not math.isfinite(error):
            return  # other ablated layers may make values overflow; nothing can be compared then
        tolerance = TOLERANCE[self.lens.dtype]
        if error > tolerance:
            raise UnsupportedModelError(
                f"{component} in layer {layer} of {self.lens.name} is not what its adapter "
                f"describes (relative error {error:.1e}, tolerance {tolerance:.0e}), so it cannot "
                "be ablated"
            )
        self._compared.add((layer, component))

    def _gathered(self) -> Statistics:
        if self.statistics is None:
            raise InputError(
                "mean, resample and frozen-sigma need statistics of other data; gather them first "
                "(normlens.studies.ablation.statistics.gather)"
            )
        return self.statistics


def _bypass(hooks: LayerHooks, layer: int) -> None:
    """The layer's output is its input."""
    seen: list[Tensor] = []
    hooks.visit(layer, Place(None, INPUT), seen.append)
    hooks.visit(layer, Place(None, OUTPUT), lambda _: seen.pop())


def _total(seen: Mapping[Place, Tensor], places: Sequence[Place]) -> Tensor:
    """The sum of vectors that were seen, in the order of the layer's steps."""
    return reduce(torch.add, [seen[place] for place in places])

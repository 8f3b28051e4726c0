"""What an analysis may be asked for: one set of options for Python, runs, server and shell."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypedDict

from normlens import scopes as scope_names
from normlens.decomposition import RULES, Settings
from normlens.decomposition.feedforward import NOT_LINEAR
from normlens.decomposition.memory import DEFAULT_LIMIT, parse_bytes
from normlens.decomposition.rules import SHAPLEY
from normlens.errors import InputError, valid_choice
from normlens.origins import INPUT, LAYER, ORIGINS
from normlens.precisions import AUTO, PRECISIONS


@dataclass(frozen=True)
class AnalysisOptions:
    """The options of `Lens.maps`, which explains them; wrong ones are refused when it is made."""

    scopes: str | Iterable[str] | None = None
    layers: int | Iterable[int] | None = None
    heads: bool = False
    statistics: bool = False
    nonlinearity: str = "ig"
    batch_size: int | str = "auto"
    memory_limit: int | float | str | None = None
    samples: int = 64
    seed: int = 0
    precision: str = AUTO
    origin: str = LAYER

    def __post_init__(self) -> None:
        valid_choice(self.nonlinearity, RULES, "rule for the nonlinearity")
        valid_choice(self.precision, PRECISIONS, "precision")
        at_least_one(self.samples, "samples")
        whole(self.seed, "seed")
        parse_bytes(self.memory_limit)
        if self.batch_size != AUTO:
            if isinstance(self.batch_size, str):
                raise InputError(f"batch_size is a number or 'auto', not {self.batch_size!r}")
            at_least_one(self.batch_size, "batch_size")
        valid_choice(self.origin, ORIGINS, "origin")
        if self.origin == INPUT:
            self._check_whole_way()

    def _check_whole_way(self) -> None:
        """Refuse what only a layer's own sources have."""
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        for asked, what in ((self.heads, "heads"), (self.statistics, "statistics")):
            if asked:
                raise InputError(
                    f"{what} are of one layer and its own sources, not of the way from the input "
                    f"tokens; leave `{what}` out, or take origin={LAYER!r}"
                )
        if self.precision not in (AUTO, "float32"):
            raise InputError(
                f"precision {self.precision!r} is of kernels for one layer's sources; with "
                f"origin={INPUT!r} leave it out"
            )

    @property
    def settings(self) -> Settings:
        """The same for the algebra."""
        return Settings(
            rule=self.nonlinearity,
            heads=self.heads,
            statistics=self.statistics,
            memory_limit=parse_bytes(self.memory_limit) or DEFAULT_LIMIT,
            samples=whole(self.samples, "samples"),
            seed=whole(self.seed, "seed"),
            precision=self.precision,
        )

    def scopes_of(self, known: list[str]) -> list[str]:
        """The chosen ones of a model's scopes, in its order."""
        chosen = scope_names.resolve_all(self.scopes, known)
        if self.origin == LAYER:
            return chosen
        norms = [scope for scope in chosen if scope not in scope_names.WEIGHT_SCOPES]
        if len(norms) < len(chosen) and self.scopes not in (None, "all"):
            weights = next(scope for scope in chosen if scope in scope_names.WEIGHT_SCOPES)
            raise InputError(
                f"{weights} shows one layer's attention weights, which do not go back to the input "
                f"tokens; choose scopes that end in -N, or take origin={LAYER!r}"
            )
        return norms

    def layers_of(self, count: int, name: str) -> list[int]:
        """The chosen ones of a model's layers, in order; negative ones count from the end."""
        if self.layers is None or (isinstance(self.layers, str) and self.layers == "all"):
            return list(range(count))
        listed = isinstance(self.layers, Iterable) and not isinstance(self.layers, str)
        chosen = list(self.layers) if listed else [self.layers]  # type: ignore[arg-type]
        if not chosen:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        found = set()
        for layer in chosen:
            if not _is_whole(layer) or not -count <= int(layer) < count:  # type: ignore[arg-type]
                raise InputError(
                    f"layer {layer!r} is out of range; {name} has layers 0 to {count - 1}"
                )
            found.add(int(layer) % count)  # type: ignore[arg-type]
        return sorted(found)


class AnalysisKeywords(TypedDict, total=False):
    """The same options as keywords."""

    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None
    samples: int
    seed: int
    precision: str
    origin: str


@dataclass(frozen=True)
class Request:
    """What one call asks of the layers, once it is known which model it asks."""

    scopes: list[str]
    layers: list[int]
    settings: Settings
    arrays: bool = True
    correlations: bool = False
    origin: str = LAYER

    def settings_of(self, layer: int) -> Settings:
        """The settings of one layer: kernels are sampled in the first and the last one."""
        sampled = layer in (self.layers[0], self.layers[-1])
        return self.settings if sampled else replace(self.settings, sample_kernels=False)


def whole(value: int, what: str) -> int:
    """A whole number as such, or an error that names it."""
    if not _is_whole(value):
        raise InputError(f"{what} must be a whole number, not {value!r}")
    return operator.index(value)


def at_least_one(value: int, what: str) -> int:
    """A whole number from 1, or an error that names it."""
    if whole(value, what) < 1:
        raise InputError(f"{what} must be at least 1, not {value}")
    return operator.index(value)


def _is_whole(value: object) -> bool:
    """Python's and NumPy's whole numbers, without truth values."""
    return not isinstance(value, bool) and hasattr(value, "__index__")

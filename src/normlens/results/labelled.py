"""Arrays of one sequence with their axes, tokens and layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, UnknownScopeError
from normlens.layers import layers_in_words
from normlens.origins import IN_WORDS, LAYER
from normlens.precisions import cost_in_words
from normlens.results.axes import (
    GROUPS,
    Allowed,
    LayerHeadTargetSource,
    LayerTarget,
    LayerTargetSource,
    TargetSource,
    axes_of,
    fits,
)
from normlens.results.checksums import shapes_of
from normlens.results.equality import same
from normlens.results.patches import PatchGrid
from normlens.results.routing import Routing
from normlens.results.tokens import TokenAxis
from normlens.scopes import resolve

if TYPE_CHECKING:
    from normlens.results.maps import Maps


@dataclass(frozen=True)
class Correlations:
    """Spearman's ρ between all scopes, over the pairs that attention allows."""

    scopes: list[str]
    rho: NDArray[np.float64]  # [layer, scope, scope]; NaN where a layer lacks a scope


@dataclass(frozen=True, repr=False, eq=False)
class LabelledMaps:
    """The arrays of one sequence with their labels; `Maps` measures and shows them."""

    arrays: Mapping[str, LayerTargetSource]  # by scope
    raw_tokens: list[str]  # as the tokenizer writes them; `tokens` are for reading
    layers: list[int]  # indices of the model's layers, from 0
    allowed: Allowed  # [layer, target, source], pairs that attention allows
    completeness: float  # worst relative error of parts + bias against the real hidden states
    provenance: dict[str, Any] = field(default_factory=dict)
    mixing: Mapping[str, LayerTarget] = field(default_factory=dict)  # by scope
    heads: Mapping[str, LayerHeadTargetSource] = field(default_factory=dict)  # by scope
    standard_error: Mapping[str, LayerTargetSource] = field(
        default_factory=dict
    )  # of each norm; Shapley only
    #: of the feed-forward block, on request; `normlens.results.axes` names them with their axes
    statistics: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None  # word index of each token
    word_labels: list[str] = field(default_factory=list)
    text: str | tuple[str, str] | None = None
    correlations: Correlations | None = None  # where the lens was asked to rank the maps itself
    #: The layers of every array that covers only some, by group and name: "arrays/ATTNRESLN-N".
    coverage: Mapping[str, list[int]] = field(default_factory=dict)
    source_axis: TokenAxis | None = None  # None: the sources are the targets' tokens
    #: [target, source], whether both are the same token; None: on the diagonal, or (where the
    #: sources are other tokens) nowhere
    same_token: NDArray[np.bool_] | None = None
    #: the encoder's maps beside these, which are the decoder's; None: there are none
    encoder: Maps | None = None
    #: the experts that tokens used; None: no layer has experts
    routing: Routing | None = None
    grid: PatchGrid | None = None  # which tokens are patches of a picture, and where

    def __post_init__(self) -> None:
        sizes = {"target": len(self.targets), "source": len(self.sources)}
        shown = f"{sizes['target']} targets and {sizes['source']} sources"
        for group, arrays in self.groups.items():
            for name, shape in shapes_of(arrays).items():
                layers = len(self.covered(group, name))
                if not fits(shape, axes_of(group, name), {**sizes, "layer": layers}):
                    raise InputError(
                        f"{group} of {name} have shape {shape} for {layers} layers, {shown}"
                    )

    # Whose contributions these are --------------------------------------------------------------

    @property
    def origin(self) -> str:
        """The sources: "layer", each layer's input vectors, or "input", the model's tokens."""
        return str(self.provenance.get("origin", LAYER))

    @property
    def origin_in_words(self) -> str:
        """What titles say of it; nothing of a layer's own sources."""
        return IN_WORDS.get(self.origin, "")

    @property
    def stack(self) -> str:
        """The stack of an encoder–decoder: "encoder" or "decoder"; empty where there is one."""
        return str(self.provenance.get("stack", ""))

    # Tokens -------------------------------------------------------------------------------------

    @property
    def targets(self) -> TokenAxis:
        """The tokens of the rows."""
        return TokenAxis(
            self.raw_tokens, self.token_ids, self.special, self.token_words, self.word_labels
        )

    @property
    def sources(self) -> TokenAxis:
        """The tokens of the columns."""
        return self.targets if self.source_axis is None else self.source_axis

    @cached_property
    def tokens(self) -> list[str]:
        """The targets as people read them: ``␣café`` for ``ĠcafÃ©``."""
        return self.targets.tokens

    @property
    def source_tokens(self) -> list[str]:
        """The sources as people read them."""
        return self.tokens if self.source_axis is None else self.source_axis.tokens

    @cached_property
    def is_same_token(self) -> NDArray[np.bool_]:
        """[target, source], whether both are the same token (i = j)."""
        if self.same_token is not None:
            return self.same_token
        if self.source_axis is None:
            return np.eye(len(self.targets), dtype=bool)
        return np.zeros((len(self.targets), len(self.sources)), dtype=bool)

    # Arrays -------------------------------------------------------------------------------------

    @property
    def groups(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Every group of arrays by its name; `normlens.results.axes` has their axes."""
        return {name: getattr(self, name) for name in GROUPS}

    @property
    def scopes(self) -> list[str]:
        """The scopes at hand, in the order of the layer's components."""
        return list(self.arrays)

    def __getitem__(self, scope: str) -> LayerTargetSource:
        return self.arrays[resolve(scope, self.scopes)]

    def __contains__(self, scope: str) -> bool:
        try:
            resolve(scope, self.scopes)
        except UnknownScopeError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.scopes)

    def __len__(self) -> int:
        return len(self.arrays)

    # Layers -------------------------------------------------------------------------------------

    def layers_of(self, *scopes: str) -> list[int]:
        """The layers that have all of these scopes; ``maps[scope]`` has a map of each."""
        names = [resolve(scope, self.scopes) for scope in scopes]
        covered = [self.covered("arrays", name) for name in names]
        return [layer for layer in self.layers if all(layer in layers for layers in covered)]

    def at(self, scope: str, layer: int) -> TargetSource:
        """The map [target, source] of a scope in one layer of the model; −1 is the last."""
        (wanted,) = self.wanted_layers(layer)
        layers = self.layers_of(scope)
        if wanted not in layers:
            raise self.lacking(scope, [wanted])
        return self[scope][layers.index(wanted)]

    def covered(self, group: str, name: str) -> list[int]:
        """The layers that the first axis of an array stands for."""
        return self.coverage.get(f"{group}/{name}", self.layers)

    def over_layers(self, group: str, name: str) -> NDArray[Any]:
        """An array with an entry for each of `layers`, NaN for those that it does not cover."""
        array, covered = self.groups[group][name], self.covered(group, name)
        if covered == self.layers:
            return array
        floating = array.dtype if np.issubdtype(array.dtype, np.inexact) else np.float64
        whole = np.full((len(self.layers), *array.shape[1:]), np.nan, dtype=floating)
        whole[[self.layers.index(layer) for layer in covered]] = array
        return whole

    def wanted_layers(self, layers: int | Iterable[int] | None) -> list[int]:
        """Layers of the model, in order; negative ones count from the end of those at hand."""
        if layers is None:
            return list(self.layers)
        wanted = [layers] if isinstance(layers, (int, np.integer)) else list(layers)
        if not wanted:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        places = set()
        for layer in wanted:
            if isinstance(layer, (int, np.integer)) and -len(self.layers) <= layer < 0:
                places.add(len(self.layers) + int(layer))
            elif layer in self.layers:
                places.add(self.layers.index(layer))
            else:
                raise InputError(
                    f"layer {layer!r} is not among these maps' layers (indices from 0): "
                    f"{', '.join(map(str, self.layers))}"
                )
        return [self.layers[place] for place in sorted(places)]

    def lacking(self, scope: str, layers: Iterable[int]) -> InputError:
        """The error for layers without a scope, which names those that have it."""
        return InputError(
            f"no map of {resolve(scope, self.scopes)} in {layers_in_words(layers)}; these maps "
            f"have that scope in {layers_in_words(self.layers_of(scope))}"
        )

    # Comparing ----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same numbers and labels; provenance does not count."""
        if not isinstance(other, LabelledMaps):
            return NotImplemented
        names = [f.name for f in fields(self) if f.name not in ("provenance", "correlations")]
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        model = self.provenance.get("model", "?")
        sources = f"{self.origin_in_words}, " if self.origin_in_words else ""
        stack = f"{self.stack}, " if self.stack else ""
        beside = ""
        if self.encoder is not None:
            beside = f"; encoder: {self.encoder._sizes}"
        cost = cost_in_words(str(self.provenance.get("dtype")))
        return (
            f"Maps({model}: {stack}{self._sizes}, {sources}"
            f"completeness {self.completeness:.1e}{cost}{beside})"
        )

    @property
    def _sizes(self) -> str:
        tokens = f"{len(self.raw_tokens)} tokens"
        if self.source_axis is not None:
            tokens = f"{len(self.raw_tokens)} targets of {len(self.sources)} sources"
        return f"{tokens}, {len(self.layers)} layers, {len(self.scopes)} scopes"

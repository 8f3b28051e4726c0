"""Arrays of one sequence with their axes, tokens and layers: choosing and merging them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from normlens import analysis
from normlens.axes import (
    GROUPS,
    Allowed,
    Axes,
    LayerHeadTargetSource,
    LayerTarget,
    LayerTargetSource,
    axes_of,
    take,
)
from normlens.equality import same
from normlens.errors import InputError, UnknownScopeError
from normlens.origins import IN_WORDS, LAYER
from normlens.scopes import resolve, resolve_all
from normlens.tokens import readable_tokens, word_groups

M = TypeVar("M", bound="LabelledMaps")


@dataclass(frozen=True)
class Correlations:
    """Spearman's ρ between all scopes, over the pairs that attention allows."""

    scopes: list[str]
    rho: NDArray[np.float64]  # [layer, scope, scope]


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
    #: of the feed-forward block, on request; `normlens.axes` names them with their axes
    statistics: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None  # word index of each token
    word_labels: list[str] = field(default_factory=list)
    text: str | tuple[str, str] | None = None
    correlations: Correlations | None = None  # where the lens was asked to rank the maps itself

    # Looking ------------------------------------------------------------------------------------

    @property
    def groups(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Every group of arrays by its name; `normlens.axes` has their axes."""
        return {name: getattr(self, name) for name in GROUPS}

    @property
    def origin(self) -> str:
        """Whose contributions these are: "layer", its input vectors, or "input", the tokens."""
        return str(self.provenance.get("origin", LAYER))

    @property
    def origin_in_words(self) -> str:
        """What titles say of it; nothing of a layer's own sources."""
        return IN_WORDS.get(self.origin, "")

    @property
    def scopes(self) -> list[str]:
        """The scopes at hand, in the order of the layer's components."""
        return list(self.arrays)

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens as people read them: ``␣café`` for ``ĠcafÃ©``."""
        return readable_tokens(self.raw_tokens, self.special)

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

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same numbers and labels; provenance does not count."""
        if not isinstance(other, LabelledMaps):
            return NotImplemented
        names = [f.name for f in fields(self) if f.name not in ("provenance", "correlations")]
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        model = self.provenance.get("model", "?")
        sources = "".join(f"{words}, " for words in [self.origin_in_words] if words)
        return (
            f"Maps({model}: {len(self.raw_tokens)} tokens, {len(self.layers)} layers, "
            f"{len(self.scopes)} scopes, {sources}completeness {self.completeness:.1e})"
        )

    # Choosing and merging -----------------------------------------------------------------------

    def choose(
        self: M,
        layers: int | Iterable[int] | None = None,
        scopes: str | Iterable[str] | None = None,
    ) -> M:
        """The same maps with some of their layers and scopes only, in their order.

        Layers are the model's, from 0; negative ones count from the end of those at hand.
        """
        names = resolve_all(scopes, self.scopes)
        if not names:
            raise InputError("no scope is chosen; leave `scopes` out to take all")
        places = np.array(self._layer_places(layers))
        kept: dict[str, Any] = {
            group: {name: array for name, array in arrays.items() if name in names}
            for group, arrays in self.groups.items()
            if group != "statistics"
        }
        return replace(self, **kept)._select({"layer": places})

    def without_special_tokens(self: M) -> M:
        """The same maps without rows and columns of special tokens ([CLS], [SEP], <s>, …)."""
        keep = [index for index, special in enumerate(self.special) if not special]
        if not keep:
            raise InputError("every token of this sequence is a special token")
        index = np.array(keep)
        # Means over all tokens and special dimensions would no longer be those of what is left.
        return replace(self, statistics={})._select({"target": index, "source": index})

    def words(self: M) -> M:
        """Word-level maps: columns of a word summed, rows averaged. Special tokens stay."""
        members, labels = word_groups(self.raw_tokens, self.token_words, self.word_labels)
        # Norms of sums, spreads and statistics of tokens say nothing of words.
        alone = replace(self, mixing={}, standard_error={}, statistics={})
        return replace(
            alone._change(lambda array, _: analysis.merge_words(array, members)),
            raw_tokens=labels,
            allowed=analysis.merge_words(self.allowed.astype(float), members) > 0,
            token_ids=[],
            special=[self.special[group[0]] for group in members],
            token_words=list(range(len(members))),
            word_labels=labels,
        )

    def _layer_places(self, layers: int | Iterable[int] | None) -> list[int]:
        """Where the wanted layers stand in the arrays."""
        if layers is None:
            return list(range(len(self.layers)))
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
        return sorted(places)

    def _select(self: M, indices: Mapping[str, NDArray[np.intp]]) -> M:
        """Some places along named axes, of every array and label."""

        def kept(labels: list[Any], axis: str) -> list[Any]:
            return [labels[i] for i in indices[axis]] if labels and axis in indices else labels

        words = self.token_words
        return replace(
            self._change(lambda array, axes: take(array, axes, indices)),
            layers=kept(self.layers, "layer"),
            allowed=take(self.allowed, ("layer", "target", "source"), indices),
            raw_tokens=kept(self.raw_tokens, "target"),
            token_ids=kept(self.token_ids, "target"),
            special=kept(self.special, "target"),
            token_words=None if words is None else kept(words, "target"),
        )

    def _change(self: M, change: Callable[[NDArray[Any], Axes], NDArray[Any]]) -> M:
        """The same maps with every array changed; labels are the caller's to change."""
        changed: dict[str, Any] = {
            group: {name: change(array, axes_of(group, name)) for name, array in arrays.items()}
            for group, arrays in self.groups.items()
        }
        return replace(self, correlations=None, **changed)

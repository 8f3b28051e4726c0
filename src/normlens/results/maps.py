"""The maps that a lens returns: arrays of one text with axes, tokens and layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import figures
from normlens.errors import InputError, check_choice, require
from normlens.measures import maps as measures
from normlens.measures.ranks import spearman, widened
from normlens.options import IN_WORDS, INPUT, LAYER, cost_in_words
from normlens.results.axes import (
    BY_SCOPE,
    GROUPS,
    Allowed,
    LayerHeadTargetSource,
    LayerTarget,
    LayerTargetSource,
    PerLayer,
    Record,
    Routing,
    TargetSource,
    TokenAxis,
    axes_of,
    check_scopes,
    check_shape,
    dataset,
    places_of,
    take,
)
from normlens.results.rolled import pair_rollout, scope_rollout
from normlens.results.store import TokenResult
from normlens.results.words import OTHER_SEQUENCE, OWN_SEQUENCE, STACKS, map_rows
from normlens.scopes import (
    chains,
    components_of,
    feed_forward_pairs,
    holds,
    is_among,
    layers_in_words,
    resolve,
    resolve_all,
)

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr
    from typing_extensions import Unpack

    from normlens.viewer.notebook import Notebook
    from normlens.viewer.pages import ViewerState

#: What single heads are shown by, whichever scopes were asked for.
_OF_HEADS = {"heads/ATTN-W", "heads/ATTN-N", "heads/CROSS-W", "heads/CROSS-N"}


@dataclass(frozen=True, eq=False)
class Correlations(Record):
    """Spearman's ρ between all scopes, over the pairs that attention allows."""

    scopes: list[str]
    rho: NDArray[np.float64]  # [layer, scope, scope]; NaN where a layer lacks a scope


@dataclass(frozen=True, repr=False, eq=False)
class Maps(TokenResult):
    """Attribution maps of one sequence; ``maps[scope]`` is an array [layer, target, source].

    Rows are outputs (targets), columns inputs (sources); layers count from 0. Iterating gives the
    scopes, as with a dictionary. Where a model's layers differ, ``maps[scope]`` covers the layers
    ``maps.layers_of(scope)``, and ``maps.at(scope, layer)`` is the map of one of them.
    """

    arrays: Mapping[str, LayerTargetSource]  # by scope
    layers: list[int]  # indices of the model's layers, from 0
    allowed: Allowed  # [layer, target, source], pairs that attention allows
    mixing: Mapping[str, LayerTarget] = field(default_factory=dict)  # by scope
    heads: Mapping[str, LayerHeadTargetSource] = field(default_factory=dict)  # by scope
    standard_error: Mapping[str, LayerTargetSource] = field(
        default_factory=dict
    )  # of each norm; Shapley only
    #: of the feed-forward block, on request; `normlens.results.axes` names them with their axes
    statistics: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    #: where the lens was asked to rank the maps itself
    correlations: Correlations | None = field(default=None, compare=False)
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

    def __post_init__(self) -> None:
        for group, arrays in self.groups.items():
            # Shapes of arrays in a file need no check of their numbers.
            for name, array in getattr(arrays, "data", arrays).items():
                sizes = {**self._sizes, "layer": len(self.covered(group, name))}
                check_shape(f"{group}/{name}", array.shape, axes_of(group, name), sizes)
                counts = (name == "special_dimensions") == (array.dtype.kind == "i")
                require(counts, f"'{group}/{name}' holds {array.dtype} values")

    @property
    def _sizes(self) -> dict[str, int]:
        sources = self.raw_tokens if self.source_axis is None else self.source_axis
        sizes = len(self.layers), len(self.raw_tokens), len(sources)
        return dict(zip(BY_SCOPE["arrays"], sizes, strict=True))

    def _check(self) -> None:
        """Raise unless the fields are those of maps that a lens could have made."""
        super()._check()
        check_shape("allowed", self.allowed.shape, BY_SCOPE["arrays"], self._sizes)
        if self.same_token is not None:
            check_shape("same_token", self.same_token.shape, ("target", "source"), self._sizes)
        held = {f"{group}/{name}" for group, arrays in self.groups.items() for name in arrays}
        for layers in (self.layers, *self.coverage.values()):
            in_order = layers and layers == sorted(set(layers))
            require(in_order, f"{layers} are not layers in order")
        for name, layers in self.coverage.items():
            some = name in held and set(layers) < set(self.layers)
            require(some, f"'coverage' of {name!r} is not some of the file's layers")
        check_scopes(self.arrays)
        known = {f"{group}/{name}" for group in BY_SCOPE for name in self.arrays} | _OF_HEADS
        for name in held - known:
            expected = name.startswith("statistics/")
            require(expected, f"{name!r} is no array of maps with these scopes")
        require(not self.completeness < 0, f"'completeness' is {self.completeness}")
        if self.routing is not None:
            here = set(self.routing.layers) <= set(self.layers)
            require(here, "'routing' is not of the file's layers")
        require(
            self.encoder is None or (self.encoder.stack, self.stack) == STACKS,
            "maps beside each other are those of an encoder and of a decoder; "
            "provenance['stack'] says which one maps are",
        )

    # Whose contributions these are ----------------------------------------------------------------

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

    # Tokens ---------------------------------------------------------------------------------------

    @property
    def targets(self) -> TokenAxis:
        """The tokens of the rows."""
        return self.axis

    @property
    def sources(self) -> TokenAxis:
        """The tokens of the columns."""
        return self.targets if self.source_axis is None else self.source_axis

    @property
    def source_tokens(self) -> list[str]:
        """The sources as people read them."""
        return self.sources.tokens

    @cached_property
    def is_same_token(self) -> NDArray[np.bool_]:
        """[target, source], whether both are the same token (i = j)."""
        if self.same_token is not None:
            return self.same_token
        diagonal = np.eye(len(self.targets), len(self.sources), dtype=bool)
        return diagonal & (self.source_axis is None)

    # Arrays ---------------------------------------------------------------------------------------

    @property
    def groups(self) -> dict[str, Mapping[str, NDArray[Any]]]:
        """Every group of arrays by its name; `normlens.results.axes` has their axes."""
        return dict(zip(GROUPS, attrgetter(*GROUPS)(self), strict=True))

    @property
    def scopes(self) -> list[str]:
        """The scopes at hand, in the order of the layer's components."""
        return list(self.arrays)

    def __getitem__(self, scope: str) -> LayerTargetSource:
        return self.arrays[resolve(scope, self.scopes)]

    def __contains__(self, scope: str) -> bool:
        return is_among(scope, self.scopes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.scopes)

    def __len__(self) -> int:
        return len(self.arrays)

    # Layers ---------------------------------------------------------------------------------------

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
        return self._filled(self.groups[group][name], self.covered(group, name))

    def _filled(self, array: NDArray[Any], covered: list[int]) -> NDArray[Any]:
        """Entries of the layers `covered`, and NaN for the other ones of `layers`."""
        if covered == self.layers:
            return array
        shape, dtype = (len(self.layers), *array.shape[1:]), np.result_type(array, np.float16)
        whole = np.full(shape, np.nan, dtype)  # whole numbers become float64
        whole[places_of(covered, self.layers)] = array
        return whole

    def wanted_layers(self, layers: int | Iterable[int] | None) -> list[int]:
        """Layers of the model, in order; negative ones count from the end of those at hand."""
        if layers is None:
            return list(self.layers)
        wanted = list(layers) if isinstance(layers, Iterable) else [layers]
        require(wanted, "no layer is chosen; leave `layers` out to take all")
        chosen, from_end = set(), range(-len(self.layers), 0)
        for layer in wanted:
            known = self.layers[int(layer)] if layer in from_end else layer
            if known not in self.layers:
                raise InputError(
                    f"layer {layer!r} is not among these maps' layers (indices from 0): "
                    f"{', '.join(map(str, self.layers))}"
                )
            chosen.add(known)
        return [layer for layer in self.layers if layer in chosen]

    def lacking(self, scope: str, layers: Iterable[int]) -> InputError:
        """The error for layers without a scope, which names those that have it."""
        return InputError(
            f"no map of {resolve(scope, self.scopes)} in {layers_in_words(layers)}; these maps "
            f"have that scope in {layers_in_words(self.layers_of(scope))}"
        )

    # The sequences that sources belong to ---------------------------------------------------------

    @property
    def decoder(self) -> Maps:
        """The same maps without the encoder's, which `encoder` has."""
        return replace(self, encoder=None)

    @property
    def source_sequences(self) -> list[str]:
        """The sequence of each source: "decoder", the targets' own, or "encoder", the other one.

        Empty where all sources are the targets.
        """
        if self.source_axis is None:
            return []
        columns = self.is_same_token.T
        return [OWN_SEQUENCE if column.any() else OTHER_SEQUENCE for column in columns]

    @property
    def table_sequences(self) -> list[str]:
        """The sequence of each source in tables: of an encoder–decoder's maps alone, else empty."""
        if not self.stack:
            return []
        return self.source_sequences or [self.stack] * len(self.sources)

    def pairs_of(self, *scopes: str) -> Allowed:
        """[layer, target, source], the allowed pairs that any of these scopes has a part of.

        The targets' tokens are no sources of the cross-attention alone, nor is the other sequence
        one of what stands before it: zeros that maps share there say nothing.
        """
        if len(set(self.source_sequences)) < 2:
            return self.allowed
        own, crossed = (any(flags) for flags in zip(*map(holds, scopes), strict=True))
        is_own = np.array([name == OWN_SEQUENCE for name in self.source_sequences])
        # On the way from the model's input, earlier layers have brought the other sequence.
        behind = [crossed or (self.origin == INPUT and layer > 0) for layer in self.layers]
        other = np.array(behind)[:, None, None]
        return self.allowed & np.where(is_own, own, other)

    # Choosing layers, scopes and tokens, and merging tokens into words ----------------------------

    def choose(
        self,
        layers: int | Iterable[int] | None = None,
        scopes: str | Iterable[str] | None = None,
    ) -> Maps:
        """The same maps with some of their layers and scopes only, in their order.

        Layers are the model's, from 0; negative ones count from the end of those at hand. Where
        layers differ, a scope covers those of them that have it; a scope that is asked for by name
        and that none of them has is an error. An encoder's maps beside these stay as they are.
        """
        wanted = self.wanted_layers(layers)
        names = resolve_all(scopes, self.scopes)
        require(names, "no scope is chosen; leave `scopes` out to take all")
        for name in [] if scopes is None or scopes == "all" else names:
            if not set(wanted) & set(self.layers_of(name)):
                raise self.lacking(name, wanted)
        kept = {f"{group}/{name}" for group in BY_SCOPE for name in names}
        if any(name.endswith("CROSS-N") for name in names):
            kept.add("heads/CROSS-N")  # what single heads of that attention are called
        return self._part(wanted, kept=kept)

    def sources_of(self, sequence: str) -> Maps:
        """The same maps with the columns of one sequence only: "encoder" or "decoder"."""
        check_choice(sequence, (OTHER_SEQUENCE, OWN_SEQUENCE), "sequence")
        sequences = self.source_sequences
        if sequence not in sequences:
            whose = "the encoder's" if sequences else "the targets' own"
            raise InputError(f"the sources of these maps are one sequence, {whose}")
        places = [place for place, name in enumerate(sequences) if name == sequence]
        return self._part(sources=places)

    def without_special_tokens(self) -> Maps:
        """The same maps without rows and columns of special tokens ([CLS], [SEP], <s>, …)."""
        if not self.targets.ordinary or not self.sources.ordinary:
            raise InputError("every token of this sequence is a special token")
        encoder = None if self.encoder is None else self.encoder.without_special_tokens()
        # Means over all tokens and special dimensions would no longer be those of what is left.
        left = replace(self, statistics={}, encoder=encoder)
        return left._part(targets=self.targets.ordinary, sources=self.sources.ordinary)

    def words(self) -> Maps:
        """Word-level maps: columns of a word summed, rows averaged. Special tokens stay."""
        targets, sources = self.targets.word_groups(), self.sources.word_groups()
        merged = partial(measures.merge_words, targets=targets, sources=sources)
        same = self.same_token
        # Norms of sums, spreads, statistics and experts of tokens say nothing of words.
        return replace(
            self,
            mixing={},
            standard_error={},
            statistics={},
            arrays={name: merged(array) for name, array in self.arrays.items()},
            heads={name: merged(array) for name, array in self.heads.items()},
            allowed=merged(self.allowed.astype(float)) > 0,
            same_token=None if same is None else merged(same.astype(float)) > 0,
            **self.targets.words().labels,
            source_axis=None if self.source_axis is None else self.source_axis.words(),
            correlations=None,
            encoder=None if self.encoder is None else self.encoder.words(),
            routing=None,
        )

    def _part(
        self,
        layers: list[int] | None = None,
        targets: list[int] | None = None,
        sources: list[int] | None = None,
        kept: Collection[str] | None = None,
    ) -> Maps:
        """Some of the layers, rows, columns and arrays by scope ("heads/FF-N"); None takes all.

        A scope that none of the layers has is left out, and so is a layer that has none of the
        arrays.
        """
        layers = self.layers if layers is None else layers
        indices = {"target": targets, "source": sources}
        groups: dict[str, Any] = {group: {} for group in GROUPS}
        coverage: dict[str, list[int]] = {}
        for group, arrays in self.groups.items():
            for name in arrays:
                key, covered = f"{group}/{name}", self.covered(group, name)
                here = [layer for layer in layers if layer in covered]
                if here and (kept is None or group == "statistics" or key in kept):
                    indices["layer"] = places_of(here, covered)
                    # Nothing else is read of a file.
                    groups[group][name] = take(arrays[name], axes_of(group, name), indices)
                    coverage[key] = here
        left = [layer for layer in layers if any(layer in here for here in coverage.values())]
        indices["layer"] = places_of(left, self.layers)
        same, axis, routing, grid = self.same_token, self.source_axis, self.routing, self.grid
        if targets is not None:
            groups |= self.targets.take(targets).labels
            routing = routing and routing.of_tokens(targets)
            grid = grid and grid.among(targets)
        return replace(
            self,
            **groups,
            correlations=None,
            layers=left,
            allowed=take(self.allowed, BY_SCOPE["arrays"], indices),
            same_token=None if same is None else take(same, ("target", "source"), indices),
            coverage={key: here for key, here in coverage.items() if here != left},
            source_axis=axis if axis is None or sources is None else axis.take(sources),
            routing=routing and routing.of_layers(left),
            grid=grid,
        )

    # Measures of the papers; their formulas are in `normlens.measures` ----------------------------

    def similarity(self, a: str, b: str) -> PerLayer:
        """Spearman's ρ between two scopes, per layer, over the pairs that attention allows.

        NaN in layers that lack one of them.
        """
        return self._per_layer(spearman, a, b)

    def amplification(self, before: str, after: str, axis: str = "source") -> LayerTargetSource:
        """FF-amp: how much `after` strengthens each pair beside `before`.

        Each source's column is first made to sum to 1 (`axis` "target": each row; "none": neither).
        NaN in layers that lack one of them.
        """
        return self._per_layer(
            lambda first, last, _: measures.amplification(first, last, axis), before, after
        )

    def _per_layer(self, measure: Callable[[Any, Any, Any], Any], a: str, b: str) -> Any:
        """A measure of two scopes for each of `layers`, NaN where a layer lacks one of them."""
        names = resolve(a, self.scopes), resolve(b, self.scopes)
        layers = self.layers_of(*names)
        require(layers, f"no layer of these maps has both {a} and {b}; its layers differ")
        first, last = (self.arrays[name][places_of(layers, self.layers_of(name))] for name in names)
        allowed = self.pairs_of(*names)[places_of(layers, self.layers)]
        return self._filled(measure(first, last, allowed), layers)

    def mixing_ratio(self, scope: str) -> LayerTarget:
        """‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖).

        Kobayashi et al. 2021, section 4: the norm of the other tokens' sum, not a sum of norms.
        """
        name = resolve(scope, self.scopes)
        if name not in self.mixing:
            raise InputError(
                "mixing ratios belong to tokens; take them before words() merges tokens or "
                "without_special_tokens() drops some"
            )
        return self.mixing[name]

    def top_pairs(
        self,
        scope: str | None = None,
        *,
        before: str | None = None,
        count: int = 5,
        axis: str = "source",
    ) -> pd.DataFrame:
        """The pairs of different tokens with the largest values, `count` per layer, best first.

        With `before` the values are FF-amp from that scope to `scope`; without either scope, those
        of the feed-forward block. Of an encoder–decoder the column `source_sequence` says whose
        token a source is; `source` counts all columns of the map.
        """
        import pandas as pd

        if scope is None:
            before, scope = self.feed_forward_pair()
        if before is None:
            measured, values = [scope], self.over_layers("arrays", resolve(scope, self.scopes))
        else:
            measured, values = [before, scope], self.amplification(before, scope, axis)
        tokens, sources, labels = self.tokens, self.source_tokens, self.table_sequences
        columns = ["layer", "source", "source_token", "target", "target_token", "value"]
        rows = []
        for layer in self.layers_of(*measured):
            place = self.layers.index(layer)
            pairs, _ = measures.strongest_pairs(
                values[place], self.allowed[place], count, self.is_same_token
            )
            rows += [(layer, j, sources[j], i, tokens[i], value) for i, j, value in pairs]
        table = pd.DataFrame(rows, columns=columns)
        if labels:
            table.insert(2, "source_sequence", [labels[place] for place in table["source"]])
        return table

    def feed_forward_pairs(self) -> list[tuple[str, str]]:
        """The scopes before and behind the feed-forward block of each kind of layer.

        A block beside the attention reads its own token alone and amplifies no pair.
        """
        beside = "∥" in self.provenance.get("components", "")
        return [
            (before, after)
            for before, after in feed_forward_pairs(self.scopes)
            if not beside or "RES" in components_of(before)
        ]

    def feed_forward_pair(self) -> tuple[str, str]:
        """The scopes before and behind the feed-forward block, where all layers have the same."""
        pairs = self.feed_forward_pairs()
        if len(pairs) > 1:
            listed = " and ".join(f"{before} → {after}" for before, after in pairs)
            if len(chains(self.scopes)) == 1:
                raise InputError(
                    f"each layer has several feed-forward blocks ({listed}); name two scopes"
                )
            raise InputError(f"these layers differ ({listed}); name two scopes, or choose layers")
        if not pairs:
            raise InputError(
                "these maps have no scopes just before and behind a feed-forward block; name two "
                f"of {', '.join(self.scopes)}"
            )
        return pairs[0]

    def rollout(self, scope: str) -> Maps:
        """``R_ℓ = Â_ℓ R_{ℓ−1}``: a scope's maps multiplied from layer 0 up to each layer.

        Sources are then the model's input tokens, as far as a product of layers can tell. Abnar &
        Zuidema's ``Â = ½ W̄ + ½ I`` for "ATTN-W"; for norms rows that sum to 1, mixed with the
        identity alike where the scope has no residual connection (`normlens.rollouts` has more).
        An encoder–decoder's goes through both stacks; its scope stands behind the attention between
        them and the residual connection that follows.
        """
        return pair_rollout(self, scope) if self.stack == "decoder" else scope_rollout(self, scope)

    # Taking away ----------------------------------------------------------------------------------

    def to_numpy(self) -> dict[str, LayerTargetSource]:
        """Every map by its scope."""
        return dict(self.arrays)

    def to_pandas(self) -> pd.DataFrame:
        """One row per scope, layer (from 0; those that have the scope), target and source.

        Of an encoder–decoder both stacks, the encoder first: `stack` says which, and
        `source_sequence` whose token a source is. `source` counts the columns of the stack's maps.
        """
        return map_rows(self, "arrays")

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named and its tokens and layers as coordinates.

        A map is called as its scope; arrays of other groups are called ``mixing/ATTN-N`` and so on.
        All share the coordinate `layer`: values are NaN in layers that lack a scope. An encoder's
        beside these are called ``encoder/ATTN-N``, with axes ``encoder_layer`` and so on.
        """
        variables: dict[str, Any] = {}
        coordinates: dict[str, Any] = {}
        for maps, of, slash in ((self, "", ""), (self.encoder, "encoder_", "encoder/")):
            if maps is None:
                continue
            layers, targets, sources = axes = [f"{of}{axis}" for axis in BY_SCOPE["arrays"]]
            variables[f"{slash}allowed"] = axes, maps.allowed
            for group, arrays in maps.groups.items():
                for name in arrays:
                    label = slash + (name if group == "arrays" else f"{group}/{name}")
                    named = [f"{of}{axis}" for axis in axes_of(group, name)]
                    variables[label] = named, widened(maps.over_layers(group, name))
            coordinates[layers] = maps.layers
            coordinates[f"{targets}_token"] = targets, maps.tokens
            coordinates[f"{sources}_token"] = sources, maps.source_tokens
            if maps.table_sequences:
                coordinates[f"{sources}_sequence"] = sources, maps.table_sequences
        stack = ["stack"] if self.stack else []
        return dataset(self, variables, coordinates, "completeness", *stack)

    def to_bertviz(
        self, scope: str = "ATTN-N"
    ) -> tuple[torch.Tensor, ...] | dict[str, tuple[torch.Tensor, ...] | list[str]]:
        """What ``bertviz.head_view(attention, tokens)`` takes: per layer a (1, heads, n, n) tensor.

        Head-level maps if the lens was asked for them, else the scope's map as a single head; of
        the layers that have the scope. Of an encoder–decoder ``head_view(**maps.to_bertviz())``:
        each stack's attention to itself, the attention between them, and the tokens of both.
        """
        encoder, sequences = self.encoder, np.array(self.source_sequences, dtype=object)
        if encoder is None and (not self.stack or not sequences.size):
            return self._attention(scope)
        own, other = sequences == OWN_SEQUENCE, sequences == OTHER_SEQUENCE
        keywords: dict[str, tuple[torch.Tensor, ...] | list[str]] = {}
        if encoder is not None and scope in encoder:
            keywords["encoder_attention"] = encoder._attention(scope)
        if scope in self or not keywords:
            name = resolve(scope, self.scopes)  # raises for a scope of neither stack
            # The weights and the norms of one attention go together with those of the other.
            beside = {"ATTN-W": "CROSS-W", "ATTN-N": "CROSS-N"}.get(name, name)
            beside = resolve(beside, self.scopes) if beside in self else name
            if holds(name)[0] and own.any():
                keywords["decoder_attention"] = self._attention(name, own)
            if holds(beside)[1] and other.any():
                keywords["cross_attention"] = self._attention(beside, other)
            require(keywords, f"{name} has no parts of the sources that these maps still have")
        others = np.array(self.source_tokens, dtype=object)[other].tolist()
        keywords["encoder_tokens"] = others if encoder is None else encoder.tokens
        keywords["decoder_tokens"] = self.tokens
        return keywords

    def _attention(
        self, scope: str, columns: NDArray[np.bool_] | slice = slice(None)
    ) -> tuple[torch.Tensor, ...]:
        """A tensor per layer, of single heads where there are some; `columns` chooses sources."""
        import torch

        name = resolve(scope, self.scopes)
        of_heads = "CROSS-N" if name.endswith("CROSS-N") else name
        stacked = self.heads[of_heads] if of_heads in self.heads else self.arrays[name][:, None]
        layers = (np.ascontiguousarray(widened(layer)) for layer in stacked[..., columns])
        return tuple(torch.from_numpy(layer)[None] for layer in layers)

    # Showing --------------------------------------------------------------------------------------

    def to_html(
        self,
        path: str | Path,
        *,
        precision: int | None = None,
        largest: float | None = 60.0,
        overwrite: bool | None = None,
    ) -> Path:
        """Write the viewer with these maps as one HTML file, which needs no network.

        `precision` (bits per value) and `largest` (MB) as in `normlens.viewer.to_html`.
        """
        from normlens.viewer import to_html

        return to_html(self, path, precision=precision, largest=largest, overwrite=overwrite)

    def show(self, *others: Maps, **state: Unpack[ViewerState]) -> object:
        """The interactive viewer for a notebook cell; `others` are maps to compare with.

        ``maps.show(layer=3, scope="FF")`` opens it there.
        """
        from normlens.viewer.notebook import maps_notebook

        return maps_notebook([self, *others], state).show()

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        from normlens.viewer.notebook import maps_notebook

        return maps_notebook(self, state)

    # Pictures: functions of the result; `ax` draws into axes of yours instead of a new figure.
    plot = figures.plot_layer
    plot_overview = figures.plot_overview
    plot_heads = figures.plot_heads
    plot_patches = figures.plot_patches
    plot_similarity = figures.plot_similarity
    plot_amplification = figures.plot_amplification

    def __repr__(self) -> str:
        beside = "" if self.encoder is None else f"; encoder: {self.encoder._counts}"
        said = [self.stack, self._counts, self.origin_in_words]
        return (
            f"Maps({self.provenance.get('model', '?')}: {', '.join(filter(None, said))}, "
            f"completeness {self.completeness:.1e}"
            f"{cost_in_words(str(self.provenance.get('dtype')))}{beside})"
        )

    @property
    def _counts(self) -> str:
        tokens = f"{len(self.targets)} tokens"
        if self.source_axis is not None:
            tokens = f"{len(self.targets)} targets of {len(self.sources)} sources"
        return f"{tokens}, {len(self.layers)} layers, {len(self.scopes)} scopes"

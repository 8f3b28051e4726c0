"""The maps that a lens returns: what they measure, show and become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from normlens import measures
from normlens.errors import InputError
from normlens.results import conversions, store
from normlens.results import conversions as bertviz
from normlens.results.axes import LayerTarget, LayerTargetSource, PerLayer
from normlens.results.labelled import ChoosableMaps
from normlens.results.rolled import pair_rollout, scope_rollout
from normlens.results.routing import Token
from normlens.scopes import chains, components_of, feed_forward_pairs, resolve

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure
    from typing_extensions import Unpack

    from normlens.viewer.pages import ViewerState


# What maps measure: similarity, amplification, mixing, the strongest pairs.


class MeasurableMaps(ChoosableMaps):
    """Maps with the papers' measures, whose formulas are in `normlens.measures`.

    A measure of two scopes has one entry for each of `layers`.
    """

    def similarity(self, a: str, b: str) -> PerLayer:
        """Spearman's ρ between two scopes, per layer, over the pairs that attention allows.

        NaN in layers that lack one of them.
        """
        return self._per_layer(measures.spearman, a, b)

    def amplification(self, before: str, after: str, axis: str = "source") -> LayerTargetSource:
        """FF-amp: how much `after` strengthens each pair beside `before`.

        Each source's column is first made to sum to 1 (`axis` "target": each row; "none": neither).
        NaN in layers that lack one of them.
        """

        def measure(first: Any, last: Any, _: Any) -> Any:
            return measures.amplification(first, last, axis)

        return self._per_layer(measure, before, after)

    def _per_layer(self, measure: Callable[[Any, Any, Any], Any], a: str, b: str) -> Any:
        """A measure of two scopes for each of `layers`, NaN where a layer lacks one of them."""
        layers = self.layers_of(a, b)
        allowed = self.pairs_of(resolve(a, self.scopes), resolve(b, self.scopes))
        if layers == self.layers:
            return measure(self[a], self[b], allowed)
        if not layers:
            raise InputError(f"no layer of these maps has both {a} and {b}; its layers differ")
        places = [self.layers.index(layer) for layer in layers]
        first, last = (np.stack([self.at(name, layer) for layer in layers]) for name in (a, b))
        values = measure(first, last, allowed[places])
        whole = np.full((len(self.layers), *values.shape[1:]), np.nan, dtype=values.dtype)
        whole[places] = values
        return whole

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
        measured = [scope] if before is None else [before, scope]
        values = self.over_layers("arrays", resolve(scope, self.scopes))
        if before is not None:
            values = self.amplification(before, scope, axis)
        rows = []
        for layer in self.layers_of(*measured):
            place = self.layers.index(layer)
            pairs, _ = measures.strongest_pairs(
                values[place], self.allowed[place], count, self.is_same_token
            )
            rows += [
                (layer, pair.source, self.source_tokens[pair.source], pair.target,
                 self.tokens[pair.target], pair.value)
                for pair in pairs
            ]  # fmt: skip
        columns = ["layer", "source", "source_token", "target", "target_token", "value"]
        table = pd.DataFrame(rows, columns=columns)
        if labels := self.table_sequences:
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


# Maps that draw themselves; the pictures are in `normlens.figures`.


class PlottableMaps(MeasurableMaps):
    """Maps with their pictures; `ax` draws into axes of yours instead of a new figure."""

    def plot(
        self,
        layer: int = 0,
        scopes: str | Iterable[str] | None = None,
        *,
        scale: str = "map",
        normalise: str = "none",
        colour: str = "clipped",
        cmap: str = "viridis",
        diagonal: bool = True,
        max_label: int = 14,
        sources: str | None = None,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """The scopes of one layer side by side; see `normlens.figures.plot_layer`."""
        from normlens.figures import plot_layer

        return plot_layer(
            cast("Maps", self),
            layer,
            scopes,
            scale=scale,
            normalise=normalise,
            colour=colour,
            cmap=cmap,
            diagonal=diagonal,
            max_label=max_label,
            sources=sources,
            ax=ax,
        )

    def plot_overview(
        self,
        layers: int | Iterable[int] | None = None,
        scopes: str | Iterable[str] | None = None,
        *,
        scale: str = "map",
        normalise: str = "none",
        colour: str = "clipped",
        cmap: str = "viridis",
        diagonal: bool = True,
        max_label: int = 10,
        sources: str | None = None,
        stack: str | None = None,
    ) -> Figure:
        """Layers and scopes as small maps; see `normlens.figures.plot_overview`."""
        from normlens.figures import plot_overview

        return plot_overview(
            cast("Maps", self),
            layers,
            scopes,
            scale=scale,
            normalise=normalise,
            colour=colour,
            cmap=cmap,
            diagonal=diagonal,
            max_label=max_label,
            sources=sources,
            stack=stack,
        )

    def plot_heads(
        self,
        layer: int | Iterable[int] | None = 0,
        scope: str = "ATTN-N",
        heads: int | Iterable[int] | None = None,
        *,
        scale: str = "map",
        normalise: str = "none",
        colour: str = "clipped",
        cmap: str = "viridis",
        diagonal: bool = True,
        max_label: int = 14,
        sources: str | None = None,
    ) -> Figure:
        """The heads of one layer, or of several, as small maps; see `normlens.figures.plot_heads`.

        The maps must have been computed with ``heads=True``.
        """
        from normlens.figures import plot_heads

        return plot_heads(
            cast("Maps", self),
            layer,
            scope,
            heads,
            scale=scale,
            normalise=normalise,
            colour=colour,
            cmap=cmap,
            diagonal=diagonal,
            max_label=max_label,
            sources=sources,
        )

    def plot_patches(
        self,
        layers: int | Iterable[int] | None = None,
        scope: str | None = None,
        *,
        target: Token | None = None,
        source: Token | None = None,
        scale: str = "map",
        colour: str = "clipped",
        cmap: str = "viridis",
        diagonal: bool = True,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """A row or a column of a map over the picture; see `normlens.figures.plot_patches`."""
        from normlens.figures import plot_patches

        return plot_patches(
            cast("Maps", self),
            layers,
            scope,
            target=target,
            source=source,
            scale=scale,
            colour=colour,
            cmap=cmap,
            diagonal=diagonal,
            ax=ax,
        )

    def plot_similarity(self, *, stack: str | None = None, ax: PlotAxes | None = None) -> Figure:
        """How similar each scope is to the one before it, layer by layer."""
        from normlens.figures import plot_similarity

        return plot_similarity(cast("Maps", self), stack=stack, ax=ax)

    def plot_amplification(
        self,
        before: str | None = None,
        after: str | None = None,
        layer: int = 0,
        *,
        axis: str = "source",
        top: int = 5,
        diagonal: bool = False,
        cmap: str = "RdBu_r",
        max_label: int = 14,
        sources: str | None = None,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """What `after` strengthens and weakens beside `before`; by default the feed-forward block.

        See `normlens.figures.plot_amplification`.
        """
        from normlens.figures import plot_amplification

        if before is None or after is None:
            before, after = self.feed_forward_pair()
        return plot_amplification(
            cast("Maps", self),
            before,
            after,
            layer,
            axis=axis,
            top=top,
            diagonal=diagonal,
            cmap=cmap,
            max_label=max_label,
            sources=sources,
            ax=ax,
        )


# The labelled maps that a lens gives: what they become and show.


class Maps(PlottableMaps):
    """Attribution maps of one sequence; ``maps[scope]`` is an array [layer, target, source].

    Rows are outputs (targets), columns inputs (sources); layers count from 0. Iterating gives the
    scopes, as with a dictionary. Where a model's layers differ, ``maps[scope]`` covers the layers
    ``maps.layers_of(scope)``, and ``maps.at(scope, layer)`` is the map of one of them.
    """

    def rollout(self, scope: str) -> Maps:
        """``R_ℓ = Â_ℓ R_{ℓ−1}``: a scope's maps multiplied from layer 0 up to each layer.

        Sources are then the model's input tokens, as far as a product of layers can tell. Abnar &
        Zuidema's ``Â = ½ W̄ + ½ I`` for "ATTN-W"; for norms rows that sum to 1, mixed with the
        identity alike where the scope has no residual connection (`normlens.rollouts` has more).
        An encoder–decoder's goes through both stacks; its scope stands behind the attention between
        them and the residual connection that follows.
        """
        return pair_rollout(self, scope) if self.stack == "decoder" else scope_rollout(self, scope)

    # Taking away ---------------------------------------------------------------------------------

    def to_numpy(self) -> dict[str, LayerTargetSource]:
        """Every map by its scope."""
        return dict(self.arrays)

    def to_pandas(self) -> pd.DataFrame:
        """One row per scope, layer (from 0; those that have the scope), target and source.

        Of an encoder–decoder both stacks, with the columns `stack` and `source_sequence`.
        """
        return conversions.to_pandas(self)

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named and its tokens and layers as coordinates.

        A map is called as its scope; arrays of other groups are called ``mixing/ATTN-N`` and so on.
        All share the coordinate `layer`: values are NaN in layers that lack a scope. An encoder's
        beside these are called ``encoder/ATTN-N``, with axes ``encoder_layer`` and so on.
        """
        return conversions.to_xarray(self)

    def to_bertviz(
        self, scope: str = "ATTN-N"
    ) -> tuple[torch.Tensor, ...] | bertviz.HeadViewKeywords:
        """What ``bertviz.head_view(attention, tokens)`` takes: per layer a (1, heads, n, n) tensor.

        Head-level maps if the lens was asked for them, else the scope's map as a single head; of
        the layers that have the scope. Of an encoder–decoder ``head_view(**maps.to_bertviz())``.
        """
        return bertviz.to_bertviz(self, scope)

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write a safetensors file with JSON metadata; `Maps.load` reads it.

        The name ends in .safetensors. A file that NormLens wrote is replaced; any other stays
        unless `overwrite` is true. With `overwrite` false every file stays.
        """
        return store.save(self, path, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path, *, mapped: bool = False) -> Maps:
        """Read maps that `save` wrote; `normlens.open` reads other results too.

        With `mapped` arrays stay in the file until they are used; it must not change meanwhile.
        """
        return store.open_as(Maps, path, mapped=mapped)

    # Showing -------------------------------------------------------------------------------------

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
        from normlens.viewer.notebook import show

        return show([self, *others], **state)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.notebook import mimebundle

        return mimebundle(self, **options)

"""The labelled maps that a lens gives: what they become and show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.results import bertviz, conversions, store
from normlens.results.axes import LayerTargetSource
from normlens.results.labelled import Correlations
from normlens.results.plotting import PlottableMaps
from normlens.results.rolled import scope_rollout
from normlens.results.rolled_pairs import pair_rollout

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr
    from typing_extensions import Unpack

    from normlens.viewer.state import ViewerState

__all__ = ["Correlations", "Maps"]


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
        from normlens.viewer.widget import show

        return show([self, *others], **state)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.widget import mimebundle

        return mimebundle(self, **options)

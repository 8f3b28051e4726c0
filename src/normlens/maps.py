"""The labelled maps that a lens gives: what they measure, become and show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import analysis, store
from normlens.axes import Axes, LayerTarget, LayerTargetSource, PerLayer, axes_of
from normlens.errors import InputError, MapsFileError, MissingDependencyError
from normlens.labelled import Correlations, LabelledMaps
from normlens.scopes import feed_forward_pair, resolve

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray as xr
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure

__all__ = ["Correlations", "Maps"]


class Maps(LabelledMaps):
    """Attribution maps of one sequence; ``maps[scope]`` is an array [layer, target, source].

    Rows are outputs (targets), columns inputs (sources); layers count from 0. Iterating gives the
    scopes, as with a dictionary.
    """

    # Measuring ----------------------------------------------------------------------------------

    def similarity(self, a: str, b: str) -> PerLayer:
        """Spearman's ρ between two scopes, per layer, over the pairs that attention allows."""
        return analysis.spearman(self[a], self[b], self.allowed)

    def amplification(self, before: str, after: str, axis: str = "source") -> LayerTargetSource:
        """FF-amp: how much `after` strengthens each pair beside `before`.

        Each source's column is first made to sum to 1 (`axis` "target": each row; "none": neither).
        """
        return analysis.amplification(self[before], self[after], axis)

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
        of the feed-forward block.
        """
        import pandas as pd

        if scope is None:
            before, scope = self.feed_forward_pair()
        values = self[scope] if before is None else self.amplification(before, scope, axis)
        rows = []
        for position, layer in enumerate(self.layers):
            pairs, _ = analysis.strongest_pairs(values[position], self.allowed[position], count)
            rows += [
                (layer, pair.source, self.tokens[pair.source], pair.target,
                 self.tokens[pair.target], pair.value)
                for pair in pairs
            ]  # fmt: skip
        columns = ["layer", "source", "source_token", "target", "target_token", "value"]
        return pd.DataFrame(rows, columns=columns)

    def feed_forward_pair(self) -> tuple[str, str]:
        """The scopes before and behind the feed-forward block."""
        pair = feed_forward_pair(self.scopes)
        if pair is None or "∥" in self.provenance.get("components", ""):
            raise InputError(
                "these maps have no scopes just before and behind a feed-forward block; name two "
                f"of {', '.join(self.scopes)}"
            )
        return pair

    # Taking away ---------------------------------------------------------------------------------

    def to_numpy(self) -> dict[str, LayerTargetSource]:
        """Every map by its scope."""
        return dict(self.arrays)

    def to_pandas(self) -> pd.DataFrame:
        """One row per scope, layer (from 0), target and source."""
        import pandas as pd

        n = len(self.tokens)
        layer, target, source = (
            axis.ravel()
            for axis in np.meshgrid(self.layers, np.arange(n), np.arange(n), indexing="ij")
        )
        labels = np.array(self.tokens, dtype=object)
        frames = [
            pd.DataFrame(
                {
                    "scope": scope,
                    "layer": layer,
                    "target": target,
                    "target_token": labels[target],
                    "source": source,
                    "source_token": labels[source],
                    "value": array.ravel(),
                }
            )
            for scope, array in self.arrays.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def to_xarray(self) -> xr.Dataset:
        """Every array with its axes named and its tokens and layers as coordinates.

        A map is called as its scope; arrays of other groups are called ``mixing/ATTN-N`` and so on.
        """
        try:
            import xarray as xr
        except ImportError as error:
            raise MissingDependencyError(
                "labelled arrays need xarray; run: pip install 'normlens[xarray]'"
            ) from error
        variables: dict[str, tuple[Axes, NDArray[Any]]] = {
            "allowed": (("layer", "target", "source"), self.allowed)
        }
        for group, arrays in self.groups.items():
            for name, array in arrays.items():
                label = name if group == "arrays" else f"{group}/{name}"
                variables[label] = (axes_of(group, name), array)
        return xr.Dataset(
            variables,
            coords={
                "layer": self.layers,
                "target_token": ("target", self.tokens),
                "source_token": ("source", self.tokens),
            },
            attrs={"model": self.provenance.get("model"), "completeness": self.completeness},
        )

    def to_bertviz(self, scope: str = "ATTN-N") -> tuple[torch.Tensor, ...]:
        """What ``bertviz.head_view(attention, tokens)`` takes: per layer a (1, heads, n, n) tensor.

        Head-level maps if the lens was asked for them, else the scope's map as a single head.
        """
        import torch

        name = resolve(scope, self.scopes)
        stacked = self.heads[name] if name in self.heads else self.arrays[name][:, None]
        return tuple(torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in stacked)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a safetensors file with JSON metadata; `Maps.load` reads it."""
        return store.save(self, path, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> Maps:
        """Read maps that `save` wrote; the same as `normlens.open`."""
        maps = store.open(path)
        if not isinstance(maps, Maps):
            raise MapsFileError(f"{str(path)!r} holds no maps but a {type(maps).__name__}")
        return maps

    # Showing: `ax` draws into axes of yours instead of a new figure -------------------------------

    def plot(
        self,
        layer: int = 0,
        scopes: str | Iterable[str] | None = None,
        *,
        scale: str = "map",
        normalise: str = "none",
        colour: str = "sqrt",
        cmap: str = "viridis",
        max_label: int = 14,
        ax: PlotAxes | None = None,
    ) -> Figure:
        """The scopes of one layer side by side; see `normlens.figures.plot_layer`."""
        from normlens.figures import plot_layer

        return plot_layer(
            self,
            layer,
            scopes,
            scale=scale,
            normalise=normalise,
            colour=colour,
            cmap=cmap,
            max_label=max_label,
            ax=ax,
        )

    def plot_overview(
        self,
        layers: int | Iterable[int] | None = None,
        scopes: str | Iterable[str] | None = None,
        *,
        scale: str = "map",
        normalise: str = "none",
        colour: str = "sqrt",
        cmap: str = "viridis",
        max_label: int = 10,
    ) -> Figure:
        """Layers and scopes as small maps; see `normlens.figures.plot_overview`."""
        from normlens.figures import plot_overview

        return plot_overview(
            self,
            layers,
            scopes,
            scale=scale,
            normalise=normalise,
            colour=colour,
            cmap=cmap,
            max_label=max_label,
        )

    def plot_similarity(self, *, ax: PlotAxes | None = None) -> Figure:
        """How similar each scope is to the one before it, layer by layer."""
        from normlens.figures import plot_similarity

        return plot_similarity(self, ax=ax)

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
        ax: PlotAxes | None = None,
    ) -> Figure:
        """What `after` strengthens and weakens beside `before`; by default the feed-forward block.

        See `normlens.figures.plot_amplification`.
        """
        from normlens.figures import plot_amplification

        if before is None or after is None:
            before, after = self.feed_forward_pair()
        return plot_amplification(
            self,
            before,
            after,
            layer,
            axis=axis,
            top=top,
            diagonal=diagonal,
            cmap=cmap,
            max_label=max_label,
            ax=ax,
        )

    def to_html(
        self,
        path: str | Path,
        *,
        precision: int | None = None,
        largest: float | None = 60.0,
        overwrite: bool = False,
    ) -> Path:
        """Write the viewer with these maps as one HTML file, which needs no network.

        `precision` (bits per value) and `largest` (MB) as in `normlens.viewer.to_html`.
        """
        from normlens.viewer import to_html

        return to_html(self, path, precision=precision, largest=largest, overwrite=overwrite)

    def show(self, *others: Maps, **state: str | int) -> Any:
        """The interactive viewer for a notebook cell; `others` are maps to compare with.

        ``maps.show(layer=3, scope="FF")`` opens it there.
        """
        from normlens.viewer.widget import show

        return show([self, *others], **state)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        from normlens.viewer.widget import mimebundle

        return mimebundle(self, **options)

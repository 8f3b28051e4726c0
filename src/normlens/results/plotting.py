"""Maps that draw themselves; the pictures are in `normlens.figures`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from normlens.results.measuring import MeasurableMaps
from normlens.results.patches import Token

if TYPE_CHECKING:
    from matplotlib.axes import Axes as PlotAxes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


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

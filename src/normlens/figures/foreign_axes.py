"""Maps in axes that somebody else laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.maps import Maps


def draw_into(
    ax: Axes,
    values: Any,
    tokens: Sequence[str],
    norm: Any,
    cmap: str,
    title: str,
    max_label: int,
) -> Figure:
    """One map (i, j) with its tokens as ticks; returns the figure that the axes belong to."""
    labels = [
        token if len(token) <= max_label else f"{token[: max_label - 1]}…" for token in tokens
    ]
    ax.imshow(values, norm=norm, cmap=cmap, interpolation="nearest")
    ax.set_xticks(range(len(labels)), labels, rotation=90, parse_math=False)
    ax.set_yticks(range(len(labels)), labels, parse_math=False)
    ax.set(xlabel="source j (input)", ylabel="target i (output)", title=title)
    return figure_of(ax)


def titled(maps: Maps, title: str) -> str:
    """A title that also says whose contributions are shown, if not the layer's own sources'."""
    return f"{title}\n{maps.origin_in_words}" if maps.origin_in_words else title


def figure_of(ax: Axes) -> Figure:
    """The figure that the axes belong to."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    return figure


def only_scope(scopes: Sequence[str]) -> str:
    """The one scope that fits into one pair of axes."""
    if len(scopes) != 1:
        raise InputError(
            f"one pair of axes takes one map, not {len(scopes)}; name a scope, such as "
            f"maps.plot(scopes={scopes[-1]!r}, ax=ax)"
        )
    return scopes[0]

"""Maps in axes that somebody else laid out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.figures.captions import cut_label
from normlens.figures.colour_scales import beyond, beyond_colour
from normlens.figures.heat_map_panel import divide, paint
from normlens.figures.sequence_columns import ShownColumns
from normlens.figures.ticks import axis_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


def draw_into(
    ax: Axes,
    values: Any,
    shown: ShownColumns,
    norm: Any,
    cmap: str,
    title: str,
    max_label: int,
) -> Figure:
    """Draw one map (i, j) with its tokens as ticks; return the figure that the axes belong to."""
    maps = shown.maps
    rows, columns = (
        [cut_label(token, max_label) for token in tokens]
        for tokens in (maps.tokens, maps.source_tokens)
    )
    ax.imshow(values, norm=norm, cmap=cmap, interpolation="nearest")
    if (extra := beyond(values, norm)).any():
        paint(ax, extra, beyond_colour(cmap))
    ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    divide(ax, shown.divided)
    target_word, source_word = axis_words(maps)
    ax.set(xlabel=source_word, ylabel=target_word, title=title)
    return figure_of(ax)


def titled(maps: Maps, title: str) -> str:
    """A title that also says whose contributions are shown, if not the layer's own sources'."""
    return f"{title}\n{maps.origin_in_words}" if maps.origin_in_words else title


def figure_of(ax: Axes) -> Figure:
    """Find the figure that the axes belong to."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    return figure


def only_scope(scopes: Sequence[str]) -> str:
    """Take the only scope; several do not fit into one pair of axes."""
    if len(scopes) != 1:
        raise InputError(
            f"one pair of axes takes one map, not {len(scopes)}; name a scope, such as "
            f"maps.plot(scopes={scopes[-1]!r}, ax=ax)"
        )
    return scopes[0]

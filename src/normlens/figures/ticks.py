"""Tokens and axis words at the edges of heat maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normlens.figures.canvas import FRAME, INK, SMALLEST_TICK
from normlens.figures.fonts import Fonts

if TYPE_CHECKING:
    from normlens.results.maps import Maps

TARGET = "target i (output)"
SOURCE = "source j (input)"


def axis_words(maps: Maps) -> tuple[str, str]:
    """What the axes of targets and sources are called; of two sequences, whose tokens they show."""
    if not maps.stack:
        return TARGET, SOURCE
    shown = dict.fromkeys(maps.source_sequences or [maps.stack])
    sources = f"({next(iter(shown))})" if len(shown) == 1 else f": {' | '.join(shown)}"
    return f"target i ({maps.stack})", f"source j {sources}".replace(" :", ":")


@dataclass(frozen=True)
class Ticks:
    """Which tokens are labelled, how, and the room that the labels take."""

    positions: list[int]
    labels: list[str]
    size: float
    room: float
    stride: int

    @classmethod
    def fitting(cls, labels: list[str], side: float, fonts: Fonts, largest: float) -> Ticks:
        cell = 72 * side / len(labels)  # points per token
        size = min(max(0.85 * cell, SMALLEST_TICK), largest)
        stride = max(1, math.ceil(1.1 * size / cell))
        positions = list(range(0, len(labels), stride))
        shown = [labels[i] for i in positions]
        room = max(fonts.width(label, size) for label in shown) + 0.06
        return cls(positions, [fonts.drawable(label) for label in shown], size, room, stride)


def left_out_note(targets: Ticks, sources: Ticks, whose: str = "") -> list[str]:
    """A note where there is no room for every token's label, in the maps of `whose` stack."""
    where = f" in the {whose}'s maps" if whose else ""
    if targets.stride == sources.stride:
        every = {"token": targets.stride}
    else:
        every = {"target": targets.stride, "source": sources.stride}
    return [
        f"Every {_ordinal(stride)} {what} is labelled{where}."
        for what, stride in every.items()
        if stride > 1
    ]


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def label_edges(
    axes: Any,
    left: Ticks | None,
    below: Ticks | None,
    fonts: Fonts,
    side: float,
    word_size: float,
    words: tuple[str, str] = (TARGET, SOURCE),
) -> None:
    """Targets and the axis word at the left edge, sources below the panel, where they are given.

    `words` are those of the targets' axis and of the sources'.
    """
    longest = max(fonts.width(word, word_size) for word in words)
    size = min(word_size, word_size * (side + 0.08) / longest)
    word = {"fontproperties": fonts.properties(size), "color": INK, "va": "center"}
    axes.set_xticks([] if below is None else below.positions)
    axes.set_yticks([] if left is None else left.positions)
    if below is not None:
        axes.set_xticklabels(below.labels, rotation=90, **_tick_style(below, fonts))
        axes.set_xlabel(words[1], **word)
        axes.xaxis.set_label_coords(0.5, -(below.room + 0.1) / side)
    if left is not None:
        axes.set_yticklabels(left.labels, **_tick_style(left, fonts))
        axes.set_ylabel(words[0], **word)
        axes.yaxis.set_label_coords(-(left.room + 0.1) / side, 0.5)
    if below is not None or left is not None:
        axes.tick_params(length=1.5, width=0.5, pad=1.5, color=FRAME)


def _tick_style(ticks: Ticks, fonts: Fonts) -> dict[str, Any]:
    return {"fontproperties": fonts.properties(ticks.size), "parse_math": False, "color": INK}

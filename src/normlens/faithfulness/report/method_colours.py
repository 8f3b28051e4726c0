"""One colour, marker and dash per method, the same in every figure of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.faithfulness.report.protocol_words import NORMLENS, PRIORS
from normlens.figures.canvas import COLOURS, MARKERS
from normlens.reports.drawing import GREY

_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
# Black and the second blue are hard to tell from other lines where many cross.
_HUES = COLOURS[:6]


class MethodColours:
    """Styles of lines and points, by method."""

    def __init__(self, methods: Sequence[str]):
        named = [NORMLENS] if NORMLENS in methods else []
        named += [name for name in methods if name not in (*PRIORS, NORMLENS)]
        self._places = {name: place for place, name in enumerate(named)}

    def style(self, method: str) -> dict[str, Any]:
        """Colour, marker and dash as Matplotlib's keywords."""
        if method not in self._places:
            dash = _DASHES[1 + (method == "random")]
            return {"color": GREY, "marker": "x" if method == "random" else "+", "ls": dash}
        place = self._places[method]
        return {
            "color": _HUES[place % len(_HUES)],
            "marker": MARKERS[place % len(MARKERS)],
            "ls": _DASHES[place // len(_HUES) % len(_DASHES)],
        }

    def width(self, method: str) -> float:
        return 2.0 if method == NORMLENS else 1.1

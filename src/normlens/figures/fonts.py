"""Fonts that can draw every character of a picture, and how much room its texts take."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Fonts:
    """Font families that together draw every character of a figure; □ for those that none has."""

    families: tuple[str, ...]
    missing: frozenset[int]

    def drawable(self, text: str) -> str:
        return text.translate(dict.fromkeys(self.missing, "□"))

    def properties(self, size: float, weight: str = "normal") -> Any:
        from matplotlib.font_manager import FontProperties

        return FontProperties(family=list(self.families), size=size, weight=weight)

    def width(self, text: str, size: float, weight: str = "normal") -> float:
        from matplotlib.textpath import text_to_path

        properties = self.properties(size, weight)
        points = text_to_path.get_text_width_height_descent(
            self.drawable(text), properties, ismath=False
        )[0]
        # Hinting makes letters wider than they are drawn, the more so the fewer the pixels.
        return 1.05 * float(points) / 72

    def cut(self, text: str, size: float, width: float, weight: str = "normal") -> str:
        """Cut `text` to the beginning that fits into `width`."""
        if self.width(text, size, weight) <= width:
            return text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.width(text[:middle] + "…", size, weight) <= width
            low, high = (middle, high) if fits else (low, middle - 1)
        return text[:low].rstrip() + "…"

    def wrap(self, text: str, size: float, width: float, lines: int) -> list[str]:
        """Break `text` between words into at most `lines` lines."""
        words = text.split(" ")
        wrapped: list[str] = []
        while words and len(wrapped) < lines - 1:
            count = 1
            while count < len(words) and (self.width(" ".join(words[: count + 1]), size) <= width):
                count += 1
            wrapped.append(self.cut(" ".join(words[:count]), size, width))
            words = words[count:]
        return [*wrapped, self.cut(" ".join(words), size, width)] if words else wrapped


def fonts_for(texts: Iterable[str]) -> Fonts:
    """Choose the user's font, then Matplotlib's, then installed fonts that the texts still need.

    matplotlib warns at every drawing about a character that no font has, so those are replaced, and
    one warning says so.
    """
    from matplotlib import get_cachedir, rcParams
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    families = list(dict.fromkeys([*rcParams["font.family"], "DejaVu Sans"]))
    needed = {ord(character) for text in texts for character in text}
    for family in families:
        needed -= _letters(str(findfont(FontProperties(family=[family]))))
    for entry in fontManager.ttflist if needed else []:
        # matplotlib's own "Last Resort" has a box for every character of Unicode.
        if not entry.name.startswith("Last Resort") and needed & _letters(str(entry.fname)):
            families.append(entry.name)
            needed -= _letters(str(entry.fname))
    # Spaces and control characters have no glyph anywhere.
    if any(unicodedata.category(chr(character))[0] not in "CZ" for character in needed):
        # The same words at the same place, which Python shows once.
        warnings.warn(
            "no installed font has some characters of this text, which are drawn as □; install one "
            f"that has them and delete Matplotlib's list of fonts in {get_cachedir()!r}",
            stacklevel=1,
        )
    return Fonts(tuple(families), frozenset(needed))


@cache
def _letters(path: str) -> frozenset[int]:
    """List the characters that a font file can draw at any size."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):  # a font that FreeType cannot scale or read
        return frozenset()

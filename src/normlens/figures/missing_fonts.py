"""Which package has a font for characters that no installed font can draw."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path

# Debian's names of packages. Noto's emoji are pictures, which Matplotlib cannot scale; Symbola has
# outlines of them.
CJK, PICTOGRAPHS, OTHERS = "fonts-noto-cjk", "fonts-symbola", "fonts-noto-core"
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
_UNSEEN = ("C", "Z")  # categories of characters that have no glyph


def package_for(character: int) -> str | None:
    """Name the Debian package of a font with this character; None where nothing is to be drawn."""
    if unicodedata.category(chr(character))[0] in _UNSEEN:
        return None
    if unicodedata.name(chr(character), "").startswith(_EAST_ASIAN):
        return CJK
    return PICTOGRAPHS if 0x1F000 <= character <= 0x1FAFF else OTHERS


def warn_of(characters: Iterable[int]) -> None:
    """Warn once for each package that would have these characters."""
    drawn = {character: package_for(character) for character in sorted(characters)}
    for package in dict.fromkeys(filter(None, drawn.values())):
        _warn(package, chr(next(c for c, named in drawn.items() if named == package)))


#: Packages that a warning has named in this process.
_NAMED: set[str] = set()


def _warn(package: str, example: str) -> None:
    import matplotlib

    if package in _NAMED:
        return
    _NAMED.add(package)
    lists = Path(matplotlib.get_cachedir()) / "fontlist-*.json"
    warnings.warn(
        f"no installed font has {example} (U+{ord(example):04X}) and other characters of this "
        f"text, which are drawn as □; install one (on Debian and Ubuntu: apt install {package}) "
        f"and delete {lists}, Matplotlib's list of fonts",
        UserWarning,
        stacklevel=2,
    )

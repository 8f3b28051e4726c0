"""The sheet of a picture: size in inches, headings, small print, captions, fonts."""

from __future__ import annotations

import io
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from normlens.errors import MissingDependencyError, quoted
from normlens.options import cost_in_words
from normlens.results.rolled import rollout_words
from normlens.scopes import components_of, consecutive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.inputs.text import Text
    from normlens.results.maps import Maps


# Fonts that can draw every character of a picture, and how much room its texts take.


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


# A picture measured in inches: the sheet, its heading, and the small print below.


# Okabe and Ito's colours, which people with colour-blindness tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
INK, FAINT, FRAME = "#1a1a1a", "#5f5f5f", "#9a9a9a"
# Sizes of text in points, lengths in inches.
HEADING, TEXT, TITLE, NOTE = 10.0, 8.5, 8.0, 6.5
LARGEST_TICK, SMALLEST_TICK = 7.5, 5.5
MARGIN = 0.15


def require_matplotlib() -> None:
    """Raise an error that names what to install where Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib; run: pip install 'normlens[viz]'"
        ) from error


class Sheet:
    """A figure measured in inches from its top left corner, so that nothing overlaps."""

    def __init__(self, width: float, height: float, fonts: Fonts):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height, self.fonts = width, height, fonts
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
        # Jupyter knows how to show a figure only once pyplot was imported.
        vars(self.figure)["_repr_png_"] = partial(_png, self.figure)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        box = (x / self.width, 1 - (y + height) / self.height)
        return self.figure.add_axes((*box, width / self.width, height / self.height))

    def text(
        self, x: float, y: float, text: str, size: float, weight: str = "normal", **style: Any
    ) -> Any:
        return self.figure.text(
            x / self.width,
            1 - y / self.height,
            self.fonts.drawable(text),
            fontproperties=self.fonts.properties(size, weight),
            parse_math=False,
            **{"va": "top", "color": INK, **style},
        )


def _png(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """Render the figure for Jupyter, with twice the pixels that it takes on the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return buffer.getvalue(), {"width": width, "height": height}


class Head:
    """Heading and lines of text above the panels."""

    def __init__(
        self,
        heading: str,
        texts: Sequence[str],
        fonts: Fonts,
        width: float,
    ):
        room = width - 2 * MARGIN
        self.heading = fonts.cut(heading, HEADING, room, "bold")
        self.lines = [line for text in texts for line in fonts.wrap(text, TEXT, room, 2)]
        self.height = 0.24 + 0.16 * len(self.lines) + 0.08

    def draw(self, sheet: Sheet) -> None:
        sheet.text(MARGIN, MARGIN, self.heading, HEADING, "bold")
        for number, line in enumerate(self.lines):
            sheet.text(MARGIN, MARGIN + 0.24 + 0.16 * number, line, TEXT)


class Notes:
    """Small print below the panels."""

    def __init__(self, notes: Sequence[str], fonts: Fonts, width: float):
        room = width - 2 * MARGIN
        self.lines = [line for note in notes for line in fonts.wrap(note, NOTE, room, 4)]
        self.height = 0.1 + 0.125 * len(self.lines)

    def draw(self, sheet: Sheet, y: float) -> None:
        for number, line in enumerate(self.lines):
            sheet.text(MARGIN, y + 0.1 + 0.125 * number, line, NOTE, color=FAINT)


# Words about maps: headings, notes and numbers as they are written.


class Result(Protocol):
    """What every result says of itself."""

    @property
    def provenance(self) -> dict[str, Any]: ...


class TextResult(Protocol):
    """What a result says of the one text that it is about."""

    @property
    def text(self) -> Text | None: ...


def additions(names: Sequence[str]) -> dict[str, str]:
    """Say what each panel adds to the one that its scope extends."""
    words = {"ATTN-W": "weights", "ATTNRES-W": "½ + ½ identity", "CROSS-W": "weights"}
    before = {step.after: step.before for step in consecutive(names)}
    added: dict[str, str] = {}
    for scope in names:
        parts, below = components_of(scope), before.get(scope, "")
        if parts[-1] in ("ATTN", "CROSS") and scope not in words:
            words[scope] = "weights × values"
        new = parts[len(components_of(below)) :] if below else parts[-1:]
        added[scope] = words.get(scope) or "+ " + " ".join(new)
    return added


def unit(maps: Maps, scope: str, normalise: str) -> str:
    """Say what a scope's colours measure."""
    if normalise != "none":
        return {
            "source": "share of each source's column",
            "target": "share of each target's row",
        }[normalise]
    if (how := rollout_words(maps)) is not None:
        return how
    return "norm of the part ‖F_i(x_j)‖" if scope.endswith("-N") else "attention weight"


def measured(maps: Maps, names: Sequence[str], normalise: str) -> str:
    """Say what the colours measure, and in which panels."""
    kinds = {unit(maps, scope, normalise): scope[-1] for scope in names}
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{unit} (-{letter})" for unit, letter in kinds.items())


def model_name(result: Result) -> str:
    return str(result.provenance.get("model") or "model")


def model_and(maps: Maps, what: str) -> str:
    """A heading: the model, what is shown of it, and whose contributions, if not the layer's."""
    return ", ".join(filter(None, [model_name(maps), what, maps.origin_in_words]))


def stack_words(maps: Maps, words: str) -> str:
    """Words about layers, after the name of an encoder–decoder's stack."""
    return f"{maps.stack} {words}" if maps.stack else words


def text_lines(result: TextResult) -> list[str]:
    """Quote the text in one line; no line without a text."""
    return [" ".join(quoted(result.text))] if result.text is not None else []


def provenance(maps: Maps) -> str:
    """Say in one line how the numbers of maps were made."""
    measured = any(scope.endswith("-N") for scope in maps.scopes)  # weights have no parts
    return made(maps.provenance, maps.completeness if measured else None, "maps")


def generated_note(maps: Maps) -> list[str]:
    """A note where the target was not given."""
    target = str(maps.provenance.get("target", ""))
    return [f"The target is the model's own ({target})."] if target.startswith("generated") else []


def made(facts: Mapping[str, Any], completeness: float | None, what: str = "contributions") -> str:
    """Say in one line how the numbers were made, and how exactly."""
    cost = cost_in_words(str(facts.get("dtype")))
    words = [
        "completeness not measured"
        if completeness is None
        else f"completeness {completeness:.1e}{cost}"
    ]
    if "dtype" in facts:
        model_dtype, own_dtype = facts["dtype"], facts.get("compute_dtype", facts["dtype"])
        words.append(
            str(model_dtype)
            if model_dtype == own_dtype
            else f"{model_dtype} ({what} in {own_dtype})"
        )
    if "nonlinearity" in facts:
        words.append(f"rule {facts['nonlinearity']}")
    if "normlens" in facts.get("versions", {}):
        words.append(f"normlens {facts['versions']['normlens']}")
    if facts.get("note"):
        words.append(str(facts["note"]))
    return " · ".join(words)


def number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def tick(value: float, _position: int) -> str:
    short = f"{value:.5g}" if abs(value) < 1e5 else f"{value:.2g}".replace("e+0", "e")
    return short.replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def cut_label(token: str, longest: int) -> str:
    return token if len(token) <= longest else token[: max(1, longest - 1)] + "…"

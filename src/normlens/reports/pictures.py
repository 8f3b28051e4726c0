"""Figures as SVG and PNG: the same bytes every time, and small enough for a page."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESOLUTION = 200  # pixels per inch
PATHS = 300_000  # bytes; larger SVG files name their letters instead of drawing them
LARGEST = 1_500_000  # bytes; larger ones hold one picture of pixels
ENLARGED = 1.15  # on a screen, against the size in print
COLUMN = 860  # pixels that a page's column has for a figure

_ROUND = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
_POINTER = re.compile(r"url\(#([^)]+)\)")


def png(figure: Figure) -> bytes:
    """Render the figure in pixels, at 200 dpi."""
    return _saved(figure, "png", dpi=RESOLUTION, metadata={"Software": None})


def svg(figure: Figure) -> bytes:
    """Render the figure as SVG, its letters as paths, so that it looks the same everywhere.

    Beyond `PATHS` letters are text, beyond `LARGEST` the whole figure is one picture of pixels.
    """
    drawn = _svg(figure, "path")
    if len(drawn) > PATHS:
        drawn = min(drawn, _svg(figure, "none"), key=len)
    return drawn if len(drawn) <= LARGEST else _pixels(figure)


def inline(picture: bytes, prefix: str, description: str) -> str:
    """Turn an SVG file into an element of an HTML page, which may hold others.

    Only ids that something points to are kept, each with `prefix` before it; namespaces, metadata
    and style sheets are left out (the page's own style sheet says how lines join).
    """
    root = ElementTree.fromstring(picture)
    width, height = (float(root.get(name, "0").removesuffix("pt")) for name in ("width", "height"))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (_ROUND + "metadata", _ROUND + "style"):
                parent.remove(child)
    pointed = {
        pointed_id
        for element in root.iter()
        for name, value in element.attrib.items()
        for pointed_id in (
            [value[1:]] if name == _LINK and value[:1] == "#" else _POINTER.findall(value)
        )
    }
    for element in root.iter():
        element.tag = element.tag.removeprefix(_ROUND)
        element.attrib = {
            name.rpartition("}")[2]: _renamed(name, value, prefix)
            for name, value in element.attrib.items()
            if name != "id" or value in pointed
        }
    pixels = width * 96 / 72 * ENLARGED
    root.attrib = {
        "viewBox": root.get("viewBox", f"0 0 {width} {height}"),
        "role": "img",
        "style": f"width:{pixels:.0f}px;min-width:{min(0.7 * pixels, COLUMN):.0f}px",
    }
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace("<svg ", f"<svg aria-label={quoteattr(description)} ", 1)


def _renamed(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == _LINK:
        return f"#{prefix}{value[1:]}" if value.startswith("#") else value
    return _POINTER.sub(rf"url(#{prefix}\1)", value)


def _svg(figure: Figure, letters: str) -> bytes:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": letters, "svg.hashsalt": "normlens"}):
        return _saved(figure, "svg", metadata=_UNDATED)


def _pixels(figure: Figure) -> bytes:
    """Wrap the figure's pixels in an SVG."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    picture = base64.b64encode(png(figure)).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}">'
        f'<image width="{width:g}" height="{height:g}" '
        f'xlink:href="data:image/png;base64,{picture}"/></svg>\n'
    ).encode()


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, facecolor="white", **options)
    return buffer.getvalue()

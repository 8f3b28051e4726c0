"""Maps as one HTML file that needs no network, and the state that a page opens in."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from normlens.errors import InputError
from normlens.results.words import by_stack
from normlens.scopes import thinned
from normlens.viewer import payload

if TYPE_CHECKING:
    from normlens.results.maps import Maps


# What the viewer shows first, in the words of the page's address (``viewer/src/state.ts``).


class ViewerState(TypedDict, total=False):
    """Keywords of `Maps.show`; what is left out is as usual."""

    item: int | str  # which of several maps, from 0
    stack: Literal["decoder", "encoder"]  # of an encoder–decoder
    sources: Literal["both", "encoder", "decoder"]  # whose columns are shown
    layer: int | str  # from 0; negative from the end
    scope: str
    view: Literal["map", "heads", "picture", "compare", "overview"]  # images show "picture" first
    direction: Literal["row", "column"]  # of the token over a picture, unless `pin` says it
    form: Literal["heat", "arcs"]
    scale: Literal["clipped", "sqrt", "linear", "rank"]
    diagonal: Literal[0, 1]  # 0 leaves the pairs i = j out
    head: int | str  # one head instead of all together, from 0
    layers: Literal["one", "all"]  # whose heads the view "heads" shows
    norm: Literal["none", "source", "target"]
    range: Literal["map", "layer", "all"]
    palette: Literal["viridis", "cividis", "magma", "greys"]
    special: Literal[0, 1]  # 0 leaves special tokens out
    level: Literal["subwords", "words"]
    names: Literal["plain", "papers"]  # of scopes
    pin: str
    pair: str
    zoom: str
    a: str  # the two maps of a comparison
    b: str
    cnorm: Literal["source", "target", "none"]


class ExplanationState(TypedDict, total=False):
    """Keywords of `Explanation.show`; what is left out is as usual."""

    item: int | str  # which of several explanations, from 0
    view: Literal["flow", "components", "shares"]
    level: Literal["subwords", "words"]
    token: int | str  # whose way through the layers is shown, from 0
    share: Literal[50, 80, 95]  # of the flow that is drawn, in per cent
    heads: Literal[0, 1]


class CosineState(TypedDict, total=False):
    """Keywords of `Cosine.show`; what is left out is as usual."""

    item: int | str  # which of several cosines, from 0
    view: Literal["lines", "matrix"]
    level: Literal["subwords", "words"]
    token: str  # "a:3" or "b:0"


# The pages around the front end: the server's, and the one that holds everything itself.


@cache
def script() -> str:
    """Read the front end, an ES module."""
    return static("viewer.js")


def shell() -> str:
    """Read the server's page, which loads ``static/viewer.js`` and no other file."""
    return static("serve.html")


def standalone(payload: bytes, title: str, state: str = "") -> str:
    """Put the front end and a payload into one page that works from disk, without network.

    `state` is what it shows first, as in the page's address: ``"layer=3&scope=FF"``. Tokens and
    texts are inside the payload's base64, so none of them is ever read as markup.
    """
    # Inside a script element only these character sequences mean something to an HTML parser.
    inline = script().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    data = base64.b64encode(payload).decode("ascii")
    slots = {"title": html.escape(title), "state": html.escape(state)}
    return filled(static("page.html"), slots | {"payload": data, "script": inline})


def document(template: str, title: str, data: Any = None, **slots: str) -> str:
    """Put data into a page of its own that needs nothing beside it: a citation's, a ranking's."""
    style, body, code = fragment(template)
    # Inside a script element only "<" could mean something to an HTML parser.
    told = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    own = {"title": html.escape(title), "style": style, "script": code, "data": told}
    return filled(static("document.html"), own | {"body": filled(body, slots)})


def fragment(template: str) -> tuple[str, str, str]:
    """The style, the elements and the script of a page of its own, with what all of them share."""
    style, _, rest = static(template).removeprefix("<style>\n").partition("</style>\n")
    body, _, code = rest.partition("<script>\n")
    code = code.removesuffix("</script>\n")
    return static("document.css") + style, body, static("document.js") + code


@cache
def citing() -> tuple[str, str, str]:
    """The server's page for citations: its HTML, and the style and script that it loads."""
    (style, page, code), (own, form, asks) = map(fragment, ("citation.html", "cite.html"))
    shared = len(static("document.css")), len(static("document.js"))
    body = filled(form, {"page": page})
    return (
        filled(static("citing.html"), {"body": body}),
        style + own[shared[0] :],
        code + asks[shared[1] :],
    )


def filled(page: str, slots: Mapping[str, str]) -> str:
    """Fill a page's places, ``{{name}}``, which are looked for in the page alone."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: slots[match[1]], page)


def handout(documents: Sequence[str], title: str, notes: Sequence[str] = ()) -> str:
    """Put whole pages below each other into one, with a title and a note above each of the first.

    A result of any kind keeps the page that it has alone.
    """
    sections = []
    for place, one in enumerate(documents):
        if place < len(notes):
            sections.append(f"<p>{html.escape(notes[place])}</p>")
        name = f"Result {place + 1} of {len(documents)}"
        sections.append(f'<iframe title="{name}" srcdoc="{html.escape(one)}"></iframe>')
    heading = f"<h1>{html.escape(title)}</h1>" if title else ""
    listed = "\n".join(sections)
    return document("handout.html", title or "NormLens", heading=heading, sections=listed)


def static(name: str) -> str:
    """Read a file of the front end."""
    return (resources.files("normlens.viewer") / "static" / name).read_text(encoding="utf-8")


# Maps as one HTML file that needs no network and nothing beside it.


#: The size that a file stays below unless told otherwise, in MB (10⁶ bytes).
LARGEST = 60.0
#: Bytes of float32 up to which values are kept as they are.
EXACT = 1_600_000


def page_bytes(payload: bytes) -> float:
    """How many bytes a page with a payload has."""
    return len(payload) * 4 / 3 + len(script()) + 10_000


def fitted(listed: Sequence[Maps], precision: int | None, largest: float | None) -> bytes:
    """Encode all layers, or as many as fit into a file of `largest` MB; heads in what room is left.

    Without a `precision` small maps are kept as float32, of others single heads in 8 bits.
    """
    items = payload.as_list(listed)
    stacks = [maps for one in items for maps in by_stack(one)]
    bits = (32, 32) if sum(map(_float_bytes, stacks)) <= EXACT else (16, 8)
    if precision is not None:
        bits = precision, precision
    if largest is None:
        return payload.encode_items(items, bits)
    every = max(len(maps.layers) for maps in stacks)
    have_heads = any(maps.heads for maps in stacks)
    larger = f"this file, which would otherwise be larger than {largest:g} MB"
    budget = (largest * 1e6 - page_bytes(b"")) * 3 / 4

    def encoded(layers: int, heads: int) -> bytes:
        """Encode so many layers, and the single heads of so many of them."""
        chosen, notes = items, []
        if layers < every:
            chosen = [_of_layers(maps, layers) for maps in items]
            fewer = f"Only {layers} of {every} layers are in {larger}"
            notes.append(f"{fewer}; averages over layers are over these.")
        if have_heads and not heads:
            notes.append(f"Single heads are left out of {larger}; the maps file has them.")
        elif have_heads and heads < layers:
            fewer = f"Single heads of {heads} of {layers} layers are in {larger}"
            notes.append(f"{fewer}; the maps file has all.")
        return payload.encode_items(chosen, bits if heads else (bits[0], bits[0]), notes, heads)

    def most_of(count: int, encode: Callable[[int], bytes], fixed: int) -> tuple[int, bytes]:
        """Encode as many of `count` as fit beside `fixed` bytes; 0 where not even one fits."""
        while count > 0:
            data = encode(count)
            if len(data) <= budget:
                return count, data
            share = (budget - fixed) / (len(data) - fixed)
            count = min(count - 1, max(1, int(count * share)))
        return 0, b""

    layers, bare = most_of(every, lambda count: encoded(count, 0), 0)
    if not layers:
        raise InputError(
            f"one layer of these maps is larger than {largest:g} MB; choose fewer scopes with "
            "maps.choose(scopes=…), precision=8, or largest=None"
        )
    if not have_heads:
        return bare
    _, with_heads = most_of(layers, lambda count: encoded(layers, count), len(bare))
    return with_heads or bare


def _of_layers(maps: Maps, count: int) -> Maps:
    """The same maps with at most so many layers, evenly spaced, of either stack."""
    encoder = None if maps.encoder is None else _of_layers(maps.encoder, count)
    return replace(maps.choose(layers=thinned(maps.layers, count)), encoder=encoder)


def title_of(listed: Sequence[Maps]) -> str:
    """Write the browser tab's title: the first text and the models."""
    first = " / ".join(payload.texts_of(listed[0].text) or ())
    return title(first, listed, *(maps.origin_in_words for maps in listed))


def title(first: str, shown: Sequence[Any], *more: str) -> str:
    """Write a browser tab's title: what is shown, shortened, the models, and more to know."""
    line = " ".join(first.split())
    models = dict.fromkeys(str(result.provenance.get("model", "")) for result in shown)
    words = [line[:60] + "…" * (len(line) > 60), ", ".join(filter(None, models))]
    return " · ".join(filter(None, [*words, *dict.fromkeys(more), "NormLens"]))


def _float_bytes(maps: Maps) -> int:
    """The size of all maps and single heads of a stack as float32."""
    share = float(maps.allowed.mean())  # of all pairs, those that are stored
    heads = sum(round(4 * array.size * share) for array in maps.heads.values())
    return 4 * int(maps.allowed.sum()) * len(maps.scopes) + heads

"""Maps, explanations and cosines in a notebook, and explanations and cosines as HTML files."""

from __future__ import annotations

import base64
import html
import io
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from normlens.errors import InputError, MissingDependencyError, NormLensError, check_choice
from normlens.figures.canvas import made
from normlens.results import store
from normlens.results.axes import plain
from normlens.results.words import OTHER_SEQUENCE, PLACES, STACKS, signed_number
from normlens.viewer import pages, payload
from normlens.viewer.pages import EXACT, LARGEST, fitted, page_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.citation import Citation
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps
    from normlens.results.search import Ranking, Score


# A payload in a notebook: an anywidget where it is installed, else the HTML page in a frame.


_DPI = 110
_HINT = "pip install 'normlens[widget]'"
_FRAME = 8.0  # MB; larger frames make notebooks slow to save and to open


def check_page(path: str | Path, overwrite: bool | None) -> None:
    """Raise now what would otherwise fail after a page is made."""
    store.check_ending(path, (".html", ".htm"), "save(…) and the command line write others")
    store.check_output(path, overwrite=overwrite)


def write_page(path: str | Path, document: str, overwrite: bool | None) -> Path:
    """Write a page, whole or not at all."""
    check_page(path, overwrite)
    with (
        store.writing(path, overwrite=overwrite) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(document)
    return Path(path)


@dataclass(frozen=True)
class Notebook:
    """A result to look at: as one HTML file, and in a notebook's cell."""

    page: Callable[[float | None, str], str]  # of at most so many MB, in a state of the viewer
    to_file: str  # the call that writes the same to a file
    payload: Callable[[float | None], bytes] | None = None  # what the widget shows
    figure: Callable[[], Figure] | None = None  # a still picture of the same
    state: Mapping[str, Any] = field(default_factory=dict)  # in the words of the page's address

    def write(
        self, path: str | Path, largest: float | None = LARGEST, overwrite: bool | None = None
    ) -> Path:
        """Write one self-contained HTML file of at most so many MB, whole or not at all.

        A file that would be larger leaves out layers or flow maps, and says so, or is an error;
        None keeps everything.
        """
        check_page(path, overwrite)
        return write_page(path, self.page(largest, ""), overwrite)

    def still(self) -> dict[str, str]:
        """The picture for pages that run no widget, such as GitHub's; {} without Matplotlib."""
        buffer = io.BytesIO()
        try:
            if self.figure is None:
                return {}
            self.figure().savefig(buffer, format="png", dpi=_DPI)
        except NormLensError:  # a picture that cannot be made must not keep the viewer away
            return {}
        return {"image/png": base64.b64encode(buffer.getvalue()).decode("ascii")}

    def show(self) -> Any:
        """The widget, whose ``state`` is what the reader does, or a frame with how to get it."""
        if self.payload is None:
            return Frame(self.page(LARGEST, ""), "", self.to_file, {})
        state = {name: str(value) for name, value in self.state.items()}
        try:
            shown = widget_class()(payload=self.payload(LARGEST), state=state)
        except MissingDependencyError as error:
            document = self.page(_FRAME, urlencode(state))
            return Frame(document, str(error), self.to_file, self.still())
        shown.still = self.still()
        return shown

    def mimebundle(self, text: str, **options: Any) -> Any:
        """What a notebook shows for the last expression of a cell; `text` is its plain form."""
        shown = self.show()
        if isinstance(shown, Frame):
            return {"text/plain": text, "text/html": shown._repr_html_(), **shown.still}
        data, *rest = shown._repr_mimebundle_(**options)
        return {**data, "text/plain": text}, *rest


def _in_viewer(
    payload: Callable[[float | None], bytes],
    title: str,
    to_file: str,
    state: Mapping[str, Any],
    figure: Callable[[], Figure],
) -> Notebook:
    """A payload in the front end."""

    def page(largest: float | None, opened: str) -> str:
        return pages.standalone(payload(largest), title, opened)

    return Notebook(page, to_file, payload, figure, state)


def _on_its_own(
    template: str, title: str, facts: Mapping[str, Any], to_file: str, shown: str
) -> Notebook:
    """A page that holds its numbers as JSON; an error calls them `shown`."""

    def page(largest: float | None, _: str) -> str:
        document = pages.document(template, title, plain(facts))
        _check_size(len(document), largest, shown)
        return document

    return Notebook(page, to_file)


def _check_size(size: float, largest: float | None, shown: str) -> None:
    """Raise for a page of more than `largest` MB (10⁶ bytes) that nothing can be left out of."""
    if largest is not None and size > largest * 1e6:
        raise InputError(
            f"a page with these {shown} is larger than {largest:g} MB; give fewer, or largest=None"
        )


@cache
def widget_class() -> type[Any]:
    """Define the widget's class, or raise an error that names what to install."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"the widget needs anywidget: {_HINT}") from error

    class ViewerWidget(anywidget.AnyWidget):
        """The viewer; `state` follows what is looked at."""

        _esm = pages.script()
        payload = traitlets.Bytes(b"").tag(sync=True)
        state = traitlets.Dict({}).tag(sync=True)
        still: Mapping[str, str] = {}

        def _repr_mimebundle_(self, **options: Any) -> Any:
            data, *rest = super()._repr_mimebundle_(**options)
            return {**self.still, **data}, *rest

    return ViewerWidget


@dataclass(frozen=True)
class Frame:
    """A self-contained page that a notebook without anywidget displays in a frame."""

    document: str
    reason: str
    to_file: str
    still: Mapping[str, str]

    def __repr__(self) -> str:
        why = f"{self.reason}; in a notebook without it the viewer is" if self.reason else "This is"
        return f"{why} a frame, and anywhere {self.to_file} writes it to a file"

    def _repr_png_(self) -> str | None:
        return self.still.get("image/png")

    def _repr_html_(self) -> str:
        why = f"<p>{html.escape(self.reason)}; shown in a frame instead.</p>" if self.reason else ""
        return (
            f'<iframe title="NormLens" sandbox="allow-scripts allow-downloads" width="100%" '
            f'height="760" style="border:0" srcdoc="{html.escape(self.document)}"></iframe>{why}'
        )


# Maps in a notebook.


_CHOICES = {"sources": ("both", *STACKS), "stack": STACKS, "direction": ("row", "column")}
_WHOLE_LAYER = 64  # tokens up to which a still picture has all scopes of a layer


def maps_notebook(
    maps: Maps | Sequence[Maps], state: Mapping[str, Any], precision: int | None = None
) -> Notebook:
    """What a notebook shows for maps; `state` in the words of the page's address."""
    several = payload.as_list(maps)
    words = _words(maps, state)
    return _in_viewer(
        lambda largest: fitted(several, precision, largest),
        pages.title_of(several),
        "maps.to_html('maps.html')",
        words,
        lambda: _figure(maps[0] if isinstance(maps, Sequence) else maps, words),
    )


def to_html(
    maps: Maps | Sequence[Maps],
    path: str | Path,
    *,
    precision: int | None = None,
    largest: float | None = LARGEST,
    overwrite: bool | None = None,
) -> Path:
    """Write one self-contained HTML file; several maps can be compared in it.

    `precision` is 32 (float32), 16 or 8 bits per value (see `normlens.viewer.payload`); by default
    32 for small maps and 16 for others. A file that would be larger than `largest` MB leaves out
    layers, evenly, and says so; None keeps everything.
    """
    return maps_notebook(maps, {}, precision).write(path, largest, overwrite)


def _figure(maps: Maps, words: Mapping[str, str]) -> Figure:
    """Draw the layer that the viewer opens at; of a long text one of its scopes."""
    whole = _of_stack(maps, words) or maps
    layer = int(words.get("layer", whole.layers[0]))
    if len(whole.tokens) <= _WHOLE_LAYER:
        return whole.plot(layer)
    norms = [s for s in whole.scopes if s.endswith("-N") and layer in whole.layers_of(s)]
    return whole.plot(layer, words.get("scope", norms[0] if norms else None))


def _words(maps: Maps | Sequence[Maps], state: Mapping[str, Any]) -> dict[str, str]:
    """Write the state as the page reads it; a layer or stack that is not there is an error.

    The page itself shows the first layer instead, which is right for an address that was made for
    other maps, but not for an argument. Maps whose layers differ are several items there; the one
    that has the layer is opened.
    """
    words = {name: str(value) for name, value in state.items()}
    for name, choices in _CHOICES.items():
        if name in words:
            check_choice(words[name], choices, name)
    first = maps[0] if isinstance(maps, Sequence) else maps
    if "item" in words:
        listed = payload.as_list(maps)
        items = {str(number): shown for number, shown in enumerate(listed)}
        first = items.get(words["item"], listed[0])
    whole = _of_stack(first, words)
    if whole is None:
        raise InputError("there is no encoder beside these maps; leave stack=… out")
    if words.get("view") == "picture" and whole.grid is None:
        raise InputError("these maps are of no picture, or not of all of its patches; view='map'")
    if "head" in words:
        if not whole.heads:
            raise InputError(
                "these maps have no heads; ask for them with lens.maps(text, heads=True)"
            )
        most = max(array.shape[1] for array in whole.heads.values())
        if words["head"] not in map(str, range(most)):
            raise InputError(f"there is no head {words['head']}; heads count from 0 to {most - 1}")
    if "layer" not in state:
        return words
    layer = state["layer"]
    if isinstance(layer, str) and layer.isdecimal():
        layer = int(layer)
    (wanted,) = whole.wanted_layers([layer])
    words["layer"] = str(wanted)
    kinds = [_of_stack(kind, words) for kind in payload.items_of(first)]
    if len(kinds) > 1:
        places = (place for place, kind in enumerate(kinds) if kind and wanted in kind.layers)
        words.setdefault("item", str(next(places)))
    return words


def _of_stack(maps: Maps, words: Mapping[str, str]) -> Maps | None:
    """The maps of the stack that is shown: these themselves, or the encoder's beside them."""
    return maps.encoder if words.get("stack") == OTHER_SEQUENCE else maps


# Explanations and cosines to look at: as one HTML file, and in a notebook.


def explanation_notebook(
    explained: Explanation | Explanations | Sequence[Explanation], state: Mapping[str, Any]
) -> Notebook:
    """What a notebook shows for explanations; `state` in the words of the page's address."""
    several = payload.listed(explained, "explanations")
    more = f"and {len(several) - 1} more" if len(several) > 1 else ""
    return _in_viewer(
        lambda largest: fitted_explanations(several, largest),
        pages.title(f"{several[0].question} {more}", several),
        "why.to_html('why.html')",
        state,
        several[0].plot,
    )


def fitted_explanations(several: Sequence[Explanation], largest: float | None) -> bytes:
    """Encode explanations with their flow maps, or without where a page would be too large."""
    exact = payload.flow_bytes(several) <= EXACT
    data = payload.encode_explanations(several, precision=32 if exact else 16)
    if largest is None or page_bytes(data) <= largest * 1e6:
        return data
    note = (
        "Flow maps are left out, so the way through the layers is not shown: with them this file "
        f"would be larger than {largest:g} MB."
    )
    data = payload.encode_explanations(several, flow=False, left_out=[note])
    _check_size(page_bytes(data), largest, "explanations")
    return data


def cosine_notebook(compared: Cosine | Sequence[Cosine], state: Mapping[str, Any]) -> Notebook:
    """What a notebook shows for cosines; `state` in the words of the page's address."""
    several = payload.listed(compared, "cosines")

    def fitted_cosines(largest: float | None) -> bytes:
        data = payload.encode_cosines(several)
        _check_size(page_bytes(data), largest, "cosines")
        return data

    return _in_viewer(
        fitted_cosines,
        pages.title(" / ".join(filter(None, (several[0].text_a, several[0].text_b))), several),
        "pair.to_html('pair.html')",
        state,
        several[0].plot,
    )


# Rankings and citations to look at: pages of their own, which hold their numbers as JSON.


def ranking_notebook(ranking: Ranking) -> Notebook:
    """A query on top and documents below: words shaded by what they bring, and why one is above."""
    with suppress(InputError):  # tokens, where words are not known
        ranking = ranking.words()
    first = ranking[0]
    what = "order" if ranking[1:] else "score"
    facts = {
        "heading": f"{first.provenance.get('model', 'model')}, {first.kind}: which words made "
        f"this {what}",
        "about": first.query,
        "made": made(first),
        "pairs": first.has_pairs,
        "query": {"tokens": first.tokens_a, "special": first.a.is_special},
        "documents": [_ranked(score) for score in ranking],
    }
    title = pages.title(str(first.query), [first])
    return _on_its_own("ranking.html", title, facts, "ranking.to_html('ranking.html')", "documents")


def citation_notebook(cited: Citation) -> Notebook:
    """The answer and its sources side by side: a click on either shows what it did or owes."""
    title, facts = pages.title(cited.question, [cited]), citation_facts(cited)
    return _on_its_own("citation.html", title, facts, "citation.to_html('cite.html')", "sources")


def citation_facts(cited: Citation) -> dict[str, Any]:
    """What the page of a citation shows; numbers have five digits."""
    digits = partial(np.round, decimals=5)
    about = f"log-probability of the answer {signed_number(cited.log_probability, 2)}"
    if cited.ablations:
        about += f" · scores: one exact pass and {cited.ablations} ablations, with 95 % intervals"
    return {
        "heading": f"{cited.provenance.get('model', 'model')}: which sources made this answer",
        "question": cited.question,
        "about": about,
        "made": made(cited),
        "parts": cited.parts,
        "sources": [_source(cited, place) for place in range(len(cited.sources))],
        "scores": digits(cited.scores),
        "interval": None if cited.interval is None else digits(cited.interval),
        "matrix": digits(cited.matrix),
        "rest": digits(cited.rest),
        "names": cited.rest_names,
        "values": digits(cited.values),
    }


def _source(cited: Citation, place: int) -> dict[str, Any]:
    """One source: its words, the white space behind them, and what each word did, by part."""
    text = cited.sources[place]
    matches = [*re.finditer(r"\S+", text)]
    begins, ends = ([*map(of, matches)] for of in (re.Match.start, re.Match.end))
    values = np.zeros((len(cited.parts), len(matches)))
    first = int(cited.source_spans[place, 0])
    for token in np.flatnonzero(cited.owners == place):
        start, stop = (int(end) - first for end in cited.spans[token])
        start += len(text[max(0, start) : stop]) - len(text[max(0, start) : stop].lstrip())
        word = max(0, bisect_right(begins, max(0, start)) - 1)
        values[:, word] += cited.token_scores[:, token]
    gaps = (text[end:begin] for end, begin in zip(ends, begins[1:], strict=False))
    document = cited.documents[place]
    several = len({*cited.documents}) not in (1, len(cited.sources))
    return {
        "name": f"Source {place}" + (f" (document {document})" if several else ""),
        "words": [match[0] for match in matches],
        "gaps": {str(k): gap for k, gap in enumerate(gaps) if gap != " "},
        "values": np.round(values, 5),
    }


def _ranked(score: Score) -> dict[str, Any]:
    """One document of a ranking's page; numbers have five digits."""
    digits = partial(np.round, decimals=5)
    terms = [] if score.term_values is None else score.terms(3)["term"].tolist()
    rest = ", ".join(f"{name} {signed_number(v, PLACES)}" for name, v in score.remainder.items())
    return {
        "value": score.value,
        "tokens": score.tokens_b,
        "special": score.b.is_special,
        "pairs": digits(score.matrix) if score.has_pairs else None,
        "by_query": digits(score.by_query),
        "by_document": digits(score.by_document),
        "rest_query": list(score.rest("query").items()),
        "rest_document": list(score.rest("document").items()),
        "rest": f"No pair owns: {rest}" if score.has_pairs else rest,
        "terms": ", ".join(terms),
    }

"""Export results as CSV, JSON, pictures and pages; the file name's ending chooses the format.

Layers, heads and positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from normlens import figures
from normlens.errors import InputError, valid_choice
from normlens.results import store, words
from normlens.results.axes import EXPLANATION, plain
from normlens.results.cosine import Cosine
from normlens.results.explanation import Explanation, Explanations
from normlens.results.formats import EACH, saved_grid
from normlens.results.maps import Maps
from normlens.results.words import NO_TOKEN_WORDS, by_stack, choose_in_stacks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Explained: TypeAlias = Explanation | Explanations
Result: TypeAlias = Maps | Explained | Cosine

PICTURES = (".png", ".svg", ".pdf")
#: Endings of file names that `write` accepts.
FORMATS = (".safetensors", ".html", ".csv", ".json", *PICTURES)


def write(
    result: Result,
    path: str | Path,
    *,
    overwrite: bool = False,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    **drawing: Any,
) -> Path:
    """Write a result in the format that the ending of `path` names, whole or not at all.

    ``.safetensors`` holds everything and can be opened again; ``.json`` holds every number, and
    ``.csv`` a table of them, with rows for what no token owns; ``.html`` is the interactive page.
    `drawing` goes to the pictures, ``.png``, ``.svg`` and ``.pdf``:

    - Of maps they show one layer large or several as rows; ``.pdf`` has one page per layer.
      `drawing` goes to `figures.plot_layer` or `figures.plot_overview`; with `heads_of` a scope,
      such as "ATTN-N", pictures show its single heads. Maps of an image are laid over it: the `row`
      or the `column` of a token, in all layers of the last scope; ``.pdf`` has a page for each
      scope. With `normalise` they are drawn as those of a text.
    - Of an explanation `picture` is "tokens", "flow" or "components", and of several "matrix" or,
      of an encoder–decoder's, "shares": the first unless told otherwise; ``.pdf`` has a page for
      each.

    `layers` (from 0) and `scopes` choose among those of maps, in each stack of an encoder–decoder.
    """
    drawing = {name: value for name, value in drawing.items() if value is not None}
    suffix = check_format(path, drawing)
    store.check_output(path, overwrite=overwrite)
    if isinstance(result, Maps):
        result = choose_in_stacks(result, layers, scopes)
    elif layers is not None or scopes is not None:
        raise InputError("layers and scopes choose among those of maps, not of other results")
    if suffix == ".safetensors":
        return result.save(path, overwrite=overwrite)
    if suffix == ".html":
        return result.to_html(path, overwrite=overwrite)
    with store.writing(path, overwrite=overwrite) as temporary:
        if suffix == ".csv":
            words.write_csv(table(result), temporary)
        elif suffix == ".json":
            write_json(document(result), temporary)
        else:
            draw = _KINDS[type(result)].draw
            save_figure(draw(result, suffix == ".pdf", **drawing), temporary)
    return Path(path)


def check_format(path: str | Path, drawing: Iterable[str] = ()) -> str:
    """The format that the ending of `path` names, or an error before any work is done.

    `drawing` names options that only pictures have.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        given = f"the ending {suffix!r}" if suffix else "no ending"
        raise InputError(
            f"{str(path)!r} has {given}; the ending chooses the format: {', '.join(FORMATS)}"
        )
    if suffix in PICTURES:
        figures.require_matplotlib()
    elif names := ", ".join(map(repr, drawing)):
        raise InputError(f"{names} is for pictures ({', '.join(PICTURES)}), not for {suffix} files")
    return suffix


def write_json(value: Any, path: str) -> None:
    """Write plain values as strict JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def table(result: Result) -> pd.DataFrame:
    """One row per number, with what it belongs to."""
    frame: pd.DataFrame = _KINDS[type(result)].table(result)
    return frame


def document(result: Result) -> dict[str, Any]:
    """Everything as plain values for strict JSON: NaN and infinity become None."""
    kind = _KINDS[type(result)]
    first = result[0] if isinstance(result, Explanations) else result
    about = {"format": kind.name, "version": 1, "model": first.provenance.get("model")}
    fields = {**about, **kind.document(result)}
    return {key: plain(value) for key, value in fields.items()}


def _named(result: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


#: What documents of maps and of explanations say of a text's tokens, and how they count.
_LABELS = ("text", "tokens", "raw_tokens", "token_ids", "special")
_COUNTED = {f"{what}_counted_from": 0 for what in ("layers", "heads", "positions")}


# Figures as files that print well.


_RESOLUTION = 200  # pixels per inch


class Pages(NamedTuple):
    """Figures that are the pages of one PDF."""

    figures: Iterable[Figure]
    title: str


def save_figure(drawn: Figure | Pages, path: str | Path) -> None:
    """Write a figure, or pages, so that it prints well; the same figure gives the same bytes."""
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages

    # Publishers accept TrueType fonts, not Type 3; names in an SVG follow from the salt.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "normlens"}):
        if isinstance(drawn, Pages):
            with PdfPages(path, metadata={"Title": drawn.title, "CreationDate": None}) as file:
                for figure in drawn.figures:
                    file.savefig(figure, dpi=_RESOLUTION)
            return
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        drawn.savefig(path, dpi=_RESOLUTION, metadata=undated.get(Path(path).suffix.lower()))


# Maps.


def _maps_table(maps: Maps) -> pd.DataFrame:
    """A table with one row per scope, layer, head, target and source, all counted from 0.

    Whole maps have no head. Of an encoder–decoder the columns `stack` and `source_sequence` say
    which stack a row is of, and whose token its source is.
    """
    import pandas as pd

    frames = [frame for one in by_stack(maps) for frame in _head_frames(one)]
    return pd.concat(frames, ignore_index=True)


def _head_frames(maps: Maps) -> Iterator[pd.DataFrame]:
    """The table of whole maps, and one of each head."""
    yield _with_head(maps, None)
    for scope, array in maps.heads.items():  # (layer, head, i, j)
        coverage = {f"arrays/{scope}": maps.covered("heads", scope)}
        alone = replace(maps, heads={}, mixing={}, standard_error={}, statistics={})
        for head in range(array.shape[1]):
            one = replace(alone, arrays={scope: array[:, head]}, coverage=coverage)
            yield _with_head(one, head)


def _with_head(maps: Maps, head: int | None) -> pd.DataFrame:
    import pandas as pd

    frame = maps.to_pandas()
    column = pd.Series([head] * len(frame), dtype="Int64")
    frame.insert(list(frame.columns).index("layer") + 1, "head", column)
    return frame


def _maps_document(maps: Maps) -> dict[str, Any]:
    """The fields of maps; an encoder's beside them are a document inside it, ``encoder``."""
    pairs = ["layer", "target", "source"]
    fields: dict[str, Any] = {
        **_named(maps, *_LABELS, "layers"),
        **_COUNTED,
        **_named(maps, "scopes", "completeness", "provenance"),
        "axes": {
            "maps": pairs,
            "allowed": pairs,
            "mixing_ratio": ["layer", "target"],
            "heads": ["layer", "head", "target", "source"],
            "standard_error": pairs,
        },
        "maps": maps.arrays,
        "allowed": maps.allowed,
        "mixing_ratio": maps.mixing,
        "heads": maps.heads,
        "standard_error": maps.standard_error,
    }
    if maps.coverage:  # the layers of arrays that cover only some, by "arrays/SCOPE"
        fields["coverage"] = maps.coverage
    fields |= saved_grid(maps.grid)
    if maps.source_axis is not None:
        fields["source_tokens"] = maps.source_tokens
        fields["sources"] = asdict(maps.source_axis)
        fields["same_token"] = maps.is_same_token
        fields["axes"]["same_token"] = ["target", "source"]
    if maps.routing is not None:  # one row per layer, token and expert, layers and tokens from 0
        fields["routing"] = maps.routing.to_pandas().to_dict("records")
    if maps.stack:
        fields["stack"] = maps.stack
        fields["source_sequences"] = maps.table_sequences
    if maps.encoder is not None:
        fields["encoder"] = document(maps.encoder)
    return fields


def _draw_maps(maps: Maps, paged: bool, **drawing: Any) -> Figure | Pages:
    if paged:
        return Pages(_pages(maps, drawing), f"NormLens maps of {maps.provenance.get('model')}")
    if "heads_of" in drawing:
        return _heads(maps, None, drawing)
    if _is_over_picture(maps, drawing):
        return _over_picture(maps, maps.scopes[-1], drawing)
    if len(by_stack(maps)) == len(maps.layers) == 1:
        return figures.plot_layer(maps, maps.layers[0], **drawing)
    return figures.plot_overview(maps, **drawing)


def _pages(maps: Maps, drawing: dict[str, Any]) -> Iterator[Figure]:
    """A picture of each layer, the encoder's first; of an image one of each scope."""
    if "heads_of" in drawing:
        layers = maps.covered("heads", figures.head_scope(maps, drawing["heads_of"]))
        yield from (_heads(maps, layer, drawing) for layer in layers)
        return
    if _is_over_picture(maps, drawing):
        yield from (_over_picture(maps, scope, drawing) for scope in maps.scopes)
        return
    for one in by_stack(maps):
        # An encoder's sources are one sequence, of which nothing can be hidden.
        options = {**drawing, "sources": None} if maps.encoder is one else drawing
        yield from (figures.plot_layer(one, layer, **options) for layer in one.layers)


def _is_over_picture(maps: Maps, drawing: Mapping[str, Any]) -> bool:
    """Whether rows or columns of maps are laid over the image that they are of."""
    if maps.grid is None and {"row", "column"} & set(drawing):
        raise InputError("row and column are laid over an image, and these maps are of none")
    return maps.grid is not None and "normalise" not in drawing


def _over_picture(maps: Maps, scope: str, drawing: Mapping[str, Any]) -> Figure:
    colour = {name: drawing[name] for name in ("colour", "diagonal") if name in drawing}
    row, column = drawing.get("row"), drawing.get("column")
    return figures.plot_patches(maps, None, scope, target=row, source=column, **colour)


def _heads(maps: Maps, layer: int | None, drawing: Mapping[str, Any]) -> Figure:
    """The heads of a layer, or of all."""
    if {"row", "column"} & set(drawing):
        raise InputError("row and column are laid over an image, heads are not; choose one of them")
    options = {name: value for name, value in drawing.items() if name != "heads_of"}
    return figures.plot_heads(maps, layer, drawing["heads_of"], **options)


def write_routing(maps: Maps, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the experts that tokens used, and their weights, as a CSV table."""
    check_routing(path)
    if maps.routing is None:
        raise InputError(
            f"the layers of {maps.provenance.get('model', 'this model')} have no experts, or these "
            "maps are of words; there is no routing to write"
        )
    with store.writing(path, overwrite=overwrite) as temporary:
        words.write_csv(maps.routing.to_pandas(), temporary)
    return Path(path)


def check_routing(path: str | Path) -> None:
    """Raise unless a routing can be written to this file."""
    if Path(path).suffix.lower() != ".csv":
        raise InputError(f"{str(path)!r} does not end in .csv; a routing is a CSV table")


# Explanations, one or those of each next token.


#: The pictures of one explanation.
TOKENS, FLOW, COMPONENTS = "tokens", "flow", "components"
PICTURE_KINDS = (TOKENS, FLOW, COMPONENTS)
#: The pictures of several: a matrix, and what an encoder–decoder's two sequences supply.
MATRIX, SHARES = "matrix", "shares"
SEVERAL_KINDS = (MATRIX, SHARES)

#: What JSON says of each explanation beside its biases and flows.
_WRITTEN = (
    *("task", "question"),
    *(name for name in EACH if name != "biases"),
    *("contributions", "remainder", "nodes", "components", "heads", "head_flow"),
)


def _explanation_table(result: Explained) -> pd.DataFrame:
    """One row per token, and one without a position for what no token owns.

    Of each next token, with its place and the token, where there are several explanations.
    """
    import pandas as pd

    if isinstance(result, Explanations):
        frames = [
            _explanation_table(each).assign(predicted=place + 1, predicted_token=each.target)
            for place, each in enumerate(result)
        ]
        return pd.concat(frames, ignore_index=True)
    frame = result.to_pandas().astype({"position": "Int64"})
    sequence = {"sequence": [None]} if result.has_two_sequences else {}
    unowned = pd.DataFrame(
        {
            **sequence,
            "position": pd.array([None], dtype="Int64"),
            "token": [NO_TOKEN_WORDS],
            "contribution": [result.remainder],
        }
    )
    return pd.concat([frame, unowned], ignore_index=True)


def _explanation_document(result: Explained) -> dict[str, Any]:
    each = list(result) if isinstance(result, Explanations) else [result]
    first = each[0]
    axes = {"flows" if name == "flow" else name: names for name, names in EXPLANATION.items()}
    # Which tokens and layers are whose, if there are two sequences.
    sequences = {"sequences": first.token_sequences, "layer_names": first.layer_names}
    return {
        **_named(first, *_LABELS),
        **(sequences if first.has_two_sequences else {}),
        **saved_grid(first.grid),
        "component_names": first.component_names,
        **_COUNTED,
        "axes": {"contributions": ["source"], **axes},
        "explanations": [_one_explanation(why) for why in each],
    }


def _one_explanation(why: Explanation) -> dict[str, Any]:
    return {
        **_named(why, *_WRITTEN),
        "biases": [
            {"layer": layer, "component": component, "value": share}
            for layer, component, share in why.biases
        ],
        "flows": {scope or "whole layer": flow for scope, flow in why.flows.items()},
        **({"shares": asdict(why.shares)} if why.has_two_sequences else {}),
        **({} if why.cross_heads is None else {"cross_heads": why.cross_heads}),
    }


def _draw_explanation(
    result: Explained, paged: bool, *, picture: str | None = None
) -> Figure | Pages:
    check_picture(picture, result)
    if isinstance(result, Explanations):
        if paged and picture is None and result.has_two_sequences:
            title = f"NormLens: {result[0].provenance.get('model')}"
            return Pages([result.plot(), result.plot_shares()], title)
        return result.plot_shares() if picture == SHARES else result.plot()
    if paged and picture is None:
        kinds = [kind for kind in PICTURE_KINDS if kind != FLOW or "" in result.flows]
        title = f"NormLens: {result.provenance.get('model')}, {result.question}"
        return Pages([_figure(result, kind) for kind in kinds], title)
    return _figure(result, picture or TOKENS)


def _figure(why: Explanation, kind: str) -> Figure:
    if kind == FLOW:
        return why.plot_flow()
    return why.plot_components() if kind == COMPONENTS else why.plot()


def check_picture(picture: str | None, result: Explained | None = None) -> None:
    """Raise an error for a picture that there is not."""
    if picture is None:
        return
    valid_choice(picture, (*PICTURE_KINDS, *SEVERAL_KINDS), "picture")
    if isinstance(result, Explanations):
        if picture in PICTURE_KINDS:
            raise InputError(
                f"the picture {picture!r} is of one explanation; that of each next token is a "
                "matrix"
            )
        if picture == SHARES:
            result[0].shares  # noqa: B018  (raises where there is one sequence)
    elif result is not None and picture in SEVERAL_KINDS:
        raise InputError(
            f"the picture {picture!r} is of several explanations; ask for each token in turn"
        )


# Cosines.


def _cosine_table(pair: Cosine) -> pd.DataFrame:
    """One row per pair of tokens; a row without a position is of a text's biases."""
    import pandas as pd

    frame = pair.to_pandas().astype({"a": "Int64", "b": "Int64"})
    n, m = pair.matrix.shape
    none = NO_TOKEN_WORDS
    unowned = pd.DataFrame(
        {
            "a": pd.array([*range(n), *[None] * (m + 1)], dtype="Int64"),
            "a_token": [*pair.tokens_a, *[none] * (m + 1)],
            "b": pd.array([*[None] * n, *range(m), None], dtype="Int64"),
            "b_token": [*[none] * n, *pair.tokens_b, none],
            "value": [*pair.a_with_bias, *pair.b_with_bias, pair.bias],
        }
    )
    return pd.concat([frame, unowned], ignore_index=True)


def _cosine_document(pair: Cosine) -> dict[str, Any]:
    return {
        **_named(pair, "value", "text_a", "text_b", "tokens_a", "tokens_b"),
        "positions_counted_from": 0,
        "axes": {"matrix": ["a", "b"], "a_with_bias": ["a"], "b_with_bias": ["b"]},
        **_named(pair, "matrix", "a_with_bias", "b_with_bias", "bias"),
        "margins": asdict(pair.margins),
        **_named(pair, "remainder", "completeness", "provenance"),
    }


def _draw_cosine(pair: Cosine, paged: bool) -> Figure:
    return pair.plot()


# What is written of each kind of result.


class _Kind(NamedTuple):
    name: str  # of its JSON documents
    table: Callable[[Any], pd.DataFrame]
    document: Callable[[Any], dict[str, Any]]
    draw: Callable[..., Figure | Pages]  # of a result, with pages or without


_EXPLAINED = _Kind(
    "normlens-explanation-json", _explanation_table, _explanation_document, _draw_explanation
)
_KINDS: dict[type, _Kind] = {
    Maps: _Kind("normlens-maps-json", _maps_table, _maps_document, _draw_maps),
    Explanation: _EXPLAINED,
    Explanations: _EXPLAINED,
    Cosine: _Kind("normlens-cosine-json", _cosine_table, _cosine_document, _draw_cosine),
}

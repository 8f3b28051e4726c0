"""Export results as CSV, JSON, pictures and pages; the file name's ending chooses the format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens import figures
from normlens.errors import InputError, valid_choice
from normlens.results import store, words
from normlens.results.axes import EXPLANATION, plain
from normlens.results.cosine import Cosine
from normlens.results.explanation import Explanation, Explanations
from normlens.results.headers import EACH, saved_grid
from normlens.results.words import NO_TOKEN_WORDS, by_stack, choose_in_stacks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


# Figures as files that print well.


_RESOLUTION = 200  # pixels per inch


def save_pages(drawn: Iterable[Figure], path: str | Path, title: str) -> None:
    """Write figures as the pages of one PDF; the same figures give the same bytes."""
    from matplotlib.backends.backend_pdf import PdfPages

    with _for_print(), PdfPages(path, metadata={"Title": title, "CreationDate": None}) as pages:
        for figure in drawn:
            pages.savefig(figure, dpi=_RESOLUTION)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in a form that prints well; the same figure gives the same bytes."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with _for_print():
        figure.savefig(path, dpi=_RESOLUTION, metadata=undated.get(Path(path).suffix.lower()))


@contextmanager
def _for_print() -> Iterator[None]:
    """Use fonts that publishers accept (TrueType, not Type 3) and reproducible names."""
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "normlens"}):
        yield


# Maps as pictures: which figure a file shows.


def write_picture(maps: Maps, path: str, **drawing: Any) -> None:
    """Write one layer large, or several as rows; of an image its patches, or single heads."""
    if "heads_of" in drawing:
        save_figure(_heads(maps, None, drawing), path)
        return
    if is_over_picture(maps, drawing):
        save_figure(_over_picture(maps, maps.scopes[-1], drawing), path)
        return
    both = by_stack(maps)
    if len(both) == len(maps.layers) == 1:
        figure = figures.plot_layer(maps, maps.layers[0], **drawing)
    else:
        figure = figures.plot_overview(maps, **drawing)
    save_figure(figure, path)


def is_over_picture(maps: Maps, drawing: Mapping[str, Any]) -> bool:
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


def write_pages(maps: Maps, path: str, **drawing: Any) -> None:
    """Write a page for each layer; of an image one for each scope."""
    title = f"NormLens maps of {maps.provenance.get('model')}"
    save_pages(_pages(maps, drawing), path, title)


def _pages(maps: Maps, drawing: dict[str, Any]) -> Iterator[Figure]:
    """A picture of each layer, the encoder's first; of an image one of each scope."""
    if "heads_of" in drawing:
        layers = maps.covered("heads", figures.head_scope(maps, drawing["heads_of"]))
        yield from (_heads(maps, layer, drawing) for layer in layers)
        return
    if is_over_picture(maps, drawing):
        yield from (_over_picture(maps, scope, drawing) for scope in maps.scopes)
        return
    for one in by_stack(maps):
        # An encoder's sources are one sequence, of which nothing can be hidden.
        options = {**drawing, "sources": None} if maps.encoder is one else drawing
        yield from (figures.plot_layer(one, layer, **options) for layer in one.layers)


# Export of maps to files for other programs; the file name's ending chooses the format.
#
# Layers, heads and positions of tokens count from 0 in all of them.


MAPS_JSON = "normlens-maps-json"
MAPS_JSON_VERSION = 1


def write_maps(
    maps: Maps,
    path: str | Path,
    *,
    overwrite: bool = False,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    **drawing: Any,
) -> Path:
    """Write maps in the format that the ending of `path` names, whole or not at all.

    ``.safetensors`` holds everything and can be opened again; ``.csv`` and ``.json`` hold every
    number; ``.html`` is the interactive viewer; ``.png`` and ``.svg`` show one layer large or
    several as rows; ``.pdf`` has one page per layer. `layers` (from 0) and `scopes` choose, in each
    stack of an encoder–decoder; `drawing` goes to `figures.plot_layer` or `figures.plot_overview`.
    With `heads_of` a scope, such as "ATTN-N", pictures show its single heads (`plot_heads`).

    Maps of an image are laid over it (`figures.plot_patches`): the `row` or the `column` of a
    token, in all layers of the last scope; ``.pdf`` has a page for each scope. With `normalise`
    they are drawn as those of a text.
    """
    suffix = check_format(path, drawing)
    store.check_output(path, overwrite=overwrite)
    chosen = choose_in_stacks(maps, layers, scopes)
    if suffix == ".safetensors":
        return store.save(chosen, path, overwrite=overwrite)
    if suffix == ".html":
        return chosen.to_html(path, overwrite=overwrite)
    with store.writing(path, overwrite=overwrite) as temporary:
        _MAPS_WRITERS[suffix](chosen, temporary, **drawing)
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


# Tables ------------------------------------------------------------------------------------------


def maps_table(maps: Maps) -> pd.DataFrame:
    """A table with one row per scope, layer, head, target and source, all counted from 0.

    Whole maps have no head. Of an encoder–decoder the columns `stack` and `source_sequence` say
    which stack a row is of, and whose token its source is.
    """
    import pandas as pd

    frames = [frame for one in by_stack(maps) for frame in _frames(one)]
    return pd.concat(frames, ignore_index=True)


def _frames(maps: Maps) -> Iterator[pd.DataFrame]:
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


def maps_document(maps: Maps) -> dict[str, Any]:
    """Everything about the maps as plain values for strict JSON: NaN and infinity become None.

    An encoder's maps beside these are a document inside it, ``encoder``.
    """
    document: dict[str, Any] = {
        "format": MAPS_JSON,
        "version": MAPS_JSON_VERSION,
        "model": maps.provenance.get("model"),
        "text": maps.text,
        "tokens": maps.tokens,
        "raw_tokens": maps.raw_tokens,
        "token_ids": maps.token_ids,
        "special": maps.special,
        "layers": maps.layers,
        "layers_counted_from": 0,
        "heads_counted_from": 0,
        "positions_counted_from": 0,
        "scopes": maps.scopes,
        "completeness": maps.completeness,
        "provenance": maps.provenance,
        "axes": {
            "maps": ["layer", "target", "source"],
            "allowed": ["layer", "target", "source"],
            "mixing_ratio": ["layer", "target"],
            "heads": ["layer", "head", "target", "source"],
            "standard_error": ["layer", "target", "source"],
        },
        "maps": maps.arrays,
        "allowed": maps.allowed,
        "mixing_ratio": maps.mixing,
        "heads": maps.heads,
        "standard_error": maps.standard_error,
    }
    if maps.coverage:  # the layers of arrays that cover only some, by "arrays/SCOPE"
        document["coverage"] = maps.coverage
    if maps.grid is not None:
        document |= saved_grid(maps.grid)
    if maps.source_axis is not None:
        document["source_tokens"] = maps.source_tokens
        document["sources"] = asdict(maps.source_axis)
        document["same_token"] = maps.is_same_token
        document["axes"]["same_token"] = ["target", "source"]
    if maps.routing is not None:  # one row per layer, token and expert, layers and tokens from 0
        document["routing"] = maps.routing.to_pandas().to_dict("records")
    if maps.stack:
        document["stack"] = maps.stack
        document["source_sequences"] = maps.table_sequences
    written = {key: plain(value) for key, value in document.items()}
    if maps.encoder is not None:
        written["encoder"] = maps_document(maps.encoder)
    return written


def _write_maps_csv(maps: Maps, path: str) -> None:
    words.write_csv(maps_table(maps), path)


def _write_maps_json(maps: Maps, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(maps_document(maps), file, ensure_ascii=False, allow_nan=False)
        file.write("\n")


_MAPS_WRITERS: dict[str, Callable[..., None]] = {
    ".csv": _write_maps_csv,
    ".json": _write_maps_json,
    ".png": write_picture,
    ".svg": write_picture,
    ".pdf": write_pages,
}
PICTURES = (".png", ".svg", ".pdf")
#: Endings of file names that `write` accepts.
FORMATS = (".safetensors", ".html", *_MAPS_WRITERS)


# Export of explanations to files for other programs; the file name's ending chooses the format.
#
# Layers, heads and positions of tokens count from 0 in all of them.


EXPLANATION_JSON = "normlens-explanation-json"
EXPLANATION_JSON_VERSION = 1
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

Explained = Explanation | Explanations


def write_explanation(
    result: Explained, path: str | Path, *, overwrite: bool = False, picture: str | None = None
) -> Path:
    """Write an explanation in the format that the ending of `path` names, whole or not at all.

    ``.safetensors`` holds everything and can be opened again, ``.json`` every number, ``.csv`` the
    contributions with a row for what no token owns; ``.html`` is the interactive page. `picture` is
    "tokens", "flow" or "components", and of several explanations "matrix" or, of an
    encoder–decoder's, "shares": ``.png`` and ``.svg`` show the first unless told otherwise,
    ``.pdf`` has a page for each.
    """
    suffix = check_format(path, () if picture is None else ("picture",))
    check_picture(picture, result)
    store.check_output(path, overwrite=overwrite)
    if suffix == ".safetensors":
        return result.save(path, overwrite=overwrite)
    if suffix == ".html":
        return result.to_html(path, overwrite=overwrite)
    with store.writing(path, overwrite=overwrite) as temporary:
        if suffix in PICTURES:
            _write_pictures(result, temporary, suffix, picture)
        else:
            _EXPLANATION_WRITERS[suffix](result, temporary)
    return Path(path)


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


# Tables ------------------------------------------------------------------------------------------


def explanation_table(result: Explained) -> pd.DataFrame:
    """One row per token, and one without a position for what no token owns.

    Of each next token, with its place and the token, where there are several explanations.
    """
    import pandas as pd

    if isinstance(result, Explanations):
        frames = [
            explanation_table(each).assign(predicted=place + 1, predicted_token=each.target)
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


def explanation_document(result: Explained) -> dict[str, Any]:
    """Everything as plain values for strict JSON: NaN and infinity become None."""
    each = list(result) if isinstance(result, Explanations) else [result]
    first = each[0]
    document = {
        "format": EXPLANATION_JSON,
        "version": EXPLANATION_JSON_VERSION,
        "model": first.provenance.get("model"),
        "text": first.text,
        "tokens": first.tokens,
        "raw_tokens": first.raw_tokens,
        "token_ids": first.token_ids,
        "special": first.special,
        **_of_two_sequences(first),
        **saved_grid(first.grid),
        "component_names": first.component_names,
        "layers_counted_from": 0,
        "heads_counted_from": 0,
        "positions_counted_from": 0,
        "axes": {"contributions": ["source"], **{name: [*axes] for name, axes in _axes().items()}},
        "explanations": [_document(why) for why in each],
    }
    return {key: plain(value) for key, value in document.items()}


def _of_two_sequences(why: Explanation) -> dict[str, Any]:
    """Which tokens and layers are whose, if there are two sequences."""
    if not why.has_two_sequences:
        return {}
    return {"sequences": why.token_sequences, "layer_names": why.layer_names}


def _axes() -> dict[str, tuple[str, ...]]:
    return {"flows" if name == "flow" else name: axes for name, axes in EXPLANATION.items()}


def _document(why: Explanation) -> dict[str, Any]:
    return {
        **{name: getattr(why, name) for name in _WRITTEN},
        "biases": [
            {"layer": layer, "component": component, "value": share}
            for layer, component, share in why.biases
        ],
        "flows": {scope or "whole layer": flow for scope, flow in why.flows.items()},
        **({"shares": asdict(why.shares)} if why.has_two_sequences else {}),
        **({} if why.cross_heads is None else {"cross_heads": why.cross_heads}),
    }


def _write_explanation_csv(result: Explained, path: str) -> None:
    words.write_csv(explanation_table(result), path)


def _write_explanation_json(result: Explained, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(explanation_document(result), file, ensure_ascii=False, allow_nan=False)
        file.write("\n")


_EXPLANATION_WRITERS: dict[str, Callable[[Explained, str], None]] = {
    ".csv": _write_explanation_csv,
    ".json": _write_explanation_json,
}


# Pictures ----------------------------------------------------------------------------------------


def _write_pictures(result: Explained, path: str, suffix: str, picture: str | None) -> None:
    if isinstance(result, Explanations):
        kinds = [picture or MATRIX]
        if picture is None and suffix == ".pdf" and result.has_two_sequences:
            kinds = [MATRIX, SHARES]
        figures = [result.plot_shares() if kind == SHARES else result.plot() for kind in kinds]
        if len(figures) == 1:
            save_figure(figures[0], path)
        else:
            save_pages(figures, path, f"NormLens: {result[0].provenance.get('model')}")
        return
    if picture is None and suffix == ".pdf":
        kinds = [kind for kind in PICTURE_KINDS if kind != FLOW or "" in result.flows]
        title = f"NormLens: {result.provenance.get('model')}, {result.question}"
        save_pages([_figure(result, kind) for kind in kinds], path, title)
        return
    save_figure(_figure(result, picture or TOKENS), path)


def _figure(why: Explanation, kind: str) -> Figure:
    if kind == FLOW:
        return why.plot_flow()
    return why.plot_components() if kind == COMPONENTS else why.plot()


# Export of cosines to files for other programs; the file name's ending chooses the format.
#
# Positions of tokens count from 0 in all of them.


COSINE_JSON = "normlens-cosine-json"
COSINE_JSON_VERSION = 1


def write_cosine(pair: Cosine, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a cosine in the format that the ending of `path` names, whole or not at all.

    ``.safetensors`` holds everything and can be opened again, ``.json`` every number, ``.csv`` the
    pairs of tokens with rows for the biases; ``.html`` is the interactive page, and ``.png``,
    ``.svg`` and ``.pdf`` are the picture.
    """
    suffix = check_format(path)
    store.check_output(path, overwrite=overwrite)
    if suffix == ".safetensors":
        return pair.save(path, overwrite=overwrite)
    if suffix == ".html":
        return pair.to_html(path, overwrite=overwrite)
    with store.writing(path, overwrite=overwrite) as temporary:
        if suffix == ".csv":
            words.write_csv(cosine_table(pair), temporary)
        elif suffix == ".json":
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(cosine_document(pair), file, ensure_ascii=False, allow_nan=False)
                file.write("\n")
        else:
            save_figure(pair.plot(), temporary)
    return Path(path)


def cosine_table(pair: Cosine) -> pd.DataFrame:
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


def cosine_document(pair: Cosine) -> dict[str, Any]:
    """Everything as plain values for strict JSON."""
    document = {
        "format": COSINE_JSON,
        "version": COSINE_JSON_VERSION,
        "model": pair.provenance.get("model"),
        "value": pair.value,
        "text_a": pair.text_a,
        "text_b": pair.text_b,
        "tokens_a": pair.tokens_a,
        "tokens_b": pair.tokens_b,
        "positions_counted_from": 0,
        "axes": {"matrix": ["a", "b"], "a_with_bias": ["a"], "b_with_bias": ["b"]},
        "matrix": pair.matrix,
        "a_with_bias": pair.a_with_bias,
        "b_with_bias": pair.b_with_bias,
        "bias": pair.bias,
        "margins": asdict(pair.margins),
        "remainder": pair.remainder,
        "completeness": pair.completeness,
        "provenance": pair.provenance,
    }
    return {key: plain(value) for key, value in document.items()}

"""Export results as CSV, JSON, pictures and pages; the file name's ending chooses the format.

Layers, heads and positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from normlens import figures
from normlens.errors import InputError, valid_choice
from normlens.results import explanation, store, words
from normlens.results.axes import BY_SCOPE, COSINE, EXPLANATION, PatchGrid, long_table, plain
from normlens.results.citation import Citation
from normlens.results.maps import Maps
from normlens.results.search import Ranking, Score
from normlens.results.store import Results
from normlens.results.words import NO_TOKEN_WORDS, by_stack, choose_in_stacks, map_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Explained: TypeAlias = explanation.Explanation | explanation.Explanations
Result: TypeAlias = Maps | Explained | explanation.Cosine | Ranking | Citation

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
    if layers is not None or scopes is not None:
        if not isinstance(result, Maps):
            raise InputError("layers and scopes choose among those of maps, not of other results")
        result = choose_in_stacks(result, layers, scopes)
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
            _draw(result, temporary, suffix == ".pdf", drawing)
    return Path(path)


def check_format(path: str | Path, drawing: Iterable[str] = ()) -> str:
    """The format that the ending of `path` names, or an error before any work is done.

    `drawing` names options that only pictures have.
    """
    suffix = store.check_ending(path, FORMATS)
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
    if isinstance(result, Maps):
        return _maps_table(result)
    if isinstance(result, (explanation.Explanation, explanation.Explanations)):
        return _explanation_table(result)
    if isinstance(result, explanation.Cosine) and getattr(result, "has_pairs", True):
        return _cosine_table(result)
    return result.to_pandas()


def document(result: Result) -> dict[str, Any]:
    """Everything as plain values for strict JSON: NaN and infinity become None."""
    first: Any = result[0] if isinstance(result, Results) else result
    if isinstance(result, Maps):
        name, fields = "maps", _maps_document(result)
    elif isinstance(result, Ranking):
        scores = [_score_document(score) for score in result]
        name, fields = "ranking", {"scores": scores, "given": result.places}
    elif isinstance(result, Score):
        name, fields = "score", _score_document(result)
    elif isinstance(result, Citation):
        name, fields = "citation", _citation_document(result)
    elif isinstance(result, explanation.Cosine):
        name, fields = "cosine", _cosine_document(result)
    else:
        each = [result] if isinstance(result, explanation.Explanation) else list(result)
        name, fields = "explanation", _explanation_document(each)
    model = first.provenance.get("model")
    about = {"format": f"normlens-{name}-json", "version": 1, "model": model}
    return dict(plain(about | fields))


def _named(result: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


def _grid(grid: PatchGrid | None) -> dict[str, Any]:
    return {} if grid is None else {"grid": _named(grid, "rows", "columns", "first")}


#: What documents of maps and of explanations say of a text's tokens, and how they count.
_LABELS = ("text", "tokens", "raw_tokens", "token_ids", "special")
_COUNTED = {f"{what}_counted_from": 0 for what in ("layers", "heads", "positions")}


# Figures as files that print well.


_RESOLUTION = 200  # pixels per inch
#: Publishers accept TrueType fonts, not Type 3; names in an SVG follow from the salt.
_PRINTED = {"pdf.fonttype": 42, "svg.hashsalt": "normlens"}


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure so that it prints well; the same figure gives the same bytes."""
    import matplotlib

    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context(_PRINTED):
        figure.savefig(path, dpi=_RESOLUTION, metadata=undated.get(Path(path).suffix.lower()))


def _draw(result: Result, path: str, paged: bool, drawing: dict[str, Any]) -> None:
    """Write the picture of a result, or all of its pictures as pages of one PDF."""
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages

    if isinstance(result, Ranking):
        raise InputError("a ranking has no picture; write its page (.html), or one of its scores")
    if isinstance(result, (explanation.Cosine, Citation)):
        return save_figure(result.plot(**drawing), path)
    first = result[0] if isinstance(result, explanation.Explanations) else result
    if isinstance(result, Maps):
        pages, title = _draw_maps(result, paged, drawing), "NormLens maps of {}"
    else:
        pages, title = _draw_explanation(result, paged, **drawing), "NormLens: {}"
    if not paged:
        return save_figure(next(pages), path)
    asked = f", {result.question}" if isinstance(result, explanation.Explanation) else ""
    about = {"Title": title.format(first.provenance.get("model")) + asked, "CreationDate": None}
    with matplotlib.rc_context(_PRINTED), PdfPages(path, metadata=about) as file:
        for figure in pages:
            file.savefig(figure, dpi=_RESOLUTION)


# Maps.


def _maps_table(maps: Maps) -> pd.DataFrame:
    """A table with one row per scope, layer, head, target and source, all counted from 0.

    Whole maps have no head. Of an encoder–decoder the columns `stack` and `source_sequence` say
    which stack a row is of, and whose token its source is.
    """
    table = map_rows(maps, "arrays", "heads")
    head = table.pop("head")
    table.insert(list(table).index("layer") + 1, "head", head)
    return table


def _maps_document(maps: Maps) -> dict[str, Any]:
    """The fields of maps; an encoder's beside them are a document inside it, ``encoder``."""
    pairs = BY_SCOPE["arrays"]
    fields: dict[str, Any] = {
        **_named(maps, *_LABELS, "layers"),
        **_COUNTED,
        **_named(maps, "scopes", "completeness", "provenance"),
        "axes": {
            "maps": pairs,
            "allowed": pairs,
            "mixing_ratio": BY_SCOPE["mixing"],
            "heads": BY_SCOPE["heads"],
            "standard_error": pairs,
        },
        "maps": maps.arrays,
        "allowed": maps.allowed,
        "mixing_ratio": maps.mixing,
        **_named(maps, "heads", "standard_error"),
    }
    if maps.coverage:  # the layers of arrays that cover only some, by "arrays/SCOPE"
        fields["coverage"] = maps.coverage
    fields |= _grid(maps.grid)
    if maps.source_axis is not None:
        fields["source_tokens"] = maps.source_tokens
        fields["sources"] = asdict(maps.source_axis)
        fields["same_token"] = maps.is_same_token
        fields["axes"]["same_token"] = ("target", "source")
    if maps.routing is not None:  # one row per layer, token and expert, layers and tokens from 0
        fields["routing"] = maps.routing.to_pandas().to_dict("records")
    if maps.stack:
        fields["stack"] = maps.stack
        fields["source_sequences"] = maps.table_sequences
    if maps.encoder is not None:
        fields["encoder"] = document(maps.encoder)
    return fields


def _draw_maps(maps: Maps, paged: bool, drawing: dict[str, Any]) -> Iterator[Figure]:
    """A picture of each layer, the encoder's first, or of each scope of an image; without pages
    the first one has them all.
    """
    over_picture = {"row", "column"} & set(drawing)
    heads_of, both = drawing.pop("heads_of", None), by_stack(maps)
    if heads_of is not None:
        if over_picture:
            raise InputError(
                "row and column are laid over an image, heads are not; choose one of them"
            )
        layers = maps.covered("heads", figures.head_scope(maps, heads_of)) if paged else [None]
        yield from (figures.plot_heads(maps, layer, heads_of, **drawing) for layer in layers)
    elif over_picture and maps.grid is None:
        raise InputError("row and column are laid over an image, and these maps are of none")
    elif maps.grid is not None and "normalise" not in drawing:
        colour = {name: drawing[name] for name in ("colour", "diagonal") if name in drawing}
        row, column = drawing.get("row"), drawing.get("column")
        for scope in maps.scopes if paged else maps.scopes[-1:]:
            yield figures.plot_patches(maps, None, scope, target=row, source=column, **colour)
    elif paged or len(both) == len(maps.layers) == 1:
        for one in both:
            # An encoder's sources are one sequence, of which nothing can be hidden.
            options = {**drawing, "sources": None} if maps.encoder is one else drawing
            yield from (figures.plot_layer(one, layer, **options) for layer in one.layers)
    else:
        yield figures.plot_overview(maps, **drawing)


# Explanations, one or those of each next token.


#: The method that draws each picture: those of one explanation, and those of several, a matrix and
#: what an encoder–decoder's two sequences supply.
_OF_ONE = {"tokens": "plot", "flow": "plot_flow", "components": "plot_components"}
_OF_SEVERAL = {"matrix": "plot", "shares": "plot_shares"}
PICTURE_KINDS, SEVERAL_KINDS = tuple(_OF_ONE), tuple(_OF_SEVERAL)

#: What JSON says of each explanation beside its biases and flows.
_WRITTEN = (
    *("task", "question", "value", "completeness", "provenance", "position", "layer"),
    *("target", "target_id", "target_value", "probability"),
    *("contrast", "contrast_id", "contrast_value", "contrast_probability"),
    *("contributions", "remainder", "nodes", "components", "heads", "head_flow"),
)


def _explanation_table(result: Explained) -> pd.DataFrame:
    """One row per token, and one without a position for what no token owns.

    Of each next token, with its place and the token, where there are several explanations.
    """
    import pandas as pd

    if isinstance(result, explanation.Explanations):
        return explanation.rows_of_each(result, map(_explanation_table, result))
    no_token = pd.DataFrame({"token": [NO_TOKEN_WORDS], "contribution": [result.remainder]})
    table = pd.concat([result.to_pandas(), no_token], ignore_index=True)
    return table.astype({"position": "Int64"})


def _explanation_document(each: list[explanation.Explanation]) -> dict[str, Any]:
    first = each[0]
    axes = {"flows" if name == "flow" else name: names for name, names in EXPLANATION.items()}
    fields = {
        **_named(first, *_LABELS, "component_names"),
        **_grid(first.grid),
        **_COUNTED,
        "axes": {"contributions": ["source"], **axes},
        "explanations": [_one_explanation(why) for why in each],
    }
    if first.has_two_sequences:  # which tokens and layers are whose
        fields |= {"sequences": first.token_sequences, "layer_names": first.layer_names}
    return fields


def _one_explanation(why: explanation.Explanation) -> dict[str, Any]:
    columns = "layer", "component", "value"
    fields = {
        **_named(why, *_WRITTEN),
        "biases": [dict(zip(columns, bias, strict=True)) for bias in why.biases],
        "flows": {scope or "whole layer": flow for scope, flow in why.flows.items()},
    }
    if why.has_two_sequences:
        fields |= {"shares": asdict(why.shares), "cross_heads": why.cross_heads}
    if why.edges is not None:
        fields |= _named(why, "edges", "edge_values", "edge_totals")
    if why.answer_ids is not None:
        fields |= _named(why, "answer_ids", "score", "log_probability")
    return fields


def _draw_explanation(
    result: Explained, paged: bool, picture: str | None = None
) -> Iterator[Figure]:
    """The picture that is named, or each of them; without pages the first one alone."""
    if isinstance(result, explanation.Explanations):
        drawers, lacking = _OF_SEVERAL, "" if result.has_two_sequences else "shares"
    else:
        drawers, lacking = _OF_ONE, "" if result.has_flow else "flow"
    kinds = [kind for kind in drawers if kind != lacking]
    if picture is not None:
        kinds = [valid_choice(picture, tuple(drawers), "picture")]
    for kind in kinds:
        yield getattr(result, drawers[kind])()


# Citations.


def _citation_document(cited: Citation) -> dict[str, Any]:
    return {
        **_named(cited, "question", "answer", "log_probability", "value", "score", "ablations"),
        "positions_counted_from": 0,
        "sources": cited.to_pandas().to_dict("records"),
        "parts": cited.parts,
        **_named(cited, "values", "log_probabilities"),
        "axes": {"matrix": ("part", "source"), "rest": ("part", "owner")},
        "matrix": cited.matrix,
        "rest": cited.rest,
        "rest_names": cited.rest_names,
        **_named(cited, "tokens", "token_ids", "owners", "token_scores"),
        **_named(cited, "completeness", "provenance"),
    }


# Cosines.


def _cosine_table(pair: explanation.Cosine) -> pd.DataFrame:
    """One row per pair of tokens; a row without a position is of a text's biases."""
    import pandas as pd

    a = long_table(pair.a_with_bias, {"a": range(len(pair.a)), "a_token": pair.tokens_a})
    b = long_table(pair.b_with_bias, {"b": range(len(pair.b)), "b_token": pair.tokens_b})
    of_biases = a, b, pd.DataFrame({"value": [pair.bias]})
    table = pd.concat([pair.to_pandas(), *of_biases], ignore_index=True)
    no_token = dict.fromkeys(("a_token", "b_token"), NO_TOKEN_WORDS)
    return table.fillna(no_token).astype({"a": "Int64", "b": "Int64"})


def _cosine_document(pair: explanation.Cosine) -> dict[str, Any]:
    return {
        **_named(pair, "value", "text_a", "text_b", "tokens_a", "tokens_b"),
        "positions_counted_from": 0,
        "axes": COSINE,
        **_named(pair, *COSINE, "bias"),
        "margins": asdict(pair.margins),
        **_named(pair, "remainder", "completeness", "provenance"),
    }


def _score_document(score: Score) -> dict[str, Any]:
    """A cosine's fields by the names of a score, and its terms."""
    fields = {
        **_named(score, "value", "query", "document"),
        "query_tokens": score.tokens_a,
        "document_tokens": score.tokens_b,
        "positions_counted_from": 0,
    }
    if score.has_pairs:
        fields |= {
            **_named(score, "pairs", "bias"),
            "query_with_bias": score.a_with_bias,
            "document_with_bias": score.b_with_bias,
        }
    fields |= _named(score, "remainder", "completeness", "provenance")
    fields |= _named(score, "kind", "by_query", "by_document")
    fields["terms"] = [] if score.term_values is None else score.terms().to_dict("records")
    return fields

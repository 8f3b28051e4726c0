"""Export of explanations to files for other programs; the file name's ending chooses the format.

Layers, heads and positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError, valid_choice
from normlens.exports import spreadsheet
from normlens.exports.map_export import PICTURES, check_format
from normlens.exports.printing import save_figure, save_pages
from normlens.plain_json import plain
from normlens.results import store
from normlens.results.axes import EXPLANATION
from normlens.results.contribution_rows import NO_TOKEN_WORDS
from normlens.results.explanation import Explanation
from normlens.results.explanation_header import EACH
from normlens.results.explanations import Explanations
from normlens.results.patches_file import saved_grid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

JSON_FORMAT = "normlens-explanation-json"
JSON_VERSION = 1
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
            _WRITERS[suffix](result, temporary)
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


def to_table(result: Explained) -> pd.DataFrame:
    """One row per token, and one without a position for what no token owns.

    Of each next token, with its place and the token, where there are several explanations.
    """
    import pandas as pd

    if isinstance(result, Explanations):
        frames = [
            to_table(each).assign(predicted=place + 1, predicted_token=each.target)
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


def to_document(result: Explained) -> dict[str, Any]:
    """Everything as plain values for strict JSON: NaN and infinity become None."""
    each = list(result) if isinstance(result, Explanations) else [result]
    first = each[0]
    document = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
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


def _write_csv(result: Explained, path: str) -> None:
    spreadsheet.write_csv(to_table(result), path)


def _write_json(result: Explained, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(to_document(result), file, ensure_ascii=False, allow_nan=False)
        file.write("\n")


_WRITERS: dict[str, Callable[[Explained, str], None]] = {".csv": _write_csv, ".json": _write_json}


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

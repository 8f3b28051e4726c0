"""Export of cosines to files for other programs; the file name's ending chooses the format.

Positions of tokens count from 0 in all of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.exports import spreadsheet
from normlens.exports.map_export import check_format
from normlens.exports.printing import save_figure
from normlens.plain_json import plain
from normlens.results import store
from normlens.results.contribution_rows import NO_TOKEN_WORDS
from normlens.results.cosine import Cosine

if TYPE_CHECKING:
    import pandas as pd

JSON_FORMAT = "normlens-cosine-json"
JSON_VERSION = 1


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
            spreadsheet.write_csv(to_table(pair), temporary)
        elif suffix == ".json":
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(to_document(pair), file, ensure_ascii=False, allow_nan=False)
                file.write("\n")
        else:
            save_figure(pair.plot(), temporary)
    return Path(path)


def to_table(pair: Cosine) -> pd.DataFrame:
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


def to_document(pair: Cosine) -> dict[str, Any]:
    """Everything as plain values for strict JSON."""
    document = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
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

"""Files: the numbers come back as they were, and a file is there whole or not at all."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from one_case import in_one_case

import normlens
from normlens.errors import OutputError
from normlens.models.tiny import tiny_model
from normlens.results import exports as export


@pytest.fixture(scope="module")
def maps() -> normlens.Maps:
    made = normlens.load(tiny_model("bert")).maps(input_ids=[5, 6, 7, 8, 9], heads=True)
    return replace(made, raw_tokens=["NA", 'a,"b"', "日本", "\n", "<b>"], text="NA …")


def strict_json(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, dtype={"head": str})


# Tables ------------------------------------------------------------------------------------------


def test_csv_holds_the_same_numbers(maps: normlens.Maps, tmp_path: Path) -> None:
    table = read_csv(export.write(maps, tmp_path / "maps.csv"))
    whole = table[table["head"] == ""]
    assert set(whole["scope"]) == set(maps.scopes)
    for scope in maps.scopes:
        rows = whole[whole["scope"] == scope]
        values = rows["value"].to_numpy(np.float32).reshape(maps[scope].shape)
        np.testing.assert_array_equal(values, maps[scope])
    assert sorted(set(table["layer"])) == [0, 1]
    assert table["layer"][0] == 0
    assert list(whole["target_token"][:25:5]) == maps.tokens
    assert list(whole["source_token"][:5]) == maps.tokens
    assert list(whole["source"][:5]) == [0, 1, 2, 3, 4]


def test_json_holds_the_same_numbers(maps: normlens.Maps, tmp_path: Path) -> None:
    document = strict_json(export.write(maps, tmp_path / "maps.json"))
    assert document["model"] == "BertModel"
    assert document["tokens"] == maps.tokens
    assert document["text"] == maps.text
    assert document["layers"] == [0, 1]
    assert document["layers_counted_from"] == document["heads_counted_from"] == 0
    assert document["scopes"] == list(document["maps"]) == maps.scopes
    assert document["provenance"] == maps.provenance
    assert document["completeness"] == maps.completeness
    for name, group in (
        ("maps", maps.arrays),
        ("heads", maps.heads),
        ("mixing_ratio", maps.mixing),
    ):
        assert set(document[name]) == set(group)
        for scope, array in group.items():
            np.testing.assert_array_equal(np.array(document[name][scope], np.float32), array)
    np.testing.assert_array_equal(document["allowed"], maps.allowed)


# Pictures ----------------------------------------------------------------------------------------


def test_one_layer_is_shown_large_and_several_as_rows(maps: normlens.Maps, tmp_path: Path) -> None:
    # Text is drawn as curves; matplotlib keeps the words in comments.
    one = export.write(maps, tmp_path / "one.svg", layers=1, scopes="FF").read_text()
    several = export.write(maps, tmp_path / "several.svg", scopes="FF").read_text()
    assert "<!-- BertModel, layer 1 -->" in one
    assert "<!-- BertModel, layers 0–1 -->" in several
    assert "<!-- layer 0 -->" in several
    assert "<!-- ATTNRESLNFF-N -->" in one
    assert "<!-- ATTNRESLNFF-N -->" in several


def test_pdf_has_a_page_per_layer(maps: normlens.Maps, tmp_path: Path) -> None:
    content = export.write(maps, tmp_path / "maps.pdf", scopes="FF").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", content)) == len(maps.layers)
    assert b"/Type3" not in content


def test_pictures_are_reproducible(maps: normlens.Maps, tmp_path: Path) -> None:
    for suffix in (".svg", ".pdf"):
        first, second = (
            export.write(maps, tmp_path / f"{k}{suffix}", layers=0, scopes="FF").read_bytes()
            for k in range(2)
        )
        assert first == second


# Whole or not at all -----------------------------------------------------------------------------


@in_one_case("suffix", [".csv", ".json", ".png", ".pdf"])
@in_one_case("error", [RuntimeError, OSError, KeyboardInterrupt])
def test_a_failed_write_leaves_nothing(
    maps: normlens.Maps,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    error: type[BaseException],
) -> None:
    def half(_: Any, path: str, *__: Any) -> None:
        Path(path).write_text("half")
        raise error("disk")

    writers = {".csv": (export.words, "write_csv"), ".json": (export, "write_json")}
    monkeypatch.setattr(*writers.get(suffix, (export, "_draw")), half)
    path = tmp_path / f"maps{suffix}"
    expected = OutputError if error is OSError else error
    with pytest.raises(expected):
        export.write(maps, path)
    assert not any(tmp_path.iterdir())
    path.write_text("mine")
    with pytest.raises(expected):
        export.write(maps, path, overwrite=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]

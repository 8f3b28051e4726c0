"""Crafted maps files: each is refused in one line, or is what it says and can be used."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crafted_files import save_crafted
from one_case import in_one_case
from safetensors import safe_open

import normlens
from normlens import cli
from normlens.errors import MapsFileError
from normlens.results import exports as export

#: What a header holds: every field but the masks, which are arrays.
FIELDS = sorted({each.name for each in fields(normlens.Maps)} - {"allowed", "same_token"})

DEEP = 100_000
BOMB = "[" * DEEP + "]" * DEEP

#: Values of every type that JSON knows, by how they are written; a field takes few of them.
VALUES = {
    "null": "null",
    "true": "true",
    "zero": "0",
    "minus one": "-1",
    "a fraction": "0.5",
    "NaN": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "a huge number": "9" * 400,
    "too many digits": "9" * 10_000,
    "a large float": "1e400",
    "a text": '"text"',
    "an empty text": '""',
    "an empty list": "[]",
    "texts": '["a", "b", "c"]',
    "too few texts": '["a"]',
    "numbers": "[0, 1, 2]",
    "numbers from the end": "[-1, -2, -3]",
    "numbers twice": "[0, 0, 0]",
    "huge numbers": f"[{'9' * 400}, 1, 2]",
    "fractions": "[0.5, 1.5, 2.5]",
    "flags": "[true, false, true]",
    "nulls": "[null, null, null]",
    "far words": "[0, 1, 99]",
    "lists": "[[0], [1], [2]]",
    "an empty object": "{}",
    "an object": '{"model": 3}',
    "a nested object": '{"model": {"model": {}}}',
    "numbers as versions": '{"versions": 3}',
    "a deep object": '{"model": "m", "x": ' + "[" * 500 + "]" * 500 + "}",
    "a bomb": BOMB,
    "an object with a bomb": '{"a":' * DEEP + "1" + "}" * DEEP,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from normlens.models.tiny import tiny_model

    lens = normlens.load(tiny_model("bert", dtype=torch.float32))
    maps = lens.maps(
        input_ids=[3, 9, 27], heads=True, statistics=True, nonlinearity="shapley", samples=2
    )
    return maps.save(tmp_path_factory.mktemp("maps") / "maps.safetensors")


def contents(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata())  # noqa: SIM118


def refused(path: Path) -> str:
    with pytest.raises(MapsFileError) as raised:
        normlens.open(path)
    line = str(raised.value)
    assert "\n" not in line
    assert len(line) < 600
    return line


def opened_and_used(path: Path, folder: Path) -> normlens.Maps | None:
    """The maps of a file, after all that may be done with them; None if it is refused."""
    try:
        maps = normlens.open(path)
    except MapsFileError:
        refused(path)
        return None
    repr(maps)
    maps.choose(layers=maps.layers[0], scopes=maps.scopes[0])
    if maps.token_words is not None:
        maps.words()
    export.write(maps, folder / "maps.csv", overwrite=True)
    export.write(maps, folder / "maps.json", overwrite=True)
    maps.to_html(folder / "maps.html", overwrite=True)
    maps.save(folder / "again.safetensors", overwrite=True)
    return maps


def test_half_a_character_is_one_line_on_the_command_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, header = contents(saved)
    meta = json.loads(header["maps"]) | {"text": "half \ud800"}
    crafted = tmp_path / "crafted.safetensors"
    save_crafted(tensors, crafted, metadata={**header, "maps": json.dumps(meta)})
    assert cli.main(["view", str(crafted), "--out", str(tmp_path / "page.html")]) == 2
    assert re.fullmatch(r"error: .*half.* is not valid Unicode.*\n", capsys.readouterr().err)
    assert not (tmp_path / "page.html").exists()


# The header ---------------------------------------------------------------------------------------


@in_one_case("field", FIELDS)
def test_every_field_with_every_kind_of_value(saved: Path, tmp_path: Path, field: str) -> None:
    tensors, header = contents(saved)
    meta = json.loads(header["maps"])
    before = {name: json.dumps(value) for name, value in meta.items()}
    taken = set()
    for name, value in VALUES.items():
        written = ", ".join(
            f'"{key}": {value if key == field else old}' for key, old in before.items()
        )
        save_crafted(
            tensors, tmp_path / "crafted.safetensors", metadata={**header, "maps": f"{{{written}}}"}
        )
        if opened_and_used(tmp_path / "crafted.safetensors", tmp_path) is not None:
            taken.add(name)
    assert (
        taken
        == {
            **{key: set() for key in ("arrays", "mixing", "heads", "standard_error", "statistics")},
            **{
                name: {"null"}
                for name in ("correlations", "source_axis", "encoder", "routing", "grid")
            },
            "coverage": {"an empty object"},
            "raw_tokens": {"texts"},
            "layers": set(),
            "completeness": {"zero", "a fraction", "NaN"},
            "provenance": {"an empty object"},
            "token_ids": {"an empty list", "numbers", "numbers twice", "far words"},
            "special": {"an empty list", "flags"},
            "token_words": {"null", "nulls"},
            "word_labels": {"an empty list", "texts", "too few texts"},
            "text": {"null", "a text", "an empty text"},
        }[field]
    )


@in_one_case("field", FIELDS)
def test_every_field_is_needed(saved: Path, tmp_path: Path, field: str) -> None:
    tensors, header = contents(saved)
    meta = json.loads(header["maps"])
    del meta[field]
    path = tmp_path / "crafted.safetensors"
    save_crafted(tensors, path, metadata={**header, "maps": json.dumps(meta)})
    assert f"{field!r} is missing" in refused(path)


@in_one_case("name", ["scopes", "allowed", "same_token", "tokens", "self", "surprise"])
def test_no_other_field_is_taken(saved: Path, tmp_path: Path, name: str) -> None:
    tensors, header = contents(saved)
    meta = json.loads(header["maps"]) | {name: {}}
    path = tmp_path / "crafted.safetensors"
    save_crafted(tensors, path, metadata={**header, "maps": json.dumps(meta)})
    assert f"{name!r} is no field" in refused(path)


@in_one_case("value", ["", "{", "[]", "null", "3", '"a"', BOMB, "\ud7ff", "{}"])
def test_what_the_header_says_of_itself(saved: Path, tmp_path: Path, value: str) -> None:
    tensors, header = contents(saved)
    path = tmp_path / "crafted.safetensors"
    save_crafted(tensors, path, metadata={**header, "maps": value})
    assert "damaged" in refused(path)


# Arrays -------------------------------------------------------------------------------------------


def changed_arrays(key: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """The array in other types and shapes; none of them is right."""
    kinds: list[type[np.generic]] = [np.int8, np.int32, np.uint16, np.uint64, np.complex64]
    if not np.issubdtype(array.dtype, np.floating):
        kinds.append(np.float16)
    found = {f"as {kind.__name__}": array.astype(kind) for kind in kinds}
    return found | {
        "flat": array.reshape(-1),
        "with one more axis": array[None],
        "a layer short": array[:-1],
        "without layers": array[:0],
        "with more layers": np.concatenate([array, array]),
        "a number": np.zeros((), array.dtype),
    }


def test_every_array_in_every_other_form(saved: Path, tmp_path: Path) -> None:
    tensors, header = contents(saved)
    path = tmp_path / "crafted.safetensors"
    assert {key.partition("/")[0] for key in tensors} == {
        "allowed",
        "arrays",
        "heads",
        "mixing",
        "standard_error",
        "statistics",
    }
    for key, array in tensors.items():
        for what, other in changed_arrays(key, array).items():
            save_crafted({**tensors, key: np.ascontiguousarray(other)}, path, metadata=header)
            assert repr(key) in refused(path), (key, what)


@in_one_case("group", ["arrays", "mixing", "heads", "standard_error", "other"])
def test_no_other_array_is_taken(saved: Path, tmp_path: Path, group: str) -> None:
    tensors, header = contents(saved)
    path = tmp_path / "crafted.safetensors"
    more = {f"{group}/NO-N": tensors["arrays/ATTN-N"]}
    save_crafted({**tensors, **more}, path, metadata=header)
    assert f"'{group}/NO-N'" in refused(path)


def test_every_array_of_a_scope_is_needed(saved: Path, tmp_path: Path) -> None:
    tensors, header = contents(saved)
    for key in tensors:
        if key == "allowed" or key.startswith("arrays/"):
            left = {name: array for name, array in tensors.items() if name != key}
            save_crafted(left, tmp_path / "crafted.safetensors", metadata=header)
            assert repr(key) in refused(tmp_path / "crafted.safetensors")


# The file -----------------------------------------------------------------------------------------


def raw(path: Path, header: str, data: bytes = b"") -> Path:
    encoded = header.encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


@in_one_case(
    "header",
    [
        BOMB,
        '{"a":' * DEEP + "1" + "}" * DEEP,
        "[]",
        '{"__metadata__": {"format": 3}}',
        '{"__metadata__": {"format": "normlens-maps", "version": "1", "maps": {}}}',
        '{"__metadata__": []}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 99]}}',
        '{"a": {"dtype": "F32", "shape": [18446744073709551615, 2], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "NO", "shape": [1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": 1, "data_offsets": [4, 0]}}',
    ],
)
def test_headers_that_safetensors_does_not_write(tmp_path: Path, header: str) -> None:
    refused(raw(tmp_path / "raw.safetensors", header, b"\0" * 4))


@in_one_case("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "BOOL", "I64", "F64"])
def test_arrays_of_types_that_maps_do_not_have(saved: Path, tmp_path: Path, dtype: str) -> None:
    _, header = contents(saved)
    size = {"BF16": 2, "I64": 8, "F64": 8}.get(dtype, 1)
    described = {
        "__metadata__": header,
        "allowed": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]},
    }
    refused(raw(tmp_path / "raw.safetensors", json.dumps(described), b"\0" * size))


def test_a_name_that_no_file_can_have() -> None:
    for name in ("a" * 300, "a\0b"):
        refused(Path(name))


def test_the_command_says_it_in_one_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, header = contents(saved)
    path = tmp_path / "crafted.safetensors"
    save_crafted(tensors, path, metadata={**header, "maps": BOMB})
    assert cli.main(["view", str(path), "--out", str(tmp_path / "maps.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nested too deeply" in line


def test_a_statistic_that_nobody_knows_is_refused(saved: Path, tmp_path: Path) -> None:
    """Its axes would be unknown to everything that selects from the maps."""
    tensors, header = contents(saved)
    meta = json.loads(header["maps"])
    meta["statistics"].append("mood")
    tensors["statistics/mood"] = tensors["statistics/ff_output_norm"]
    path = tmp_path / "crafted.safetensors"
    save_crafted(tensors, path, metadata={**header, "maps": json.dumps(meta)})
    assert "'statistics/mood' is no array" in refused(path)

"""Results files whose bytes have changed: refused, or the same numbers and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from one_case import in_one_case

import normlens
from normlens.errors import MapsFileError
from normlens.models.tiny import tiny_model
from normlens.results import files

IDS = [3, 9]


def of_bert() -> Any:
    return normlens.load(tiny_model("bert")).maps(input_ids=IDS, layers=0, scopes=["LN1", "FF"])


@pytest.fixture
def maps() -> Any:
    return of_bert()


@pytest.fixture
def path(maps: Any, tmp_path: Path) -> Path:
    return maps.save(tmp_path / "it.safetensors")


def entries(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file as JSON, and its data."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def write(path: Path, header: dict[str, Any], data: bytes) -> None:
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def damage(path: Path, name: str) -> None:
    """Change one number of an array."""
    header, data = entries(path)
    first = header[name]["data_offsets"][0]
    write(path, header, data[:first] + bytes([data[first] ^ 1]) + data[first + 1 :])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("field", ["data_offsets", "whole"])
def test_exchanged_arrays(mapped: bool, field: str, maps: Any, path: Path) -> None:
    header, data = entries(path)
    one, other = "arrays/ATTNRESLN-N", "arrays/ATTNRESLNFF-N"
    assert header[one]["shape"] == header[other]["shape"]
    if field == "whole":
        header[one], header[other] = header[other], header[one]
    else:
        header[one][field], header[other][field] = header[other][field], header[one][field]
    write(path, header, data)
    with pytest.raises(
        MapsFileError, match=r"it.safetensors' is damaged: the array .*verify=False"
    ):
        assert normlens.open(path, mapped=mapped) == maps
    assert normlens.open(path, mapped=mapped, verify=False) != maps


@in_one_case("value", ["", "{", "[]", "{}", '{"header": 1, "arrays": {}}', "null"])
def test_checksums_that_are_none(value: str, path: Path) -> None:
    header, data = entries(path)
    header["__metadata__"][files.KEY] = value
    write(path, header, data)
    with pytest.raises(MapsFileError):
        normlens.open(path)


# Arrays that stay in the file ---------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all arrays that are read to be checked, as they are read."""
    shapes: list[tuple[int, ...]] = []
    of_array = files._of_array

    def noted(array: Any) -> str:
        shapes.append(array.shape)
        return of_array(array)

    monkeypatch.setattr(files, "_of_array", noted)
    return shapes


@pytest.mark.parametrize("written", ["saved", "layer by layer"])
def test_an_array_is_checked_when_it_is_first_used(
    written: str, read: list[tuple[int, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "it.safetensors"
    lens = normlens.load(tiny_model("bert"))
    if written == "saved":
        lens.maps(input_ids=IDS, heads=True).save(path)
    else:
        lens.maps(input_ids=IDS, heads=True, out=path)
    damage(path, "arrays/ATTN-N")
    read.clear()
    maps = normlens.open(path, mapped=True)
    assert "2 tokens" in repr(maps)
    assert read == [maps.allowed.shape]
    assert len(maps["FF"]) == len(maps["FF"]) == 2
    assert len(read) == 2
    assert maps.choose(scopes="FF", layers=1)["FF"].shape == (1, 2, 2)
    for _ in range(2):
        with pytest.raises(MapsFileError):
            maps["ATTN-N"]
    with pytest.raises(MapsFileError):
        normlens.open(path)
    assert normlens.open(path, mapped=True, verify=False)["ATTN-N"].shape == maps["FF"].shape

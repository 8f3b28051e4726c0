"""Maps on disk: what is written is read, and nothing else is."""

from __future__ import annotations

import os
import stat
import typing

import numpy as np
import pytest
import torch
from one_case import in_one_case
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from typing_extensions import TypeAliasType

import normlens
from normlens.errors import MapsFileError, OutputError
from normlens.results import store

IDS = [3, 9, 27, 14, 5]


@pytest.fixture
def maps(tiny) -> normlens.Maps:
    return normlens.load(tiny("bert", torch.float32)).maps(input_ids=IDS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "maps.safetensors"


def test_arrays_are_known_by_an_alias():
    """From NumPy 2.5 on, `NDArray` is an alias that must be looked through."""
    scalar = typing.TypeVar("scalar", bound=np.generic)
    array = np.ndarray[tuple[typing.Any, ...], np.dtype[scalar]]
    alias = TypeAliasType("alias", array, type_params=(scalar,))
    for hint in (alias[np.float32], alias[np.float32] | None):
        arrays = {}
        assert store.encode(dict[str, hint], {"a": np.zeros(2, np.float32)}, "x/", arrays) == ["a"]
        assert list(arrays) == ["x/a"]


# Writing ------------------------------------------------------------------------------------------


def test_another_safetensors_file_stays(maps, path):
    save_file({"weight": np.zeros(3, np.float32)}, path, metadata={"format": "pt"})
    with pytest.raises(OutputError):
        maps.save(path)
    with safe_open(path, framework="numpy") as file:
        assert list(file.keys()) == ["weight"]


def test_a_folder_that_does_not_exist(maps, tmp_path):
    with pytest.raises(OutputError):
        maps.save(tmp_path / "nowhere" / "maps.safetensors")


@in_one_case(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
    ],
    ids=["system", "safetensors"],
)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(maps, path, monkeypatch, error):
    maps.save(path)
    before = path.read_bytes()

    def fail(tensors, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise error

    monkeypatch.setattr(store, "save_file", fail)
    with pytest.raises(OutputError):
        maps.save(path, overwrite=True)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_the_file_is_readable_like_any_other(maps, path):
    maps.save(path)
    other = path.parent / "other"
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


# Reading ------------------------------------------------------------------------------------------


def test_no_file(tmp_path):
    for missing in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(MapsFileError):
            normlens.open(missing)


@in_one_case("content", [b"", b"hello", b"\0" * 100, b"\xff" * 64, b"PK\x03\x04zip"])
def test_what_is_not_safetensors(content, path):
    path.write_bytes(content)
    with pytest.raises(MapsFileError):
        normlens.open(path)


@in_one_case("metadata", [None, {}, {"format": "pt"}])
def test_safetensors_of_another_kind(metadata, path):
    save_file({"weight": np.zeros(3)}, path, metadata=metadata)
    with pytest.raises(MapsFileError):
        normlens.open(path)

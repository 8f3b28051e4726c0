"""Maps that go to a file layer by layer are the same maps, and memory never holds them all."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forking import run_python
from one_case import in_one_case
from safetensors import safe_open
from unlike_examples import _own_registry, reader, unlike  # noqa: F401

import normlens
from normlens import Maps
from normlens.errors import OutputError
from normlens.models.tiny import tiny_families, tiny_model
from normlens.results import files as growing_file

IDS = [3, 9, 27, 14, 5, 33, 8]
#: Layers that differ, two stacks, experts, sources of another sequence.
FAMILIES = ("bert", "gpt2", "mistral", "gemma3_text", "t5", "mixtral", "deepseek_v3", "mobilebert")


def ids_of(lens: normlens.Lens) -> dict[str, Any]:
    return {"input_ids": IDS, **({"decoder_input_ids": [2, 5, 7]} if lens.two_stacks else {})}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@in_one_case("family", [name for name in FAMILIES if name in tiny_families()])
@in_one_case("map_dtype", ["auto", "float16"])
def test_the_same_maps(family: str, map_dtype: str, tmp_path: Path) -> None:
    lens = normlens.load(tiny_model(family))
    ids = ids_of(lens)
    asked: dict[str, Any] = {"heads": True, "statistics": True, "map_dtype": map_dtype}
    if lens.layers[0].by_source:
        del asked["statistics"]
    expected = lens.maps(**ids, **asked)
    written = lens.maps(**ids, **asked, out=tmp_path / "maps.safetensors")
    assert written == expected
    assert written.provenance == expected.provenance
    assert Maps.load(tmp_path / "maps.safetensors") == expected
    assert names_in(tmp_path) == ["maps.safetensors"]
    for maps in (written, written.encoder):
        for arrays in maps.groups.values() if maps is not None else ():
            assert all(array.flags.writeable for array in arrays.values())


@in_one_case("model", [unlike, reader])
@in_one_case("map_dtype", ["auto", "float32", "float16"])
def test_layers_that_lack_a_scope_leave_no_gap(model: Any, map_dtype: str, tmp_path: Path) -> None:
    """Room is kept for all layers; arrays of fewer move together in the end."""
    lens = normlens.load(model())
    expected = lens.maps(input_ids=IDS, map_dtype=map_dtype)
    assert expected.coverage
    path = tmp_path / "maps.safetensors"
    assert lens.maps(input_ids=IDS, map_dtype=map_dtype, out=path) == expected
    assert Maps.load(tmp_path / "maps.safetensors") == expected


# Refused, or ended ------------------------------------------------------------------------------


def test_a_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    lens = normlens.load(tiny_model("bert"))
    path = tmp_path / "maps.safetensors"
    path.write_bytes(b"mine")
    with pytest.raises(OutputError):
        lens.maps(input_ids=IDS, out=path)
    assert path.read_bytes() == b"mine"
    lens.maps(input_ids=IDS, out=path, overwrite=True)
    assert Maps.load(path) == lens.maps(input_ids=IDS)


def test_a_call_that_fails_leaves_nothing(tmp_path: Path) -> None:
    lens = normlens.load(tiny_model("bert"))
    path = tmp_path / "maps.safetensors"
    path.write_bytes(b"mine")

    def stop(done: int, _: int) -> None:
        assert len(names_in(tmp_path)) == 2  # the temporary file is there
        raise RuntimeError(f"stopped behind layer {done}")

    with pytest.raises(RuntimeError, match="stopped behind layer 1"):
        lens.maps(input_ids=IDS, out=path, overwrite=True, progress=stop)
    assert names_in(tmp_path) == ["maps.safetensors"]
    assert path.read_bytes() == b"mine"


KILLED = """
import os, signal, sys, normlens
from normlens.models.tiny import tiny_model
stop = lambda done, _: os.kill(os.getpid(), signal.SIGKILL)
normlens.load(tiny_model("bert")).maps(input_ids=[3, 9, 27], out=sys.argv[1], progress=stop)
"""


@pytest.mark.slow
def test_a_killed_call_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    assert run_python(KILLED, path).returncode == -9
    assert not path.exists()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OutputError):
        normlens.load(tiny_model("bert")).maps(input_ids=IDS, out=tmp_path / "maps.safetensors")
    assert names_in(tmp_path) == []


# Memory -----------------------------------------------------------------------------------------


def held() -> int:
    """Bytes of all tensors that the collector sees, and of what Python and NumPy have allocated."""
    tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
    storages = [tensor.untyped_storage() for tensor in tensors]
    return (
        sum({each.data_ptr(): each.nbytes() for each in storages}.values())
        + (tracemalloc.get_traced_memory()[0])
    )


def most_held(lens: normlens.Lens, ids: list[int], **asked: Any) -> tuple[int, int]:
    """Bytes by which memory grows at most, behind a layer or at the end, and those of the maps."""
    sizes: list[int] = []
    gc.freeze()  # what other tests have left does not change, and is not looked through
    tracemalloc.start()
    try:
        before = held()
        maps = lens.maps(input_ids=ids, progress=lambda *_: sizes.append(held() - before), **asked)
        sizes.append(held() - before)
        at_most = max(*sizes, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    return at_most, sum(array.nbytes for array in maps.arrays.values()) + maps.allowed.nbytes


def test_memory_does_not_hold_the_maps(tmp_path: Path) -> None:
    lens = normlens.load(tiny_model("gpt2", n_layer=24, n_positions=256))
    ids = [k % 60 for k in range(256)]
    lens.maps(input_ids=ids[:9])
    kept, total = most_held(lens, ids)
    assert kept > total  # this is what is measured
    streamed, same = most_held(lens, ids, out=tmp_path / "maps.safetensors")
    assert same == total
    assert streamed < total / 2


# The file itself --------------------------------------------------------------------------------


def test_a_growing_file_is_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.touch()
    file = growing_file.GrowingFile(str(path), 500)
    first = file.place("first", (4, 3), np.dtype(np.float32))
    half = file.under("of/")("half", (5,), np.dtype(np.float16))
    first[:2] = np.arange(6).reshape(2, 3)
    half[:] = 7
    more = np.arange(4, dtype=np.int64)
    file.finish({"first": first[:2], "of/half": half, "more": more}, {"format": "é"})
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "é"}
        assert np.array_equal(opened.get_tensor("first"), np.arange(6).reshape(2, 3))
        assert np.array_equal(opened.get_tensor("of/half"), np.full(5, 7, np.float16))
        assert np.array_equal(opened.get_tensor("more"), more)
    arrays = growing_file.mapped_arrays(path)
    assert np.array_equal(arrays["more"], more)
    assert np.array_equal(arrays["of/half"], np.full(5, 7, np.float16))

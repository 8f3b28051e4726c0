"""Results files whose bytes have changed: refused, or the same numbers and labels."""

from __future__ import annotations

import copy
import json
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_case import in_one_case
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import GPT2LMHeadModel

import normlens
from normlens import cli
from normlens.errors import MapsFileError
from normlens.models.tiny import tiny_model
from normlens.results import files

IDS = [3, 9]


def of_bert() -> Any:
    return normlens.load(tiny_model("bert")).maps(input_ids=IDS, layers=0, scopes=["LN1", "FF"])


def of_two_stacks() -> Any:
    lens = normlens.load(tiny_model("t5"))
    return lens.maps(input_ids=IDS, decoder_input_ids=[2])


def of_experts() -> Any:
    return normlens.load(tiny_model("mixtral")).maps(input_ids=IDS, layers=0, scopes=["ATTN-N"])


def explained(position: Any = -1) -> Any:
    model = GPT2LMHeadModel(tiny_model("gpt2").config).eval()
    return normlens.load(model, tokenizer=False).explain(input_ids=IDS, position=position)


def all_explained() -> Any:
    return explained("all")


def cosine() -> Any:
    return normlens.load("minilm").cosine("A flute.", "It plays.")


def rollout() -> Any:
    lens = normlens.load(tiny_model("bert"))
    return lens.maps(input_ids=IDS, scopes=["FF"]).rollout("FF")


#: A result, every how many bytes one is changed, and whether the arrays stay in the file.
KINDS = [
    (of_bert, 29, False),
    (of_bert, 29, True),
    (of_two_stacks, 97, False),
    (of_two_stacks, 97, True),
    (of_experts, 97, True),
    (rollout, 29, False),
    (explained, 29, False),
    (all_explained, 29, False),
    (all_explained, 97, True),
    (cosine, 29, False),
]


def provenances(result: Any) -> list[Any]:
    each = result if isinstance(result, normlens.Explanations) else [result]
    return [
        maps.provenance
        for one in each
        for maps in (one, getattr(one, "encoder", None))
        if maps is not None
    ]


@pytest.mark.parametrize("finer", [1, pytest.param(7, marks=pytest.mark.slow)])
@in_one_case(("make", "stride", "mapped"), KINDS)
def test_no_changed_byte_changes_a_number_or_a_label(
    make: Callable[[], Any], stride: int, mapped: bool, finer: int, tmp_path: Path
) -> None:
    stride = -(-stride // finer)
    expected = make()
    path = expected.save(tmp_path / "it.safetensors")
    content = path.read_bytes()
    refused = 0
    for place in range(0, len(content), stride):
        flipped = content[place] ^ (1 << place // stride % 8)
        path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a byte in the name of the checksums' field
                found = normlens.open(path, mapped=mapped)
            assert found == expected, place
            assert provenances(found) == provenances(expected), place
        except MapsFileError:
            refused += 1
    assert refused > 0.9 * len(content) / stride
    path.write_bytes(content)
    assert normlens.open(path, mapped=mapped) == expected  # it is the change that is refused


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


def test_a_changed_label(maps: Any, path: Path) -> None:
    header, data = entries(path)
    header["__metadata__"]["maps"] = header["__metadata__"]["maps"].replace("[3, 9]", "[3, 8]")
    write(path, header, data)
    for mapped in (False, True):
        with pytest.raises(MapsFileError, match="its header does not match its checksum"):
            normlens.open(path, mapped=mapped)
    assert normlens.open(path, verify=False).token_ids == [3, 8]


@in_one_case("value", ["", "{", "[]", "{}", '{"header": 1, "arrays": {}}', "null"])
def test_checksums_that_are_none(value: str, path: Path) -> None:
    header, data = entries(path)
    header["__metadata__"][files.KEY] = value
    write(path, header, data)
    with pytest.raises(MapsFileError, match="damaged"):
        normlens.open(path)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_without_checksums_is_opened_with_a_warning(
    mapped: bool, maps: Any, path: Path
) -> None:
    header, data = entries(path)
    del header["__metadata__"][files.KEY]
    write(path, header, data)
    with pytest.warns(UserWarning, match=r"it.safetensors' has no checksums.*save it again"):
        assert normlens.open(path, mapped=mapped) == maps
    assert normlens.open(path, mapped=mapped, verify=False) == maps


def test_a_file_of_an_older_normlens_can_be_saved_again(maps: Any, path: Path) -> None:
    with safe_open(path, "np") as file:
        metadata = {key: text for key, text in file.metadata().items() if key != files.KEY}
    save_file(load_file(path), path, metadata=metadata)
    with pytest.warns(UserWarning, match="no checksums"):
        normlens.open(path).save(path)
    assert normlens.open(path) == maps


def test_the_command_warns_in_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, data = entries(path)
    del header["__metadata__"][files.KEY]
    write(path, header, data)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["view", str(path), "--out", str(path.with_suffix(".html"))]) == 0
    assert re.fullmatch(r"warning: .*no checksums.*\n", capsys.readouterr().err)


def test_the_command_refuses_a_damaged_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path, "arrays/ATTNRESLN-N")
    assert cli.main(["view", str(path), "--out", str(path.with_suffix(".html"))]) == 2
    assert re.fullmatch(r"error: .*does not match its checksum.*\n", capsys.readouterr().err)
    assert not path.with_suffix(".html").exists()


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
        with pytest.raises(MapsFileError, match=r"the array 'arrays/ATTN-N' does not match"):
            maps["ATTN-N"]
    with pytest.raises(MapsFileError, match="damaged"):
        normlens.open(path)
    assert normlens.open(path, mapped=True, verify=False)["ATTN-N"].shape == maps["FF"].shape


def test_a_damaged_array_of_the_encoder(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    expected = of_two_stacks()
    expected.save(path)
    damage(path, "encoder/arrays/ATTN-N")
    maps = normlens.open(path, mapped=True)
    assert np.array_equal(maps["ATTN-N"], expected["ATTN-N"])
    with pytest.raises(MapsFileError, match="'encoder/arrays/ATTN-N'"):
        maps.encoder["ATTN-N"]


@in_one_case("name", ["allowed", "routing/weights"])
def test_what_opening_reads_is_checked_then(name: str, tmp_path: Path) -> None:
    path = of_experts().save(tmp_path / "it.safetensors")
    damage(path, name)
    with pytest.raises(MapsFileError, match=f"the array '{name}'"):
        normlens.open(path, mapped=True)


def test_copies_of_mapped_maps_are_plain(maps: Any, path: Path) -> None:
    mapped = normlens.open(path, mapped=True)
    for copied in (pickle.loads(pickle.dumps(mapped)), copy.deepcopy(mapped)):
        assert copied == maps
        assert type(copied.arrays) is dict
    damage(path, "arrays/ATTNRESLN-N")
    with pytest.raises(MapsFileError, match="damaged"):
        pickle.dumps(normlens.open(path, mapped=True))

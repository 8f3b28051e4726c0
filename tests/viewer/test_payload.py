"""The payload: what is kept, how exactly, and what a page may contain."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from viewer_examples import hostile_maps

from normlens.errors import InputError
from normlens.results.maps import Maps
from normlens.viewer import encode, pages, to_html
from normlens.viewer.pages import fitted


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    assert data[:8] == b"NLVIEW01"
    length = int.from_bytes(data[8:12], "little")
    assert (12 + length) % 3 == 0
    return json.loads(data[12 : 12 + length]), data[12 + length :]


def decode(blob: dict[str, Any], blobs: bytes) -> NDArray:
    """The contract, read once more: raw deflate, byte planes, codes."""
    assert blob["at"] % 3 == 0
    planes = zlib.decompress(blobs[blob["at"] : blob["at"] + blob["length"]], -15)
    kind = {"f32": "<f4", "log16": "<u2", "log8": "<u1"}[blob["coding"]]
    size = np.dtype(kind).itemsize
    values = np.frombuffer(
        np.frombuffer(planes, np.uint8).reshape(size, -1).T.tobytes(), dtype=kind
    )
    if blob["coding"] == "f32":
        return values
    top = 2 ** (8 * size) - 1
    decoded = np.exp(blob["low"] + (values.astype(float) - 1) * blob["step"])
    decoded[values == 0] = 0
    decoded[values == top] = np.nan
    return decoded


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("precision", [32, 16, 8])
def test_values_come_back_as_exact_as_the_header_says(causal, precision):
    maps = hostile_maps(9, 3, causal)
    head, blobs = header_of(encode(maps, precision=precision))
    (item,) = head["items"]
    error = item["precision"]["relative_error"]
    assert error < {32: 1e-7, 16: 1e-4, 8: 0.03}[precision]
    assert item["masks"] == (["lower"] if causal else ["all"])
    for scope, array in maps.arrays.items():
        for layer, blob in enumerate(item["maps"][scope]):
            wanted = array[layer][maps.allowed[layer]]
            np.testing.assert_allclose(decode(blob, blobs), wanted, rtol=error * 1.001 + 1e-12)
    for scope, ratio in maps.mixing.items():
        found = decode(item["mixing"][scope], blobs)
        np.testing.assert_array_equal(found, ratio.astype(np.float32).ravel())


def test_zero_nan_and_equal_values_keep_their_meaning():
    maps = hostile_maps(3, 1)
    odd = np.array([[[0, np.nan, 2], [2, 2, 0], [2, 2, 2]]], dtype=np.float32)
    maps = replace(maps, arrays={"ATTN-N": odd}, mixing={})
    head, blobs = header_of(encode(maps))
    found = decode(head["items"][0]["maps"]["ATTN-N"][0], blobs)
    np.testing.assert_allclose(found, odd.ravel(), rtol=1e-12)


def test_masks_of_windows_and_values_outside_masks_are_kept():
    maps = hostile_maps(6, 2)
    window = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) <= 1
    maps = replace(maps, allowed=np.stack([window, np.ones((6, 6), dtype=bool)]))
    head, blobs = header_of(encode(maps, precision=32))
    item = head["items"][0]
    assert item["allowed"] == [0, 1]
    bits = zlib.decompress(blobs[: item["masks"][0]["length"]], -15)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:36]
    np.testing.assert_array_equal(unpacked.reshape(6, 6), window)
    # This map has values where the mask has none, so all of them are stored.
    assert item["maps"]["ATTN-N"][0]["full"]
    np.testing.assert_array_equal(
        decode(item["maps"]["ATTN-N"][0], blobs), maps["ATTN-N"][0].ravel()
    )


def test_half_identity_is_not_stored():
    maps = hostile_maps()
    weights = maps.arrays["ATTN-W"]
    half = (0.5 * weights + 0.5 * np.eye(4)).astype(np.float32)
    item = header_of(encode(replace(maps, arrays={**maps.arrays, "ATTNRES-W": half})))[0]["items"][
        0
    ]
    assert item["derived"] == {"ATTNRES-W": "ATTN-W"}
    assert "ATTNRES-W" in item["scopes"]
    assert "ATTNRES-W" not in item["maps"]
    item = header_of(encode(replace(maps, arrays={**maps.arrays, "ATTNRES-W": weights})))[0][
        "items"
    ][0]
    assert item["derived"] == {}


def test_odd_requests_are_refused():
    with pytest.raises(InputError, match="32, 16, 8"):
        encode(hostile_maps(), precision=12)
    with pytest.raises(InputError, match="32, 16, 8"):
        encode(hostile_maps(), head_precision=12)
    with pytest.raises(InputError, match="no maps"):
        encode([])
    with pytest.raises(InputError, match="not str"):
        encode(["maps"])  # type: ignore[list-item]


def large(n: int, layers: int) -> Maps:
    rng = np.random.default_rng(0)
    maps = hostile_maps(n, layers)
    names = ["ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"]
    more = {name: rng.lognormal(0, 2, (layers, n, n)).astype(np.float32) for name in names}
    return replace(maps, arrays={**maps.arrays, **more}, raw_tokens=[f"t{k}" for k in range(n)])


def test_512_tokens_stay_below_sixty_megabytes():
    """By its twelfth part: one layer, whose blobs have no more in common with other layers."""
    data = encode(large(512, 1))
    assert 12 * len(data) * 4 / 3 + len(pages.script()) < 60e6


def test_a_file_that_is_too_large_leaves_out_layers_and_says_so():
    maps = large(40, 8)
    whole = len(fitted([maps], 16, None))
    limit = (0.4 * whole * 4 / 3 + len(pages.script()) + 10_000) / 1e6
    data = fitted([maps], 16, limit)
    (item,) = header_of(data)[0]["items"]
    assert 1 < len(item["layers"]) <= 3
    assert {0, 7} <= set(item["layers"])
    (note,) = item["left_out"]
    assert f"{len(item['layers'])} of 8 layers" in note
    with pytest.raises(InputError, match="precision=8"):
        fitted([maps], 16, 0.15)


def with_heads(maps: Maps, count: int = 3) -> Maps:
    rng = np.random.default_rng(4)
    layers, n, m = maps.allowed.shape
    drawn = rng.lognormal(0, 4, (layers, count, n, m)) * maps.allowed[:, None]
    return replace(maps, heads={"ATTN-N": drawn.astype(np.float32)})


@pytest.mark.parametrize("precision", [32, 16, 8])
def test_heads_come_back_as_exact_as_the_header_says(precision):
    maps = with_heads(hostile_maps(9, 2, causal=True))
    head, blobs = header_of(encode(maps, precision=32, head_precision=precision))
    (item,) = head["items"]
    assert item["left_out"] == []
    error = item["precision"]["head_relative_error"]
    assert item["precision"]["head_bits"] == precision
    assert error < {32: 1e-7, 16: 3e-4, 8: 0.03}[precision]
    for layer, heads in enumerate(item["heads"]["ATTN-N"]):
        for number, blob in enumerate(heads):
            wanted = maps.heads["ATTN-N"][layer, number][maps.allowed[layer]]
            # In 8 bits the smallest of the values become 0.
            least = 2.0**-20 * wanted.max() if precision == 8 else 1e-12
            found = decode(blob, blobs)
            np.testing.assert_allclose(found, wanted, rtol=error * 1.001 + 1e-12, atol=least)


def heads_in(data: bytes) -> tuple[int, int, list[str]]:
    """How many layers there are, how many have heads, and what is said to be left out."""
    (item,) = header_of(data)[0]["items"]
    rows = item["heads"].get("ATTN-N", [])
    return len(item["layers"]), sum(row is not None for row in rows), item["left_out"]


def test_heads_take_the_room_that_is_left():
    """Maps of all layers come first; then heads of some layers, or none, and the page says so."""
    maps = with_heads(large(40, 8), 12)
    bare = len(fitted([large(40, 8)], 16, None))
    whole = len(fitted([maps], 16, None))
    assert heads_in(fitted([maps], 16, None)) == (8, 8, [])
    around = len(pages.script()) + 10_000

    def limit(payload: float) -> float:
        return (payload * 4 / 3 + around) / 1e6

    assert heads_in(fitted([maps], 16, limit(whole + 9))) == (8, 8, [])
    layers, having, (note,) = heads_in(fitted([maps], 16, limit((bare + whole) / 2)))
    assert layers == 8
    assert 1 <= having < 8
    assert f"Single heads of {having} of 8 layers" in note
    layers, having, (note,) = heads_in(fitted([maps], 16, limit(1.01 * bare)))
    assert (layers, having) == (8, 0)
    assert "Single heads are left out" in note
    layers, having, notes = heads_in(fitted([maps], 16, limit(0.5 * bare)))
    assert layers < 8
    assert "layers are in this file" in notes[0]
    for share in (0.5, 1.01, 2, 4):
        assert len(fitted([maps], 16, limit(share * bare))) <= share * bare


def test_no_token_is_markup_in_the_page(tmp_path):
    text = to_html(hostile_maps(), tmp_path / "maps.html").read_text()
    assert "alert(" not in re.sub(r"<title>.*?</title>", "", text, flags=re.S)
    assert len(re.findall("<script", text)) - pages.script().count("<script") == 2
    assert len(re.findall("</script", text)) == 2
    assert "<!--" not in text


def notices() -> str:
    """The comment at the head of the front end that holds the licences."""
    found = re.match(r"/\*!.*?\*/\n", pages.script(), re.DOTALL)
    assert found, "viewer.js begins without licences; build it with `make viewer`"
    return found[0]


def test_pages_name_no_other_host(tmp_path):
    """Namespaces of SVG and XHTML are names, not addresses that are fetched; so are licences'."""
    text = to_html(hostile_maps(), tmp_path / "maps.html").read_text() + pages.shell()
    assert notices() in text
    text = text.replace(notices(), "")
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"www.w3.org"}
    assert 'src="static/viewer.js"' in pages.shell()


def test_the_front_end_carries_the_licences_of_what_is_in_it():
    text = notices()
    named = set(re.findall(r"(d3-[\w-]+) \d", text))
    package = Path(__file__).resolve().parents[2] / "viewer" / "package.json"
    assert named >= set(json.loads(package.read_text())["dependencies"])
    # Those of d3's own dependencies whose code is in the file.
    assert named >= {"d3-array", "d3-color"}
    for phrase in (
        "Mike Bostock",
        "Permission to use, copy, modify, and/or distribute this software",
        "provided that the above copyright notice\nand this permission notice appear in all copies",
        "Cynthia Brewer, Mark Harrower, and The Pennsylvania State University",
    ):
        assert phrase in text

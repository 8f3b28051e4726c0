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
from normlens.viewer import encode, page, to_html
from normlens.viewer.html import fitted


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
def test_values_come_back_as_exact_as_the_header_says(causal: bool, precision: int) -> None:
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


def test_zero_nan_and_equal_values_keep_their_meaning() -> None:
    maps = hostile_maps(3, 1)
    odd = np.array([[[0, np.nan, 2], [2, 2, 0], [2, 2, 2]]], dtype=np.float32)
    maps = replace(maps, arrays={"ATTN-N": odd}, mixing={})
    head, blobs = header_of(encode(maps))
    found = decode(head["items"][0]["maps"]["ATTN-N"][0], blobs)
    np.testing.assert_allclose(found, odd.ravel(), rtol=1e-12)


def test_masks_of_windows_and_values_outside_masks_are_kept() -> None:
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


def test_half_identity_is_not_stored() -> None:
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


def test_odd_requests_are_refused() -> None:
    with pytest.raises(InputError, match="32, 16, 8"):
        encode(hostile_maps(), precision=12)
    with pytest.raises(InputError, match="no maps"):
        encode([])
    with pytest.raises(InputError, match="not str"):
        encode(["maps"])  # type: ignore[list-item]


def test_sixty_four_tokens_stay_below_three_megabytes(tmp_path: Path) -> None:
    path = to_html(large(64, 12), tmp_path / "maps.html")
    assert path.stat().st_size < 3e6


def large(n: int, layers: int) -> Maps:
    rng = np.random.default_rng(0)
    maps = hostile_maps(n, layers)
    names = ["ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"]
    more = {name: rng.lognormal(0, 2, (layers, n, n)).astype(np.float32) for name in names}
    return replace(maps, arrays={**maps.arrays, **more}, raw_tokens=[f"t{k}" for k in range(n)])


def test_512_tokens_stay_below_sixty_megabytes() -> None:
    """By its twelfth part: one layer, whose blobs have no more in common with other layers."""
    data = encode(large(512, 1))
    assert 12 * len(data) * 4 / 3 + len(page.script()) < 60e6


def test_a_file_that_is_too_large_leaves_out_layers_and_says_so() -> None:
    maps = large(40, 8)
    whole = len(fitted([maps], 16, None))
    limit = (0.4 * whole * 4 / 3 + len(page.script()) + 10_000) / 1e6
    data = fitted([maps], 16, limit)
    (item,) = header_of(data)[0]["items"]
    assert 1 < len(item["layers"]) <= 3
    assert {0, 7} <= set(item["layers"])
    (note,) = item["left_out"]
    assert f"{len(item['layers'])} of 8 layers" in note
    with pytest.raises(InputError, match="precision=8"):
        fitted([maps], 16, 0.15)


def test_heads_that_are_left_out_are_named() -> None:
    maps = hostile_maps()
    heads = {"ATTN-N": maps.arrays["ATTN-N"][:, None]}
    item = header_of(encode(replace(maps, heads=heads)))[0]["items"][0]
    assert "Head-level maps" in item["left_out"][0]


def test_no_token_is_markup_in_the_page(tmp_path: Path) -> None:
    text = to_html(hostile_maps(), tmp_path / "maps.html").read_text()
    assert "alert(" not in re.sub(r"<title>.*?</title>", "", text, flags=re.S)
    assert len(re.findall("<script", text)) - page.script().count("<script") == 2
    assert len(re.findall("</script", text)) == 2
    assert "<!--" not in text


def notices() -> str:
    """The comment at the head of the front end that holds the licences."""
    found = re.match(r"/\*!.*?\*/\n", page.script(), re.DOTALL)
    assert found, "viewer.js begins without licences; build it with `make viewer`"
    return found[0]


def test_pages_name_no_other_host(tmp_path: Path) -> None:
    """Namespaces of SVG and XHTML are names, not addresses that are fetched; so are licences'."""
    text = to_html(hostile_maps(), tmp_path / "maps.html").read_text() + page.shell()
    assert notices() in text
    text = text.replace(notices(), "")
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    assert hosts <= {"www.w3.org"}
    assert 'src="static/viewer.js"' in page.shell()


def test_the_front_end_carries_the_licences_of_what_is_in_it() -> None:
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


def test_the_built_front_end_is_small_and_complete() -> None:
    script = page.script()
    assert 20_000 < len(script) < 400_000
    assert "export{" in script.replace(" ", "")

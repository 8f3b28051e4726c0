"""Pictures and the routing of experts in the viewer's payload, and the ways to them."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from test_payload import decode, header_of
from viewer_examples import hostile_maps

from normlens.results.axes import PatchGrid, Routing
from normlens.results.maps import Maps
from normlens.viewer import encode


def pictured(picture: np.ndarray | None) -> Maps:
    """Four tokens, of which the last three are patches in one row."""
    return replace(hostile_maps(4), grid=PatchGrid(1, 3, 1, picture))


def test_pixels_come_back():
    picture = np.random.default_rng(5).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    header, blobs = header_of(encode(pictured(picture)))
    (item,) = header["items"]
    assert {name: item["grid"][name] for name in ("rows", "columns", "first")} == {
        "rows": 1,
        "columns": 3,
        "first": 1,
    }
    found = item["grid"]["picture"]
    assert (found["height"], found["width"], found["pixels"]["coding"]) == (4, 6, "bytes")
    at, length = found["pixels"]["at"], found["pixels"]["length"]
    assert zlib.decompress(blobs[at : at + length], -15) == picture.tobytes()
    (unknown,) = header_of(encode(pictured(None)))[0]["items"]
    assert unknown["grid"] == {"rows": 1, "columns": 3, "first": 1, "picture": None}
    (plain,) = header_of(encode(hostile_maps(4)))[0]["items"]
    assert (plain["grid"], plain["routing"]) == (None, None)


@pytest.mark.parametrize("shared", [True, False])
def test_experts_and_weights_come_back(shared):
    rng = np.random.default_rng(6)
    maps = hostile_maps(4)
    routing = Routing(
        layers=[1],
        experts=rng.integers(0, 500, (1, 4, 2)),
        weights=rng.random((1, 4, 2)).astype(np.float32),
        count=500,
        tokens=maps.tokens,
        shared=rng.random((1, 4)).astype(np.float32) if shared else None,
    )
    # Maps in 8 bits keep their experts exactly.
    header, blobs = header_of(encode(replace(maps, routing=routing), precision=8))
    found = header["items"][0]["routing"]
    assert (found["layers"], found["count"], found["places"]) == ([1], 500, 2)
    np.testing.assert_array_equal(decode(found["experts"], blobs), routing.experts.ravel())
    np.testing.assert_array_equal(decode(found["weights"], blobs), routing.weights.ravel())
    if routing.shared is None:
        assert found["shared"] is None
    else:
        np.testing.assert_array_equal(decode(found["shared"], blobs), routing.shared.ravel())

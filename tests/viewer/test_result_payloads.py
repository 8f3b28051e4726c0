"""Payloads of explanations and cosines: what is kept, how exactly, and what is refused."""

from __future__ import annotations

import base64
import json
import re
import runpy
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_payload import decode, header_of
from viewer_examples import hostile_cosine, hostile_explanation

from normlens.errors import InputError, OutputError
from normlens.results.explanation import Explanations
from normlens.viewer import encode, pages
from normlens.viewer.notebook import fitted_explanations
from normlens.viewer.payload import encode_cosines, encode_explanations


def numbers(blob: dict[str, Any], blobs: bytes) -> NDArray[Any]:
    """The contract, read once more: a sign and a logarithm, the sign alone for none."""
    if blob["coding"] != "signed16":
        return decode(blob, blobs)
    planes = zlib.decompress(blobs[blob["at"] : blob["at"] + blob["length"]], -15)
    pairs = np.frombuffer(planes, np.uint8).reshape(2, -1).T.tobytes()
    codes = np.frombuffer(pairs, dtype="<u2")
    size = codes & 0x7FFF
    values = np.where(size == 0, 0, np.exp(blob["low"] + (size - 1.0) * blob["step"]))
    return np.where(codes == 0x8000, np.nan, np.where(codes > 0x8000, -values, values))


@pytest.mark.parametrize("precision", [32, 16])
def test_an_explanation_comes_back(precision):
    why = hostile_explanation()
    head, blobs = header_of(encode_explanations(why, precision=precision))
    assert (head["format"], head["version"]) == ("normlens-viewer-explanations", 1)
    (item,) = head["items"]
    arrays = {"nodes": why.nodes, "components": why.components[:, :2], "heads": why.heads}
    for name, wanted in arrays.items():  # RES, which is most of the score, is not shown
        found = numbers(item[name], blobs)
        np.testing.assert_array_equal(found, wanted.astype(np.float32).ravel())
    assert item["component_names"] == ["ATTN", "FF"]
    for layer, blob in zip(why.flow, item["flow"], strict=True):
        error = 0 if precision == 32 else 3.2e-4
        np.testing.assert_allclose(numbers(blob, blobs), layer.ravel(), rtol=error)
    for name in ("value", "remainder", "question", "target", "probability", "contrast_value"):
        assert item[name] == getattr(why, name)
    assert item["biases"] == [list(bias) for bias in why.biases]
    assert (item["layers"], item["heads_per_layer"]) == (3, 2)
    assert (item["tokens"], item["labels"], item["words"]) == (
        why.raw_tokens,
        why.tokens,
        why.token_words,
    )
    assert item["left_out"] == []


def test_numbers_that_are_none_keep_their_place():
    why = hostile_explanation()
    flow = why.flow.copy()
    flow[1] = np.nan  # a layer without a flow map
    flow[2] = 0
    flow[0] = 1e-12  # nothing beside 1
    flow[0, 1, 0], flow[0, 2, 0] = 1, -1e-6
    head, blobs = header_of(encode_explanations(replace(why, flows={"": flow}), precision=16))
    found = [numbers(blob, blobs) for blob in head["items"][0]["flow"]]
    assert np.isnan(found[1]).all()
    assert (found[2] == 0).all()
    layer = found[0].reshape(6, 6)
    assert (layer[1, 0], layer[0, 0]) == (pytest.approx(1, rel=4e-4), 0)
    assert layer[2, 0] == pytest.approx(-1e-6, rel=4e-4)


def test_what_the_page_does_not_show_is_named():
    why = hostile_explanation()
    fuller = replace(why, flows={"": why.flow, "ATTN-N": why.flow}, head_flow=why.flow[:, None])
    item = header_of(encode_explanations(fuller))[0]["items"][0]
    assert item["left_out"] == [
        "Flow maps behind scopes are left out.",
        "Flow maps by head are left out.",
    ]
    item = header_of(encode_explanations(replace(why, flows={})))[0]["items"][0]
    assert item["flow"] is None
    assert "made without flow maps" in item["left_out"][0]


def test_a_page_that_is_too_large_leaves_out_the_flow_and_says_so():
    why = hostile_explanation(layers=8)
    sizes = [len(encode_explanations(why, precision=32, flow=flow)) for flow in (True, False)]
    limit = (len(pages.script()) + 10_000 + sum(sizes) / 2 * 4 / 3) / 1e6
    (item,) = header_of(fitted_explanations([why], limit))[0]["items"]
    assert item["flow"] is None
    assert "Flow maps are left out" in item["left_out"][0]
    assert header_of(fitted_explanations([why], None))[0]["items"][0]["flow"] is not None
    with pytest.raises(InputError):
        fitted_explanations([why], 0.01)


def test_a_cosine_comes_back():
    pair = hostile_cosine()
    head, blobs = header_of(encode_cosines(pair))
    assert (head["format"], head["version"]) == ("normlens-viewer-cosines", 1)
    (item,) = head["items"]
    for name in ("matrix", "a_with_bias", "b_with_bias"):
        wanted = getattr(pair, name).astype(np.float32).ravel()
        np.testing.assert_array_equal(numbers(item[name], blobs), wanted)
    assert (item["value"], item["bias"], item["remainder"]) == (
        pair.value,
        pair.bias,
        pair.remainder,
    )
    assert item["a"]["tokens"] == pair.a.raw_tokens
    assert item["b"]["text"] == pair.text_b


def test_pages_hold_no_markup_of_tokens_and_are_not_overwritten(tmp_path):
    several = Explanations([hostile_explanation(), hostile_explanation(layers=2)])
    for what in (several, hostile_cosine()):
        path = what.to_html(tmp_path / f"{type(what).__name__}.html")
        text = path.read_text()
        assert "alert(" not in re.sub(r"<title>.*?</title>", "", text, flags=re.S)
        assert len(re.findall("</script", text)) == 2
        what.to_html(path)
        path.write_text("somebody else's page")
        with pytest.raises(OutputError, match="exists"):
            what.to_html(path)
    assert several.to_html(tmp_path / "again.html").read_text().count("and 1 more") == 1


def plain(value: Any, blobs: bytes) -> Any:
    """A header with the bytes behind its blobs instead of where they lie."""
    if isinstance(value, dict) and "coding" in value:
        data = zlib.decompress(blobs[value["at"] : value["at"] + value["length"]], -15)
        return {**value, "at": None, "length": None, "data": data}
    if isinstance(value, dict):
        return {name: plain(part, blobs) for name, part in value.items()}
    return [plain(part, blobs) for part in value] if isinstance(value, list) else value


def test_the_front_ends_fixture_is_what_python_writes():
    """The other half of the check is in viewer/tests: the front end reads these very bytes."""
    folder = Path(__file__).resolve().parents[2] / "viewer" / "tests"
    if not folder.is_dir():
        pytest.skip("needs the repository's viewer/tests")
    made = runpy.run_path(str(folder / "make_fixture.py"))
    why = made["explanation"]()
    written = {name: encode_explanations(why, precision=int(name)) for name in ("32", "16")} | {
        "cosine": encode_cosines(made["cosine"]())
    }
    fixture = json.loads((folder / "fixture.json").read_text())
    stored = {**fixture["explanation"]["payloads"], "cosine": fixture["cosine"]["payload"]}
    for name, data in written.items():
        assert plain(*header_of(base64.b64decode(stored[name]))) == plain(*header_of(data))
    # What the front end's ends of colour scales are compared with is what Python's are now.
    assert fixture["scales"] == made["brief"](made["scales"]())
    heads = made["with_heads"](made["example"](causal=True))
    for bits, data in fixture["heads"]["payloads"].items():
        encoded = encode(heads, precision=32, head_precision=int(bits))
        assert plain(*header_of(base64.b64decode(data))) == plain(*header_of(encoded))

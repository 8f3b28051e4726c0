"""Payloads of an encoder–decoder's maps, and the ways in: file, widget, notebook."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_payload import decode, header_of

from normlens.errors import InputError
from normlens.viewer import encode


def test_both_stacks_are_one_item(translated):
    header, blobs = header_of(encode(translated, precision=32))
    assert header["version"] == 3
    (item,) = header["items"]
    encoder = item["encoder"]
    assert (item["stack"], encoder["stack"], encoder["encoder"]) == ("decoder", "encoder", None)
    assert translated.encoder is not None
    for part, maps in ((item, translated), (encoder, translated.encoder)):
        assert part["labels"] == maps.tokens
        assert part["scopes"] == maps.scopes
        for scope in part["maps"]:
            for layer, blob in enumerate(part["maps"][scope]):
                wanted = maps[scope][layer][maps.allowed[layer]].astype(np.float32)
                np.testing.assert_array_equal(decode(blob, blobs), wanted)
        for scope, ratios in maps.mixing.items():
            found = decode(part["mixing"][scope], blobs)
            np.testing.assert_array_equal(found, ratios.astype(np.float32).ravel())
    assert item["sources"]["labels"] == translated.source_tokens
    assert item["sources"]["sequences"] == translated.source_sequences
    held = item["sources"]["held"]
    assert (held["ATTN-N"], held["CROSS-W"]) == (["decoder"], ["encoder"])
    assert held["ATTNRESLNCROSSRES-N"] == ["encoder", "decoder"]
    assert (encoder["sources"], encoder["same_token"]) == (None, None)
    # Half of the weights and half of the token itself, whose column is behind the encoder's.
    assert item["derived"] == {"ATTNRES-W": "ATTN-W"}


def test_kinds_of_layers_of_two_stacks_are_items(translated):
    """The decoder's second layer lacks a scope, so it is an item of its own."""
    last = translated.scopes[-1]
    arrays = dict(translated.arrays)
    arrays[last] = arrays[last][:1]
    mixing = {scope: array for scope, array in translated.mixing.items() if scope != last}
    unlike = replace(translated, arrays=arrays, mixing=mixing, coverage={f"arrays/{last}": [0]})
    first, second = header_of(encode(unlike))[0]["items"]
    assert (first["layers"], second["layers"]) == ([0], [1])
    assert (first["encoder"] is None, second["encoder"] is None) == (False, True)
    assert unlike.show(layer=1).state == {"item": "1", "layer": "1"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"stack": "both"}, "unknown stack 'both'; choose one of: encoder, decoder"),
        ({"sources": "none"}, "unknown sources 'none'; choose one of: both, encoder, decoder"),
        ({"stack": "encoder", "layer": 7}, "layer 7 is not among"),
    ],
)
def test_what_is_not_there_is_refused(translated, state, words):
    with pytest.raises(InputError, match=words):
        translated.show(**state)


def test_a_model_of_one_stack_has_no_encoder_beside_it(translated, tmp_path):
    with pytest.raises(InputError, match="no encoder beside these maps"):
        translated.decoder.show(stack="encoder")
    assert translated.decoder.to_html(tmp_path / "decoder.html").stat().st_size > 10_000

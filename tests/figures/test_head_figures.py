"""Pictures of single heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pair_examples import fast_tokenizer, with_head
from tidy import assert_tidy, panels, words

import normlens
from normlens.errors import InputError, UnknownScopeError
from normlens.figures.colours import clipped_end
from normlens.models.tiny import tiny_model

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def llama():
    model = tiny_model("llama", num_attention_heads=4)
    maps: Any = normlens.load(model).maps(input_ids=list(range(3, 10)), heads=True)
    return maps


@pytest.fixture(scope="module")
def pair():
    lens = normlens.load(with_head("bart", encoder_layers=2, decoder_layers=2), fast_tokenizer())
    maps: Any = lens.maps("the small house", "la maison verte", heads=True)
    return maps


@pytest.mark.parametrize("scope", ["ATTN-N", "ATTN-W"])
def test_one_layers_heads_stand_side_by_side(llama, scope):
    figure = llama.plot_heads(1, scope)
    drawn = panels(figure)
    assert [axes.get_title(loc="left") for axes in drawn] == [f"head {k}" for k in range(4)]
    below = np.tri(7, k=-1, dtype=bool)
    for head, axes in enumerate(drawn):
        values = llama.heads[scope][1][head]
        shown = axes.images[0].get_array()
        np.testing.assert_array_equal(shown[shown.mask == False], values[np.tri(7, dtype=bool)])  # noqa: E712
        assert axes.images[0].norm.vmax == clipped_end(values[below])
    assert f"layer 1, heads of {scope}" in words(figure)
    assert "each head on its own clipped square-root scale" in words(figure)
    assert_tidy(figure)


def test_heads_can_share_a_scale_and_be_chosen(llama):
    figure = llama.plot_heads(
        -1, "attn", [3, 1], scale="shared", colour="linear", normalise="target"
    )
    drawn = panels(figure)
    assert [axes.get_title(loc="left") for axes in drawn] == ["head 3", "head 1"]
    assert len({axes.images[0].norm.vmax for axes in drawn}) == 1
    np.testing.assert_allclose(drawn[0].images[0].get_array().sum(1), 1, rtol=1e-5)
    assert_tidy(llama.plot_heads(0, heads=2, diagonal=False))


def test_several_layers_are_rows(llama):
    figure = llama.plot_heads(None)
    drawn = panels(figure)
    assert len(drawn) == 2 * 4
    np.testing.assert_array_equal(
        drawn[4].images[0].get_array().filled(0), llama.heads["ATTN-N"][1][0]
    )
    assert {"layer 0", "layer 1"} <= set(words(figure).splitlines())
    assert_tidy(figure)


def test_heads_of_an_encoder_decoder(pair):
    """Columns of the sequence that an attention does not read stay blank."""
    own = np.array([name == "decoder" for name in pair.source_sequences])
    for scope, blank in (("ATTN-N", ~own), ("CROSS", own)):
        figure = pair.plot_heads(0, scope)
        hidden = np.ma.getmaskarray(panels(figure)[0].images[0].get_array())
        assert hidden[:, blank].all()
        assert not hidden[-1, ~blank].any()
        assert_tidy(figure)
    assert_tidy(pair.plot_heads(0, "CROSS-W", sources="encoder"))
    assert pair.encoder is not None
    assert len(panels(pair.encoder.plot_heads(1))) == 4
    with pytest.raises(InputError, match="no parts of the encoder's tokens"):
        pair.plot_heads(0, "ATTN-N", sources="encoder")


def test_what_cannot_be_drawn(llama):
    without: Any = normlens.load(tiny_model("bert")).maps(input_ids=[3, 4, 5])
    with pytest.raises(InputError, match=r"lens.maps\(text, heads=True\) or normlens map --heads"):
        without.plot_heads()
    with pytest.raises(UnknownScopeError, match="have heads of ATTN-W, ATTN-N"):
        llama.plot_heads(0, "FF")
    with pytest.raises(InputError, match="no head 4; this layer has heads 0 to 3"):
        llama.plot_heads(0, heads=4)
    with pytest.raises(InputError, match="no head is chosen"):
        llama.plot_heads(0, heads=[])
    with pytest.raises(InputError, match="layer 7"):
        llama.plot_heads(7)

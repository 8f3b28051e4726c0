"""What is asked about tokens of an encoder–decoder's target, and what the answers say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from one_case import in_one_case
from pair_examples import Letters, fast_tokenizer, with_head
from pair_models import IDS, TARGET, generating, source_of

import normlens
from normlens.errors import InputError, NormLensError
from normlens.measures.maps import share_of_sizes, share_of_sums

SOURCE, TEXT = "the house is small", "la maison est petite"


@pytest.fixture(scope="module")
def lens():
    return normlens.load(with_head("bart"), fast_tokenizer())


@pytest.fixture(scope="module")
def spelled():
    """Every letter is a token, and words are known."""
    return normlens.load(with_head("marian"), Letters())


# Which token ------------------------------------------------------------------------------------


def test_the_last_token_of_the_text_is_explained_by_default(lens):
    why = lens.explain(SOURCE, target=TEXT)
    (pair,) = lens.encode_pairs(SOURCE, TEXT)
    assert why.target_id == pair.ids[-1]
    assert why.position == len(pair) - 2
    # The prefix is what the decoder has read when it says that token.
    assert why.prefix.axis.token_ids == pair.ids[:-1]
    assert why.source.axis.token_ids == pair.source.ids
    assert why.text == (SOURCE, TEXT)
    assert why.provenance["target"] == "given"


def test_a_place_counts_the_targets_tokens_from_0(lens):
    (pair,) = lens.encode_pairs(SOURCE, TEXT)
    for place, token in enumerate([*pair.ids[1:], pair.end]):
        why = lens.explain(SOURCE, target=TEXT, token=place)
        assert (why.position, why.target_id) == (place, token)
    assert lens.explain(SOURCE, target=TEXT, token=-1).target == "</s>"


def test_a_word_names_its_token(spelled):
    with_words = dict(target=["a", "ba"])
    why = spelled.explain(["c", "d"], **with_words, token="a")
    assert (why.position, why.target) == (0, "␣a")
    with pytest.raises(InputError):
        spelled.explain(["c", "d"], **with_words, token="ba")
    why = spelled.explain(["c", "d"], **with_words, token="ba", first_piece=True)
    assert (why.position, why.target) == (1, "␣b")


def test_a_contrast_is_another_word_in_its_place(spelled):
    why = spelled.explain("c d", target="a b", token=1, contrast="z")
    assert (why.target, why.contrast) == ("␣b", "␣z")
    assert why.value == pytest.approx(why.target_value - why.contrast_value)
    by_id = spelled.explain("c d", target="a b", token=1, contrast=why.contrast_id)
    assert by_id == why
    for contrast in ("b", "zz"):
        with pytest.raises(InputError):
            spelled.explain("c d", target="a b", token=1, contrast=contrast)


def test_what_follows_ids_is_what_the_model_says():
    model = generating("bart")
    lens = normlens.load(model, tokenizer=False)
    why = lens.explain(**source_of("bart"), decoder_input_ids=TARGET, token=len(TARGET) - 1)
    with torch.no_grad():
        own = model(input_ids=torch.tensor([IDS]), decoder_input_ids=torch.tensor([TARGET])).logits
    assert why.target_id == int(own[0, -1].argmax())
    # Nobody said that it belongs to the target, so "all" leaves it out.
    every = lens.explain(**source_of("bart"), decoder_input_ids=TARGET, token="all")
    assert [each.target_id for each in every] == TARGET[1:]


# What is refused ---------------------------------------------------------------------------------


@in_one_case(
    "asked",
    [
        dict(position=1),
        dict(direction=[1.0] * 16),
        dict(token=99),
        dict(token=True),
        dict(token="all", contrast="la"),
        dict(token=[0, 1], contrast=["a"] * 3),
    ],
)
def test_what_cannot_be_asked(lens, asked):
    with pytest.raises(NormLensError):
        lens.explain(SOURCE, **{"target": TEXT, **asked})


# What the answers say -----------------------------------------------------------------------------


def test_biases_are_by_stack_layer_and_component():
    lens = normlens.load(generating("mbart"), tokenizer=False)
    why = lens.explain(input_ids=IDS, decoder_input_ids=TARGET)
    bias = why.bias
    assert bias.index.names == ["stack", "layer", "component"]
    assert bias.sum() == pytest.approx(why.remainder)
    assert set(bias.index.get_level_values("stack")) == {"encoder", "decoder"}
    assert bias["encoder", 1, "END LN"] != 0  # the encoder's final norm
    assert bias["decoder", 2, "CROSS"] != 0
    assert bias["decoder", "head", "OUT"] != 0
    assert why.layer_names[1:3] == ["encoder 1", "decoder 0"]


def test_words_of_both_sequences_are_merged(spelled):
    why = spelled.explain(["ab", "cde"], target=["fg", "hij"], token=3)  # the i of hij
    words = why.words()
    assert [w.strip("␣") for w in words.source.tokens] == ["ab", "cde", "</s>"]
    assert words.prefix.tokens[1:] == ["fg", "hij"]
    np.testing.assert_allclose(
        words.source.contributions[:2],
        [why.contributions[:2].sum(), why.contributions[2:5].sum()],
        rtol=1e-5,
    )
    for name in ("source", "prefix", "bias", "source_share"):
        assert getattr(words.shares, name) == pytest.approx(getattr(why.shares, name), rel=1e-5)
    assert words.flow.shape[1:] == (len(words.tokens),) * 2
    np.testing.assert_allclose(words.flow.sum(1), words.nodes, atol=1e-5)
    assert np.isfinite(words.components[2:]).all()


def test_shares_by_hand():
    source, prefix = np.array([3.0, -1.0]), np.array([-6.0])
    assert share_of_sums(source, prefix) == 2 / 8
    assert share_of_sizes(source, prefix) == 4 / 10
    assert math.isnan(share_of_sums(np.zeros(2), np.zeros(1)))
    assert math.isnan(share_of_sizes(np.zeros(2), np.zeros(0)))


def test_the_table_of_shares(lens):
    every = lens.explain(SOURCE, target=TEXT, token="all")
    table = every.shares()
    assert table["token"].tolist() == every.predicted
    assert table["token"].iloc[-1] == "</s>"
    total = table["source"] + table["prefix"] + table["bias"]
    np.testing.assert_allclose(total, every.values, atol=1e-4)
    sizes = table["source"].abs(), table["prefix"].abs()
    np.testing.assert_allclose(table["source_share"], sizes[0] / sum(sizes))
    for row, each in zip(table.itertuples(), every, strict=True):
        c = np.abs(each.contributions)
        assert row.source_share_absolute == pytest.approx(c[: len(each.source)].sum() / c.sum())
        assert each.shares.prefix_share == pytest.approx(1 - row.source_share)
    assert "of a target, from" in repr(every)

"""Sources and targets as texts, words and ids, and targets that the model generates."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from one_case import in_one_case
from pair_examples import Letters, fast_tokenizer, with_head
from shell import Shell

import normlens
from normlens.errors import InputError
from normlens.inputs import encode as targets
from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import tiny_model


@pytest.fixture(autouse=True)
def _short_targets(monkeypatch):
    """Random models seldom end a sentence."""
    monkeypatch.setattr(targets, "MOST_GENERATED", 12)


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(with_head("bart"), fast_tokenizer())


@pytest.fixture(scope="module")
def slow() -> normlens.Lens:
    return normlens.load(with_head("marian"), Letters())


# Texts --------------------------------------------------------------------------------------------


def test_a_target_is_shifted_to_the_right(lens):
    maps = lens.maps("the house", "la maison est petite")
    assert maps.tokens[:3] == ["</s>", "<s>", "la"]  # BART's start token, then the labels
    assert "</s>" not in maps.tokens[1:]  # the end is predicted, not read
    assert maps.special[:3] == [True, True, False]
    assert maps.words().tokens == ["</s>", "<s>", "la", "maison", "est", "petite"]
    assert maps.encoder.tokens[0] == "<s>"
    assert maps.encoder.tokens[-1] == "</s>"
    assert maps.text == ("the house", "la maison est petite")
    assert maps.encoder.text == "the house"


@in_one_case("family", ["bart", "marian", "mbart", "m2m_100", "pegasus", "t5"])
def test_labels_are_shifted_as_transformers_shifts_them(family):
    target = (["<fr>"], ["</s>"]) if family in ("mbart", "m2m_100") else ([], ["</s>"])
    model = with_head(family)
    lens = normlens.load(model, Letters(target=target))
    labels = lens.tokenizer(text_target="la maison")["input_ids"]
    found = lens.maps("the house", "la maison").token_ids
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        assert found == shift(labels=torch.tensor([labels]))[0].tolist()
    assert found[1:] == labels[:-1]


def test_languages_are_those_of_the_tokenizer():
    nllb = normlens.load(with_head("m2m_100"), Letters((["<en>"], ["</s>"]), (["<fr>"], ["</s>"])))
    maps = nllb.maps("the house", "la maison")
    assert maps.encoder.tokens[0] == "<en>"
    assert maps.tokens[:3] == ["</s>", "<fr>", "␣l"]
    assert nllb.maps("the house").tokens[:2] == ["</s>", "<fr>"]
    first = normlens.load(
        with_head("mbart"), Letters(([], ["</s>", "<en>"]), ([], ["</s>", "<fr>"]))
    )
    maps = first.maps("the house", "la maison")
    assert (maps.tokens[0], maps.tokens[-1]) == ("<fr>", "</s>")
    assert first.maps("the house").tokens[0] == "<fr>"
    fifty = normlens.load(with_head("mbart"), Letters((["<en>"], ["</s>"]), (["<fr>"], ["</s>"])))
    assert fifty.maps("the house").tokens[:2] == ["</s>", "<fr>"]


# Words --------------------------------------------------------------------------------------------

SOURCE, TARGET = ["the", "house", "is", "don't", "."], ["la", "maison", "n'est", "pas"]


@in_one_case("which", ["lens", "slow"])
def test_given_words_stay_words(which, request):
    lens = request.getfixturevalue(which)
    maps = lens.maps(SOURCE, TARGET)
    words = maps.words()
    assert [word for word in words.tokens if word not in ("<s>", "</s>", "<pad>")] == TARGET
    sources = words.sources_of("encoder")
    assert [word for word in sources.source_tokens if word not in ("<s>", "</s>")] == SOURCE
    ordinary = [token for token in words.encoder.tokens if token not in ("<s>", "</s>")]
    assert ordinary == SOURCE
    assert maps.word_labels == TARGET
    assert maps.text == (" ".join(SOURCE), " ".join(TARGET))


def test_words_of_a_text_without_offsets(slow):
    """Known where each word on its own has the tokens that it has in the text."""
    maps = slow.maps("the house", "la  maison")
    assert maps.words().tokens == ["<pad>", "la", "maison"]
    assert maps.encoder.words().tokens == ["the", "house", "</s>"]
    merging = normlens.load(slow.adapter.whole, Letters(merged="e h"))
    maps = merging.maps("the house", "la maison")
    assert maps.encoder.token_words is None
    assert maps.token_words is not None
    assert maps.sources.token_words is None
    with pytest.raises(InputError, match="words are known only"):
        maps.words()
    given = merging.maps(["the", "house"], ["la", "maison"])
    assert given.encoder.words().tokens == ["the", "house", "</s>"]


# Several pairs ------------------------------------------------------------------------------------


def test_a_list_of_pairs_gives_a_list(lens):
    pairs = [("the house", "la maison"), (SOURCE, TARGET), ("is small", None), "and green"]
    several = lens.maps(pairs, batch_size=4)
    alone = [
        lens.maps("the house", "la maison"),
        lens.maps((SOURCE, TARGET)),
        lens.maps("is small"),
        lens.maps("and green"),
    ]
    for found, expected in zip(several, alone, strict=True):
        assert found.tokens == expected.tokens
        assert found.source_tokens == expected.source_tokens
        assert found.provenance["target"] == expected.provenance["target"]
        for scope in expected:
            np.testing.assert_allclose(found[scope], expected[scope], rtol=1e-4, atol=1e-5)
        for scope in expected.encoder:
            np.testing.assert_allclose(
                found.encoder[scope], expected.encoder[scope], rtol=1e-4, atol=1e-5
            )


def test_ids_on_one_side_and_a_text_on_the_other(lens):
    ids = lens.tokenizer("the house")["input_ids"]
    found = lens.maps(input_ids=ids, target="la maison")
    expected = lens.maps("the house", "la maison")
    np.testing.assert_array_equal(found["CROSS-N"], expected["CROSS-N"])
    found = lens.maps("the house", decoder_input_ids=expected.token_ids)
    np.testing.assert_array_equal(found["CROSS-N"], expected["CROSS-N"])


# Generated targets --------------------------------------------------------------------------------


@in_one_case("family", ["bart", "marian", "t5", "umt5", "pegasus", "blenderbot"])
def test_a_missing_target_is_generated(family):
    model = with_head(family)
    lens = normlens.load(model)
    maps = lens.maps(input_ids=[5, 9, 2])
    assert maps.provenance["target"].startswith("generated")
    ids = model.generate(
        torch.tensor([[5, 9, 2]]),
        num_beams=1,
        do_sample=False,
        use_cache=False,
        max_new_tokens=11,
    )[0].tolist()
    finished = ids[-1] == model.generation_config.eos_token_id
    assert maps.token_ids == (ids[:-1] if finished else ids)
    assert finished == (maps.provenance["target"] == "generated")
    np.testing.assert_array_equal(
        maps["CROSS"], lens.maps(input_ids=[5, 9, 2], decoder_input_ids=maps.token_ids)["CROSS"]
    )


def test_a_model_without_its_head_cannot_generate():
    lens = normlens.load(tiny_model("bart"))
    with pytest.raises(InputError):
        lens.maps(input_ids=[5, 9, 2])


@in_one_case("family", ["bart", "t5"])
def test_a_folder_is_loaded_with_the_head_that_generates(family, tmp_path):
    model = with_head(family)
    tokenizer = fast_tokenizer()
    with quiet_transformers():
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    lens = normlens.load(tmp_path, device="cpu")
    assert type(lens.adapter.whole) is type(model)
    found, expected = (one.maps("the house") for one in (lens, normlens.load(model, tokenizer)))
    assert found.provenance["target"].startswith("generated")
    assert found.tokens == expected.tokens
    np.testing.assert_array_equal(found["CROSS-N"], expected["CROSS-N"])


# Bad input ----------------------------------------------------------------------------------------


@in_one_case(
    ("arguments", "message"),
    [
        ({"text": "the", "target": " "}, "the target is empty"),
        ({"text": "the", "target": "la " * 60}, "the target has .* takes at most 48"),
        ({"text": "the", "input_ids": [5], "target": "la"}, "pass one source"),
        (
            {"text": "the", "target": "la", "decoder_input_ids": [2]},
            "a target or decoder_input_ids",
        ),
        ({"text": "the", "decoder_input_ids": [99]}, "token id 99 is out of vocabulary"),
        ({"text": "the", "decoder_input_ids": [[2], [2]]}, "1 sources and 2 targets"),
        ({"input_features": [[1.0]], "target": "la"}, "reads its source"),
        ({"text": ["the", 5], "target": "la"}, "a text or a list of words"),
        ({"input_ids": [5], "target": "la", "token_type_ids": [0]}, "no token types"),
    ],
)
def test_bad_input_is_one_line(arguments, message, lens):
    with pytest.raises(InputError, match=message):
        lens.maps(**arguments)


# On the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bart")
    with quiet_transformers():
        with_head("bart").save_pretrained(path)
        fast_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folders(folder, tmp_path_factory):
    """Checkpoints: an encoder–decoder with its head, without it, and a decoder alone."""
    body, decoder = (tmp_path_factory.mktemp(name) for name in ("body", "decoder"))
    with quiet_transformers():
        tiny_model("bart").save_pretrained(body)
        tiny_model("gpt2").save_pretrained(decoder)
        for path in (body, decoder):
            fast_tokenizer().save_pretrained(path)
    return {"bart": folder, "body": body, "gpt2": decoder}


SOURCES = "the house\nis small\n"
PAIRS = "the house ||| la maison\nis small ||| est petite\n"


@in_one_case(
    ("command", "model", "data", "reason"),
    [
        ("run", "body", SOURCES, "has no targets, and .* has no head that could generate them"),
        ("reproduce align", "gpt2", PAIRS, "reads one sequence"),
        ("reproduce align --gold GOLD", "bart", PAIRS, "1 lines for 2 sentence pairs"),
        ("run --measures faithfulness", "bart", PAIRS, "is for models that read one"),
        ("evaluate", "bart", PAIRS, "generating encoder–decoder"),
        ("reproduce ff", "bart", SOURCES, "is an encoder–decoder; use normlens run"),
    ],
)
def test_what_does_not_go_together_is_one_line_and_leaves_nothing(
    command, model, data, reason, folders, capsys, tmp_path
):
    (tmp_path / "data.txt").write_text(data)
    (tmp_path / "gold").write_text("1-1\n")
    words = command.replace("GOLD", str(tmp_path / "gold")).split()
    what = ("--model", folders[model], "--data", tmp_path / "data.txt", "--out", tmp_path / "out")
    shell = Shell(capsys)
    if words[0] == "reproduce":
        for package in ("matplotlib", "jinja2", "duckdb"):
            pytest.importorskip(package, reason="reports need it")
    line = shell.error(*words, *what, "--device", "cpu", "--quiet")
    assert re.search(reason, line)
    assert not (tmp_path / "out").exists()

"""From texts and token ids to sequences, words and labels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import normlens
from normlens.errors import InputError, NormLensWarning
from normlens.inputs.text import Encoded, Reader
from normlens.models.tiny import tiny_model

LIMIT = 48


def wordpiece() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "the", "dog", "##s", "."]
    raw = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2: a space belongs to the token behind it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("l", "l"), ("h", "e"), ("he", "ll"), ("Ġ", "w"), ("Ġw", "o"), ("r", "l")]
    tokens = letters + [a + b for a, b in merges]
    raw = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def unigram(split: bool, prepend: str = "always") -> PreTrainedTokenizerFast:
    """SentencePiece: with `split` False the whole text is one pre-token."""
    pieces = ["▁He", "He", "llo", "▁wor", "ld", "▁", "!", "▁new"]
    raw = Tokenizer(models.Unigram([("<unk>", 0.0), *((p, -1.0) for p in pieces)], 0))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=split)
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")


def encode(text: Any, tokenizer: Any, limit: int | None = LIMIT, truncate: bool = False) -> Encoded:
    return Reader(tokenizer, limit=limit).read(text, truncate)


def words_of(encoded: Encoded) -> list[tuple[str, str | None]]:
    return [
        (token, None if word is None else encoded.word_labels[word])
        for token, word in zip(encoded.tokens, encoded.words, strict=True)
    ]


# Words --------------------------------------------------------------------------------------------


def test_words_of_wordpieces():
    assert words_of(encode("the unaffable dogs.", wordpiece())) == [
        ("[CLS]", None),
        ("the", "the"),
        ("un", "unaffable"),
        ("##aff", "unaffable"),
        ("##able", "unaffable"),
        ("dog", "dogs"),
        ("##s", "dogs"),
        (".", "."),
        ("[SEP]", None),
    ]


def test_words_of_a_pair_are_counted_through():
    encoded = encode(("the dog", "the dogs"), wordpiece())
    assert encoded.words == [None, 0, 1, None, 2, 3, 3, None]
    assert encoded.word_labels == ["the", "dog", "the", "dogs"]
    assert encoded.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    assert encoded.special == [True, False, False, True, False, False, False, True]
    assert encoded.text == ("the dog", "the dogs")


@in_one_case("text", ["hé wo", "日本 wo", "👩‍🚀 wo", "naïve wo"])
def test_a_letter_of_several_tokens_is_in_one_word(text):
    """Bytes of one letter all point at the same place of the text."""
    encoded = encode(text, byte_level(), None)
    assert encoded.word_labels[-1] == "wo"
    last = [word for word in encoded.words if word == len(encoded.word_labels) - 1]
    assert len(last) == 1
    assert "".join(encoded.word_labels) == text.replace(" ", "")


def test_words_of_sentencepiece():
    expected = [
        ("▁He", "Hello"),
        ("llo", "Hello"),
        ("▁wor", "world!"),
        ("ld", "world!"),
        ("!", "world!"),
        ("▁new", "new"),
    ]
    assert words_of(encode("Hello world! new", unigram(split=True))) == expected
    assert words_of(encode("Hello world! new", unigram(split=False))) == expected


@in_one_case("prepend", ["always", "never", "first"])
@in_one_case(
    "text",
    ["Hello", "Hello world!", "new Hello world", "HelloHello new", " Hello  world", "Hello\tworld"],
)
def test_words_without_a_pretokeniser_are_what_white_space_separates(text, prepend):
    encoded = encode(text, unigram(split=False, prepend=prepend))
    said = [label for label in encoded.word_labels if label]
    assert said == text.split()


def test_words_of_a_real_tokenizer(minilm):
    maps = minilm.maps("She unaffably teaches soap-opera history.", layers=0, scopes="ATTN-N")
    assert maps.tokens[2:5] == ["una", "##ffa", "##bly"]
    assert maps.token_words[2:5] == [1, 1, 1]
    assert maps.words().tokens == [
        "[CLS]",
        "She",
        "unaffably",
        "teaches",
        "soap",
        "-",
        "opera",
        "history",
        ".",
        "[SEP]",
    ]


class SlowTokenizer:
    """A tokenizer without offsets, as those written in Python are."""

    is_fast = False

    def __call__(self, *texts: str, **options: Any) -> dict[str, list[int]]:
        assert "return_offsets_mapping" not in options
        ids = [len(word) for text in texts for word in text.split()]
        return {"input_ids": ids, "special_tokens_mask": [0] * len(ids)}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"t{i}" for i in ids]


def test_a_slow_tokenizer_knows_no_words():
    lens = normlens.load(tiny_model("gpt2"), SlowTokenizer())
    maps = lens.maps("one three two", layers=0, scopes="ATTN-N")
    assert maps.tokens == ["t3", "t5", "t3"]
    with pytest.raises(InputError):
        maps.words()


# Texts --------------------------------------------------------------------------------------------


@pytest.fixture
def lens():
    return normlens.load(tiny_model("bert", pad_token_id=0), wordpiece())


def test_a_pair_is_read_with_its_segments(lens):
    maps = lens.maps(("the dog", "the dogs"))
    again = lens.maps(input_ids=maps.token_ids, token_type_ids=[0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_allclose(again["FF"], maps["FF"], rtol=1e-5)
    plain = lens.maps(input_ids=maps.token_ids)
    assert np.abs(plain["FF"] - maps["FF"]).max() > 1e-3


def test_a_pair_is_refused_where_nothing_would_stand_between_its_texts():
    lens = normlens.load(tiny_model("gpt2", vocab_size=300), byte_level())
    with pytest.raises(InputError):
        lens.maps(("hello", " world"))
    with pytest.raises(InputError):
        lens.encode(["hello", ("hello", " world")])
    assert lens.maps("hello world").text == "hello world"


@in_one_case("text", ["", "   ", "\n\t", ("the dog", ""), ("", "the dog")])
def test_an_empty_text(text, lens):
    with pytest.raises(InputError):
        lens.maps(text)


@in_one_case("text", [("a", "b", "c"), (), ("a", 3), 5, [5], [None], [["a", "b", "c"]], {"a": 1}])
def test_what_is_not_a_text(text, lens):
    with pytest.raises(InputError):
        lens.maps(text)


def test_truncated(lens):
    maps = lens.maps("the " * 60, truncate=True, layers=0, scopes="ATTN-N")
    assert len(maps.tokens) == 48
    assert maps.tokens[-1] == "[SEP]"


def test_a_long_text_is_read_without_a_warning(minilm, recwarn, caplog):
    with pytest.raises(InputError):
        minilm.maps("word " * 600)
    assert not recwarn.list
    assert not caplog.records


# Token ids ----------------------------------------------------------------------------------------


@in_one_case("wrong", [64, 1000, -1])
def test_an_id_out_of_vocabulary(wrong, lens):
    with pytest.raises(InputError):
        lens.maps(input_ids=[3, wrong, 5])


@in_one_case("ids", [[1.5, 2.0], ["a"], [[[3]]], torch.tensor([0.5]), 5, torch.tensor(5)])
def test_ids_that_are_not_integers(ids, lens):
    with pytest.raises(InputError):
        lens.maps(input_ids=ids)


@in_one_case("mask", [[1, 0, 1], [0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1]])
def test_a_mask_with_a_hole_is_refused(mask, lens):
    """Leaving the token out would move all that follow it to other positions."""
    ids = [5, 6, 7, 8, 9, 10][: len(mask)]
    with pytest.raises(InputError):
        lens.maps(input_ids=[ids], attention_mask=[mask])
    with pytest.raises(InputError):
        lens.maps(input_ids=[ids, ids], attention_mask=[[1] * len(mask), mask])


@in_one_case("mask", [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0]])
def test_padding_may_stand_at_either_end(mask, lens):
    ids = iter([7, 8, 9])
    padded = [next(ids) if flag else 0 for flag in mask]
    with nullcontext() if mask[0] else pytest.warns(NormLensWarning, match="positions"):
        (found,) = lens.maps(input_ids=[padded], attention_mask=[mask])
    np.testing.assert_array_equal(found["FF"], lens.maps(input_ids=[7, 8, 9])["FF"])


# Token types --------------------------------------------------------------------------------------

TYPES = [0, 0, 1, 1]


def expected_input(model: Any, ids: list[int], types: list[int] | None) -> torch.Tensor:
    """What the model's last layer gives, so that no map can be right without the types."""
    given = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), **given).last_hidden_state[0]


def traced_output(lens: normlens.Lens, **given: Any) -> torch.Tensor:
    """The last vectors of the model as the lens runs it."""
    seen = []
    handle = lens.model.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    try:
        lens.maps(**given)
    finally:
        handle.remove()
    return seen[0][0]


@in_one_case("types", [TYPES, [0, 0, 0, 0]])
@in_one_case("family", ["bert", "albert", "electra", "roberta", "gpt2", "gpt_neo", "gptj"])
def test_token_types_reach_the_model(family, types):
    """GPT-2 and its kin add a word's vector for them, so that zeros are something, too."""
    model = tiny_model(family)
    lens = normlens.load(model)
    ids = [5, 6, 7, 8]
    found = traced_output(lens, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(found, expected_input(model, ids, types))
    alone = traced_output(lens, input_ids=ids)
    torch.testing.assert_close(alone, expected_input(model, ids, None))


@in_one_case("family", ["distilbert", "opt", "llama", "modernbert", "deberta-v2"])
def test_types_for_a_model_without_them_are_refused(family):
    lens = normlens.load(tiny_model(family))
    with pytest.raises(InputError):
        lens.maps(input_ids=[5, 6, 7, 8], token_type_ids=TYPES)
    zeros = lens.maps(input_ids=[5, 6, 7, 8], token_type_ids=[0] * 4)
    np.testing.assert_array_equal(zeros["ATTN-N"], lens.maps(input_ids=[5, 6, 7, 8])["ATTN-N"])

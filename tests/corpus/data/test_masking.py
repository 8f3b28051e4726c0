"""Masked tokens: how many, which kind, and always the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from normlens.corpus import Record, encode_record, mask_tokens, open_data
from normlens.errors import InputError


def encode(tokenizer: Any, count: int, record: str = "x:0") -> Any:
    return encode_record(
        Record(id=record, tokens=("[CLS]", *["the"] * count, "[SEP]")), tokenizer, max_length=None
    )


@pytest.mark.parametrize(
    ("ordinary", "masked"), [(1, 1), (4, 1), (8, 1), (13, 2), (25, 3), (100, 12), (510, 61)]
)
def test_twelve_percent_are_masked_and_one_at_least(
    ordinary: int, masked: int, wordpiece: Any
) -> None:
    encoded = encode(wordpiece, ordinary)
    result = mask_tokens(encoded, wordpiece)
    assert sum(result.masked) == masked
    assert [i == wordpiece.mask_token_id for i in result.ids] == result.masked
    assert [token == "[MASK]" for token in result.tokens] == result.masked


def test_the_rest_stays(wordpiece: Any) -> None:
    for record in open_data("sample", limit=30):
        encoded = encode_record(record, wordpiece, max_length=64)
        result = mask_tokens(encoded, wordpiece, seed=3)
        for before, after, special, masked in zip(
            encoded.ids, result.ids, encoded.special, result.masked, strict=True
        ):
            assert not (special and masked)
            assert masked or before == after
        for name in ("words", "entities", "special", "type_ids", "id", "word_labels"):
            assert getattr(result, name) == getattr(encoded, name)


def test_only_seed_id_and_length_choose(wordpiece: Any) -> None:
    encoded = encode(wordpiece, 60)
    chosen = mask_tokens(encoded, wordpiece, 0.12, 7).masked
    assert mask_tokens(encode(wordpiece, 60), wordpiece, 0.12, 7).masked == chosen
    other = replace(encoded, ids=[token + 1 if token == 1996 else token for token in encoded.ids])
    assert mask_tokens(other, wordpiece, 0.12, 7).masked == chosen
    assert mask_tokens(encoded, wordpiece, 0.12, 8).masked != chosen
    assert mask_tokens(encode(wordpiece, 60, "x:1"), wordpiece, 0.12, 7).masked != chosen


def test_the_choice_is_the_same_in_every_version(wordpiece: Any) -> None:
    result = mask_tokens(encode(wordpiece, 30, "dev.tsv:0"), wordpiece, 0.12, 0)
    assert [i for i, masked in enumerate(result.masked) if masked] == [1, 15, 20, 26]


def test_every_position_is_chosen_in_turn(wordpiece: Any) -> None:
    chosen = [0] * 22
    for index in range(400):
        result = mask_tokens(encode(wordpiece, 20, f"x:{index}"), wordpiece, 0.1)
        chosen = [count + masked for count, masked in zip(chosen, result.masked, strict=True)]
    assert chosen[0] == chosen[-1] == 0
    # Two of twenty in 400 records: 40 each, give or take four standard deviations of 6.
    assert all(16 <= count <= 64 for count in chosen[1:-1])


@pytest.mark.parametrize(
    ("record", "share", "expected"),
    [
        (Record("x:0", tokens=("[CLS]", "[MASK]", "good", "[SEP]")), 0.12, [0, 1, 1, 0]),
        (Record("x:0", tokens=("[CLS]", "[MASK]", "good", "[SEP]")), 0.0, [0, 1, 0, 0]),
        (Record("x:0", text="good [SEP] fine"), 1.0, [0, 1, 0, 1, 0]),
        (Record("x:0", tokens=("[CLS]", "[SEP]")), 0.12, [0, 0]),
    ],
)
def test_masks_and_special_tokens_in_a_text_are_not_ordinary(
    record: Record, share: float, expected: list[int], wordpiece: Any
) -> None:
    encoded = encode_record(record, wordpiece, max_length=None)
    assert mask_tokens(encoded, wordpiece, share).masked == list(map(bool, expected))


@pytest.mark.parametrize(("kind", "share"), [("sentencepiece-bpe", 0.1), ("unigram", 1.1)])
def test_without_a_mask_token_or_a_share_nothing_is_masked(
    kind: str, share: float, trained: Any
) -> None:
    encoded = encode_record(Record("x:0", text="a good day"), trained(kind), max_length=None)
    with pytest.raises(InputError):
        mask_tokens(encoded, trained(kind), share)

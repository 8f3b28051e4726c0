"""How a block's sequences are cut into batches."""

from __future__ import annotations

import pytest

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.engines import block_rows
from normlens.corpus.engines.block_rows import Entry, batches
from normlens.inputs.text import Encoded


def sequence(length: int) -> Encoded:
    return Encoded([0] * length, ["a"] * length, [False] * length)


def entries(lengths: list[int], sources: list[int] | None = None) -> list[Entry]:
    of_encoder = [None] * len(lengths) if sources is None else map(sequence, sources)
    return [
        Entry(index, EncodedRecord(**{**vars(sequence(length)), "source": source}))
        for index, (length, source) in enumerate(zip(lengths, of_encoder, strict=True))
    ]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_sequence_is_in_one_batch_beside_those_of_like_length(size: int) -> None:
    lengths = [7, 3, 9, 3, 1, 8, 3]
    cut = list(batches(entries(lengths), size, lambda n: n))
    assert all(len(batch) <= size for batch in cut)
    order = [(len(entry.encoded), entry.index) for batch in cut for entry in batch]
    assert order == sorted((length, index) for index, length in enumerate(lengths))


def test_a_batch_holds_what_fits_and_at_least_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_rows, "HELD", 20)
    cut = list(batches(entries([4, 4, 4, 6, 6, 30, 31]), 8, lambda n: n))
    # The longest of a batch decides: 4 × 6 is more than 20, and 30 is too much even alone.
    assert [[len(entry.encoded) for entry in batch] for batch in cut] == [
        [4, 4, 4],
        [6, 6],
        [30],
        [31],
    ]


def test_short_sequences_fill_a_batch_up_to_a_number_of_tokens() -> None:
    lengths = [2] * 9 + [4] * 4 + [10] * 3
    cut = list(batches(entries(lengths), 2, lambda n: n, tokens=16))
    # Eight of two tokens, padding included; of ten tokens no more than the two without it.
    assert [[len(entry.encoded) for entry in batch] for batch in cut] == [
        [2] * 8,
        [2, 4, 4, 4],
        [4, 10],
        [10, 10],
    ]
    alone = list(batches(entries([2] * 5), 1, lambda n: n))
    assert [len(batch) for batch in alone] == [1] * 5


def test_both_sequences_of_a_pair_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_rows, "HELD", 20)
    pairs = entries([4, 4, 4], sources=[1, 9, 3])
    assert [len(pair) for pair in pairs] == [5, 13, 7]
    cut = list(batches(pairs, 8, lambda n: n))
    assert [[entry.index for entry in batch] for batch in cut] == [[0, 2], [1]]

"""Which files are joined next: neighbours alone, each row a few times, and few files remain."""

from __future__ import annotations

import random

import pytest

from normlens.corpus.runs.compaction_plan import Piece, Sizes, SmallFiles
from normlens.corpus.runs.shards import File


def piece(first: int, last: int | None = None, size: int = 1) -> Piece:
    last = first if last is None else last
    return Piece(first, last, File(f"{first}-{last}", 1, size, ""))


def join(small: SmallFiles, group: list[Piece], size: int | None = None) -> Piece:
    """Replace files by one, as compaction does."""
    small.remove(group)
    whole = piece(group[0].first, group[-1].last, size or sum(p.bytes for p in group))
    small.add(whole)
    return whole


def test_neighbours_become_a_file_once_they_are_large_enough() -> None:
    small = SmallFiles(Sizes(size=100, files=50))
    for number in range(9):
        small.add(piece(number, size=10))
    assert small.due() == []
    small = SmallFiles(small.sizes, [piece(number, size=10) for number in range(10)])
    assert [p.first for p in small.due()] == list(range(10))
    join(small, small.due())
    assert len(small) == 0  # it is large, and left as it is


def test_a_gap_is_not_joined_over() -> None:
    small = SmallFiles(Sizes(size=100, files=50))
    for number in (*range(9), *range(10, 25)):
        small.add(piece(number, size=10))
    assert [p.first for p in small.due()] == list(range(10, 25))
    small = SmallFiles(small.sizes, [piece(n, size=10) for n in (0, 2, 4)])
    assert small.due(rest=True) == []


def test_large_files_are_left_as_they_are() -> None:
    small = SmallFiles(Sizes(size=100, files=2), [piece(0, size=50), piece(1, size=200), piece(2)])
    assert small.due(rest=True) == []


def test_many_small_files_are_joined_although_they_are_small() -> None:
    small = SmallFiles(Sizes(size=10**9, files=16))
    for number in range(15):
        small.add(piece(number))
    assert small.due() == []
    small.add(piece(15))
    assert len(small.due()) == 16
    join(small, small.due())
    small.add(piece(16))
    assert small.due() == []  # the first sixteen are not written again for one more
    assert [p.first for p in small.due(rest=True)] == [0, 16]


@pytest.mark.parametrize("workers", [1, 100])
def test_rows_are_written_a_few_times_and_few_files_remain(workers: int) -> None:
    """Shards that are done in the order of a hundred workers, of a table that stays small."""
    chance = random.Random(0)
    small, most, written = SmallFiles(Sizes(size=10**9, files=16)), 0, 0
    shards, window = 16**3, []
    for number in range(shards):
        window.append(number)
        if len(window) == workers or number == shards - 1:
            chance.shuffle(window)
            for done in window:
                small.add(piece(done))
                while group := small.due():
                    written += join(small, group).shards
                most = max(most, len(small))
            window = []
    while group := small.due(rest=True):
        written += join(small, group).shards
    assert len(small) == 1
    assert written <= 5 * shards
    assert most <= 3 * 16 + 2 * workers


def test_as_little_as_two_files_can_be_asked_for() -> None:
    small = SmallFiles(Sizes(size=1000, files=2))
    for number in range(33):
        small.add(piece(number))
        while group := small.due():
            join(small, group)
        assert len(small) <= 6
    with pytest.raises(ValueError, match="two"):
        Sizes(files=1)

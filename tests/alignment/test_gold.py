"""Gold links in the Hansards' format and in Pharaoh's, and files that are neither."""

from __future__ import annotations

import pytest

from normlens.errors import InputError
from normlens.studies.alignment.gold import read_gold


@pytest.fixture
def gold(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "links.gold"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_gold(path)

    return write


def test_sure_and_possible_links(gold):
    first, second, third = gold("1-1 2p3 2-1\n\n1?2\n").lines
    assert first.sure == {(1, 1), (2, 1)}
    assert first.possible == {(1, 1), (2, 1), (2, 3)}  # sure links are possible
    assert (second.sure, second.possible) == (frozenset(), frozenset())
    assert (third.sure, third.possible) == (frozenset(), {(1, 2)})
    assert first.counted_from(1).possible == {(0, 0), (1, 0), (1, 2)}


def test_a_file_may_end_without_a_line_break_or_with_one_empty_line(gold):
    assert len(gold("1-1\n2-2")) == 2
    assert len(gold("1-1\n2-2\n")) == 2
    assert len(gold("1-1\r\n2-2\r\n\r\n")) == 3


def test_the_first_words_number_is_worked_out(gold):
    assert gold("0-0 1p1\n").first_word([(2, 2)]) == 0
    assert gold("1-1\n2-3\n").first_word([(2, 2), (2, 3)]) == 1
    with pytest.raises(InputError):
        gold("1-1\n").first_word([(2, 2)])
    assert gold("1-1\n").first_word([(2, 2)], 0) == 0
    assert gold("1-1\n").first_word([(2, 2)], 1) == 1


def test_links_of_other_data(gold):
    with pytest.raises(InputError):
        gold("1-1\n0-0 3-1\n").first_word([(2, 2), (1, 2)])
    with pytest.raises(InputError):  # both numberings in one file
        gold("0-1\n").first_word([(1, 1)])
    with pytest.raises(InputError):
        gold("0-0\n").first_word([(1, 1)], 1)
    with pytest.raises(InputError):
        gold("1-1\n1-1\n").first_word([(1, 1)] * 3)


@pytest.mark.parametrize("text", ["1-1\nSURE 2 3\n", "", b"\xff\xfe1\x00"])
def test_files_of_another_format_are_refused(text, gold):
    with pytest.raises(InputError):
        gold(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError):
        read_gold(tmp_path / "none")

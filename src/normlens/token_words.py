"""Words: which word of the text each token belongs to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


def words_of(batch: Any, pair: tuple[str, ...]) -> tuple[list[int | None], list[str]]:
    """The index of each token's word (None for a special token), and the words as text.

    The tokenizer's pre-tokenisation says what a word is. Some tokenizers (SentencePiece without
    one) call the whole text one word; there white space separates words.
    """
    word_ids, offsets = batch.word_ids(), batch["offset_mapping"]
    segments = batch.sequence_ids()
    starts = [_unsplit_words(part, k, word_ids, segments) for k, part in enumerate(pair)]
    keys: list[Any] = []
    for position, segment in enumerate(segments):
        if segment is None or word_ids[position] is None:
            keys.append(None)
            continue
        begins = starts[segment]
        if begins is None:
            keys.append((segment, word_ids[position]))
            continue
        start, stop = offsets[position]
        token = pair[segment][start:stop]
        first = start + len(token) - len(token.lstrip())
        keys.append((segment, bisect_right(begins, first) - 1))
    order = {
        key: index for index, key in enumerate(dict.fromkeys(k for k in keys if k is not None))
    }
    spans: dict[Any, tuple[int, int]] = {}
    for key, (start, stop) in zip(keys, offsets, strict=True):
        if key is not None:
            low, high = spans.get(key, (start, stop))
            spans[key] = (min(low, start), max(high, stop))
    labels = [pair[key[0]][slice(*spans[key])].strip() for key in order]
    return [None if key is None else order[key] for key in keys], labels


def _unsplit_words(
    text: str, segment: int, word_ids: Sequence[int | None], segments: Sequence[int | None]
) -> list[int] | None:
    """Where the words of a text begin, if its tokenizer calls all of it one word; else None."""
    begins = [match.start() for match in re.finditer(r"\S+", text)]
    words = {word for word, part in zip(word_ids, segments, strict=True) if part == segment}
    return begins if len(words) == 1 and len(begins) > 1 else None

"""Tokens along one axis of a map, and tokens as people read them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeVar

from normlens.errors import InputError

SPACE = "␣"  # a space that belongs to a token

T = TypeVar("T")


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along one axis of a map, with what is known of each."""

    raw_tokens: list[str]  # as the tokenizer writes them; `tokens` are for reading
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None  # word index of each token
    word_labels: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.raw_tokens)

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens as people read them: ``␣café`` for ``ĠcafÃ©``."""
        return readable_tokens(self.raw_tokens, self.special)

    @property
    def ordinary(self) -> list[int]:
        """Places of the tokens that are not special."""
        flags = self.special or [False] * len(self)
        return [place for place, special in enumerate(flags) if not special]

    def take(self, places: Iterable[int]) -> TokenAxis:
        """The tokens at some places."""
        chosen = list(places)

        def taken(labels: list[T]) -> list[T]:
            return [labels[place] for place in chosen] if labels else labels

        return TokenAxis(
            taken(self.raw_tokens),
            taken(self.token_ids),
            taken(self.special),
            None if self.token_words is None else taken(self.token_words),
            self.word_labels,
        )

    def followed_by(self, other: TokenAxis) -> TokenAxis:
        """These tokens and those of another sequence; words are known where both know theirs."""

        def joined(mine: list[T], others: list[T], unknown: T) -> list[T]:
            if not mine and not others:
                return []
            return [*(mine or [unknown] * len(self)), *(others or [unknown] * len(other))]

        words: list[int | None] | None = None
        if self.token_words is not None and other.token_words is not None:
            first = len(self.word_labels)
            words = [*self.token_words]
            words += [None if word is None else first + word for word in other.token_words]
        return TokenAxis(
            [*self.raw_tokens, *other.raw_tokens],
            # An id of one sequence alone would be taken for one of the other.
            [*self.token_ids, *other.token_ids] if self.token_ids and other.token_ids else [],
            joined(self.special, other.special, False),
            words,
            [] if words is None else [*self.word_labels, *other.word_labels],
        )

    def word_groups(self) -> list[list[int]]:
        """Places of each word's tokens; a token without a word stays alone."""
        if self.token_words is None:
            raise InputError(
                "words are known only for texts read by a fast tokenizer, not for input_ids, "
                "patches or frames; pass the text itself where there is one"
            )
        groups: dict[Any, list[int]] = {}
        for place, word in enumerate(self.token_words):
            groups.setdefault(("token", place) if word is None else word, []).append(place)
        return list(groups.values())

    def words(self) -> TokenAxis:
        """One token per word; special tokens stay."""
        groups = self.word_groups()
        assert self.token_words is not None
        labels = []
        for first, *_ in groups:
            word = self.token_words[first]
            labels.append(self.raw_tokens[first] if word is None else self.word_labels[word])
        return TokenAxis(
            labels,
            special=[self.special[group[0]] for group in groups] if self.special else [],
            token_words=list(range(len(groups))),
            word_labels=labels,
        )


def readable_tokens(tokens: Sequence[str], special: Sequence[bool] = ()) -> list[str]:
    """Tokens as people read them: byte-level BPE decoded, spaces and line ends made visible.

    ``Ġsoap`` and ``▁soap`` become ``␣soap``; bytes that are no whole character become ``\\xe4``.
    """
    flags = list(special) if len(special) == len(tokens) else [False] * len(tokens)
    plain = [token for token, flag in zip(tokens, flags, strict=True) if not flag]
    byte_level = _is_byte_level(plain)
    shown = []
    for token, flag in zip(tokens, flags, strict=True):
        text = token
        if byte_level and not flag:
            text = _token_bytes(token).decode("utf-8", errors="backslashreplace")
            text = text.replace(" ", SPACE)
        text = text.replace("▁", SPACE).replace("\n", "↵").replace("\r", "").replace("\t", "⇥")
        shown.append("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) or "∅")
    return shown


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(others)}


def _token_bytes(token: str) -> bytes:
    return bytes(_byte_alphabet()[character] for character in token)


def _is_byte_level(tokens: Sequence[str]) -> bool:
    """Whether the tokens, read as letters for bytes, spell UTF-8 text."""
    alphabet = _byte_alphabet()
    if not all(character in alphabet for token in tokens for character in token):
        return False
    try:
        # Not final: the sequence may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(b"".join(map(_token_bytes, tokens)))
    except UnicodeDecodeError:
        return False
    return True

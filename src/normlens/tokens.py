"""Tokens as people read them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache

from normlens.errors import InputError

SPACE = "␣"  # a space that belongs to a token


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


def word_groups(
    tokens: Sequence[str], words: Sequence[int | None] | None, labels: Sequence[str]
) -> tuple[list[list[int]], list[str]]:
    """The places of each word's tokens, and what to call it; special tokens stay alone."""
    if words is None:
        raise InputError(
            "words are known only for texts read by a fast tokenizer, not for input_ids; "
            "pass the text itself"
        )
    groups: dict[int | tuple[str, int], list[int]] = {}
    for position, word in enumerate(words):
        groups.setdefault(("token", position) if word is None else word, []).append(position)
    names = [
        tokens[group[0]] if isinstance(key, tuple) else labels[key] for key, group in groups.items()
    ]
    return list(groups.values()), names


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

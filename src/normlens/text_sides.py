"""One side of a translation as a sequence: a text, or words that are tokenised already.

A fast tokenizer says which characters a token covers. With another one, each word is tokenised on
its own: words are known where that gives the tokens of the whole text, and words that are given as
such keep their own tokens in any case.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from normlens.errors import InputError
from normlens.text import Encoded, check_ids, tokenise
from normlens.token_words import words_of

#: A text, or the words of one.
Words: TypeAlias = Sequence[str]
Side: TypeAlias = str | Words


@dataclass(frozen=True)
class SideReader:
    """Reads the sources, or the targets, of a model."""

    tokenizer: Any
    is_target: bool
    limit: int | None = None  # tokens
    vocabulary: int | None = None

    @property
    def name(self) -> str:
        return "target" if self.is_target else "source"

    def read(self, given: Side, truncate: bool = False) -> Encoded:
        """Tokenise one side with its special tokens."""
        if self.tokenizer is None:
            ids = "decoder_input_ids" if self.is_target else "input_ids"
            raise InputError(
                "this lens has no tokenizer; pass one to load(model, tokenizer) (--tokenizer), or "
                f"pass {ids}=…"
            )
        words = None if isinstance(given, str) else self._words(given)
        text = str(given) if words is None else " ".join(words)
        if not text.strip():
            raise InputError(f"the {self.name} is empty; give at least one word")
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        read = self._by_offsets if fast else self._word_by_word
        encoded = read(text, words)
        if self.limit is not None and len(encoded) > self.limit:
            if not truncate:
                raise InputError(
                    f"the {self.name} has {len(encoded)} tokens and the model takes at most "
                    f"{self.limit}; shorten it, or accept its beginning with truncate=True "
                    "(--truncate)"
                )
            encoded = _cut(encoded, self.limit)
        check_ids(encoded.ids, self.vocabulary, self.limit)
        return encoded

    def plain_ids(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        return list(self._tokenise(text, add_special_tokens=False)["input_ids"])

    def _words(self, given: Any) -> list[str]:
        words = list(given)
        if not all(isinstance(word, str) for word in words):
            raise InputError(f"the {self.name} must be a text or a list of words, got {given!r}")
        spaced = next((word for word in words if word != word.strip() or " " in word), None)
        if spaced is not None or not all(words):
            raise InputError(
                f"{spaced or ''!r} is no word of the {self.name}; a list beside a target holds the "
                "words of one text, and several pairs are given as [(source, target), …]"
            )
        return words

    def _tokenise(self, text: str, **options: Any) -> Any:
        if not self.is_target:
            return tokenise(self.tokenizer, text, **options)
        return tokenise(self.tokenizer, text_target=text, **options)

    def _by_offsets(self, text: str, words: list[str] | None) -> Encoded:
        batch = self._tokenise(text, return_special_tokens_mask=True, return_offsets_mapping=True)
        ids, special = list(batch["input_ids"]), [bool(f) for f in batch["special_tokens_mask"]]
        if words is None:
            of_tokens, labels = words_of(batch, (text,))
        else:
            labels, of_tokens = words, _words_at(text, words, batch["offset_mapping"], special)
        return self._encoded(ids, special, of_tokens, labels, text)

    def _word_by_word(self, text: str, words: list[str] | None) -> Encoded:
        whole = list(self._tokenise(text)["input_ids"])
        plain = list(self._tokenise(text, add_special_tokens=False)["input_ids"])
        labels = re.findall(r"\S+", text) if words is None else words
        pieces = [
            list(self._tokenise(word, add_special_tokens=False)["input_ids"]) for word in labels
        ]
        joined = [token for piece in pieces for token in piece]
        start = _place_of(plain, whole)
        if start is None or (words is None and joined != plain):
            specials = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
            return self._encoded(whole, [token in specials for token in whole], None, [], text)
        before, behind = whole[:start], whole[start + len(plain) :]
        of_tokens: list[int | None] = [None] * len(before)
        of_tokens += [index for index, piece in enumerate(pieces) for _ in piece]
        of_tokens += [None] * len(behind)
        special = [True] * len(before) + [False] * len(joined) + [True] * len(behind)
        return self._encoded([*before, *joined, *behind], special, of_tokens, labels, text)

    def _encoded(
        self,
        ids: list[int],
        special: list[bool],
        words: list[int | None] | None,
        labels: list[str],
        text: str,
    ) -> Encoded:
        if not ids:
            raise InputError(f"the tokenizer makes no token of {text!r}; give at least one word")
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
        return Encoded(ids, tokens, special, None, words, list(labels), text)


def _words_at(
    text: str,
    words: Sequence[str],
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
) -> list[int | None]:
    """The index of each token's word, where words are joined by single spaces."""
    begins, place = [], 0
    for word in words:
        begins.append(place)
        place += len(word) + 1
    of_tokens: list[int | None] = []
    for (start, stop), flag in zip(offsets, special, strict=True):
        token = text[start:stop]
        first = start + len(token) - len(token.lstrip())
        of_tokens.append(None if flag else bisect_right(begins, first) - 1)
    return of_tokens


def _place_of(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Where a run of tokens begins in a sequence; None if it is not there."""
    count = len(part)
    places = range(len(whole) - count + 1)
    return next((k for k in places if list(whole[k : k + count]) == list(part)), None)


def _cut(encoded: Encoded, limit: int) -> Encoded:
    """The beginning of a sequence, with the special tokens of its end."""
    flags = encoded.special
    behind = next((k for k, flag in enumerate(reversed(flags)) if not flag), len(flags))
    kept = [*range(max(0, limit - behind)), *range(len(encoded) - behind, len(encoded))][:limit]
    words = encoded.words
    return Encoded(
        [encoded.ids[k] for k in kept],
        [encoded.tokens[k] for k in kept],
        [flags[k] for k in kept],
        None,
        None if words is None else [words[k] for k in kept],
        encoded.word_labels,
        encoded.text,
    )

"""Axes of every array, tokens along them, and equality of results bit for bit."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError

# The axes of every array that maps hold, by name: the one legend for shapes above the algebra.
#
# layer · head · target i (output, row) · source j (input, column) · d_model · special (dimension)
#
# An array's layers are those that have what it shows. Sources are the targets' tokens, or others.


#: Arrays by their axes.
LayerTargetSource: TypeAlias = NDArray[np.floating]
LayerHeadTargetSource: TypeAlias = NDArray[np.floating]
LayerTarget: TypeAlias = NDArray[np.floating]
PerLayer: TypeAlias = NDArray[np.floating]
TargetSource: TypeAlias = NDArray[np.floating]
Allowed: TypeAlias = NDArray[np.bool_]  # [layer, target, source]

Axes: TypeAlias = tuple[str, ...]

#: The groups of arrays that maps hold by scope.
BY_SCOPE: Mapping[str, Axes] = {
    "arrays": ("layer", "target", "source"),
    "mixing": ("layer", "target"),
    "heads": ("layer", "head", "target", "source"),
    "standard_error": ("layer", "target", "source"),
}
#: The group of the feed-forward block's statistics, by name.
STATISTICS: Mapping[str, Axes] = {
    "ff_output_norm": ("layer", "target"),
    "bypassed_norm": ("layer", "target"),
    "ff_input_mean_abs": ("layer", "d_model"),
    "ff_output_mean_abs": ("layer", "d_model"),
    "gamma": ("layer", "d_model"),
    "special_dimensions": ("layer", "special"),
    "ff_without_special": ("layer", "target", "source"),
}
#: The arrays of an explanation, by name.
EXPLANATION: Mapping[str, Axes] = {
    "nodes": ("layer", "source"),
    "components": ("layer", "component", "target"),
    "heads": ("layer", "head", "target"),
    "flow": ("layer", "target", "source"),
    "head_flow": ("layer", "head", "target", "source"),
    "cross_heads": ("layer", "cross_head", "target"),
}
#: Every group.
GROUPS = (*BY_SCOPE, "statistics")


def axes_of(group: str, name: str) -> Axes:
    """The axes of one array."""
    return STATISTICS[name] if group == "statistics" else BY_SCOPE[group]


def fits(shape: tuple[int, ...], axes: Axes, sizes: Mapping[str, int]) -> bool:
    """Whether a shape has these axes, and the sizes that are given of them."""
    return len(shape) == len(axes) and all(
        sizes.get(axis, length) == length for axis, length in zip(axes, shape, strict=True)
    )


def take(array: NDArray[Any], axes: Axes, indices: Mapping[str, NDArray[np.intp]]) -> NDArray[Any]:
    """The array with only the given places along each of the named axes that it has."""
    for position, axis in enumerate(axes):
        if axis in indices:
            array = np.take(array, indices[axis], axis=position)
    return array


# Tokens along one axis of a map, and tokens as people read them.


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

    @property
    def labels(self) -> dict[str, Any]:
        """The fields by their names, which results give to their own tokens as well."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

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


# Equality of results: bit for bit in their arrays.


def same(a: Any, b: Any) -> bool:
    """Whether two fields of results are equal, bit for bit in their arrays."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        floats = np.issubdtype(a.dtype, np.inexact) and np.issubdtype(b.dtype, np.inexact)
        return np.array_equal(a, b, equal_nan=floats)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return False
    if isinstance(a, float) and isinstance(b, float) and np.isnan(a):
        return bool(np.isnan(b))
    return bool(a == b)


def same_fields(a: Any, b: Any, *, without: Sequence[str] = ("provenance",)) -> bool:
    """Whether two results of one class are equal in all of their other fields."""
    names = [each.name for each in fields(a) if each.name not in without]
    return all(same(getattr(a, name), getattr(b, name)) for name in names)


# Conversion of any value to one that strict JSON can hold.


def plain(value: Any) -> Any:
    """A value for strict JSON: no NumPy, None for NaN and infinity, text for the rest."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _plain_array(array: np.ndarray) -> Any:
    """An array as nested lists; arrays of numbers without a Python call per number."""
    if array.dtype.kind not in "fiub":
        return plain(array.tolist())
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()

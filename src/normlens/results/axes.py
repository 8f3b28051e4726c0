"""Axes of arrays, tokens along them, experts and patches beside them; equality bit for bit."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normlens.errors import XARRAY, InputError, check_installed, require
from normlens.scopes import components_of, layers_in_words

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

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
    "edges": ("layer", "edge", "two"),
    "edge_values": ("layer", "edge"),
    "edge_totals": ("layer",),
}
#: Those of routing: `expert` counts the experts that a token uses.
ROUTING: Mapping[str, Axes] = {
    "experts": ("layer", "token", "expert"),
    "weights": ("layer", "token", "expert"),
    "shared": ("layer", "token"),
}
#: Those of a cosine of texts a and b.
COSINE: Mapping[str, Axes] = {"matrix": ("a", "b"), "a_with_bias": ("a",), "b_with_bias": ("b",)}
#: Those of a score beside a cosine's; `term` is what is matched, `other` a token of neither text.
TERMS: Mapping[str, Axes] = {
    "term_values": ("term",),
    "term_query": ("term", "a"),
    "term_document": ("term", "b"),
    "term_places": ("term", "text"),
    "others_values": ("other",),
}
#: Those of a citation.
CITATION: Mapping[str, Axes] = {
    "values": ("part",),
    "log_probabilities": ("part",),
    "token_scores": ("part", "token"),
    "biases": ("part",),
    "owners": ("token",),
    "spans": ("token", "two"),
    "source_spans": ("source", "two"),
    "ablated": ("source",),
    "interval": ("source", "two"),
}
#: Every group of maps.
GROUPS = (*BY_SCOPE, "statistics")


def axes_of(group: str, name: str) -> Axes:
    """The axes of one array."""
    if group != "statistics":
        return BY_SCOPE[group]
    require(name in STATISTICS, f"'statistics/{name}' is no array of maps")
    return STATISTICS[name]


def check_shape(name: str, shape: tuple[int, ...], axes: Axes, sizes: Mapping[str, int]) -> None:
    """Raise unless a shape has these axes, and the sizes that are given of them."""
    if len(shape) != len(axes) or tuple(map(sizes.get, axes, shape)) != shape:
        wanted = ", ".join(f"{axis} {sizes.get(axis, 'of any size')}" for axis in axes)
        raise InputError(f"{name!r} has shape {shape} for {wanted}")


def check_arrays(result: Any, table: Mapping[str, Axes], sizes: Mapping[str, int]) -> None:
    """Raise unless the arrays that a result has of these have their axes."""
    for name, axes in table.items():
        if (array := getattr(result, name)) is not None:
            check_shape(name, array.shape, axes, sizes)


def check_scopes(names: Iterable[str]) -> None:
    """Raise for a name that is no scope's."""
    for name in names:
        is_scope = name == name.strip().upper() and components_of(name)
        require(is_scope, f"{name!r} is no scope")


def take(
    array: NDArray[Any], axes: Axes, indices: Mapping[str, Sequence[int] | None]
) -> NDArray[Any]:
    """The array with only the given places along each of the named axes; None takes all."""
    for position, axis in enumerate(axes):
        places = indices.get(axis)
        if places is not None:
            array = np.take(array, places, axis=position)
    return array


def places_of(some: Iterable[int], among: list[int]) -> list[int]:
    """The place of each number in a list."""
    return [among.index(number) for number in some]


# Tokens along one axis of a map, and tokens as people read them.


SPACE = "␣"  # a space that belongs to a token


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

    def _check(self) -> None:
        """Raise unless the labels belong to the tokens."""
        count, words = len(self), self.token_words
        require(count, "'raw_tokens' is empty")
        for name, labels in self.per_token.items():
            require(len(labels) == count, f"{name!r} does not have entries for {count} tokens")
        largest = max((word for word in words or () if word is not None), default=-1)
        known_word = words != [] and largest < len(self.word_labels)
        require(known_word, f"'token_words' names word {largest} of {len(self.word_labels)}")

    @property
    def labels(self) -> dict[str, Any]:
        """The fields by their names, which results give to their own tokens as well."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def per_token(self) -> dict[str, list[Any]]:
        """Those of the fields that have an entry for each token."""
        return {name: held for name, held in self.labels.items() if held and name != "word_labels"}

    @cached_property
    def tokens(self) -> list[str]:
        """The tokens as people read them: ``␣café`` for ``ĠcafÃ©``."""
        return readable_tokens(self.raw_tokens, self.special)

    @property
    def is_special(self) -> list[bool]:
        """Whether each token is special; none is where that is unknown."""
        return self.special or [False] * len(self)

    @property
    def ordinary(self) -> list[int]:
        """Places of the tokens that are not special."""
        return [place for place, special in enumerate(self.is_special) if not special]

    def take(self, places: Iterable[int]) -> TokenAxis:
        """The tokens at some places."""
        chosen = list(places)
        taken = {name: [held[k] for k in chosen] for name, held in self.per_token.items()}
        return replace(self, **taken)

    def followed_by(self, other: TokenAxis) -> TokenAxis:
        """These tokens and those of another sequence; words are known where both know theirs."""
        words, labels = None, list[str]()
        if self.token_words is not None and other.token_words is not None:
            first = len(self.word_labels)
            moved = [None if word is None else first + word for word in other.token_words]
            words, labels = self.token_words + moved, self.word_labels + other.word_labels
        # An id of one sequence alone would be taken for one of the other.
        has_ids = self.token_ids and other.token_ids
        has_flags = self.special or other.special
        return TokenAxis(
            [*self.raw_tokens, *other.raw_tokens],
            self.token_ids + other.token_ids if has_ids else [],
            self.is_special + other.is_special if has_flags else [],
            words,
            labels,
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
        firsts = self.take(group[0] for group in self.word_groups())
        named = zip(firsts.raw_tokens, firsts.token_words or (), strict=True)
        labels = [token if word is None else self.word_labels[word] for token, word in named]
        places: list[int | None] = [*range(len(labels))]
        return replace(
            firsts, raw_tokens=labels, token_ids=[], token_words=places, word_labels=labels
        )


def readable_tokens(tokens: Sequence[str], special: Sequence[bool] = ()) -> list[str]:
    """Tokens as people read them: byte-level BPE decoded, spaces and line ends made visible.

    ``Ġsoap`` and ``▁soap`` become ``␣soap``. A character of several tokens stands in each of them,
    numbered: ``東₁ 東₂``; bytes that are no whole character become ``\\xe4``.
    """
    flags = special or [False] * len(tokens)
    ordinary = [place for place, flag in enumerate(flags) if not flag]
    letters = _byte_alphabet()
    try:
        spelled = [bytes(letters[letter] for letter in tokens[place]) for place in ordinary]
        # Not final: the sequence may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(b"".join(spelled))
    except (KeyError, UnicodeDecodeError):
        spelled = []  # the tokens are no letters for bytes
    shown = list(tokens)
    if spelled:  # a chat template's own tokens are spelled alike
        marked = [
            place for place, flag in enumerate(flags) if flag and set(tokens[place]) <= {*letters}
        ]
        ordinary, spelled = (
            ordinary + marked,
            [*spelled, *(bytes(letters[c] for c in tokens[k]) for k in marked)],
        )
    for place, text in zip(ordinary, _characters(spelled), strict=False):
        shown[place] = text.replace(" ", SPACE)
    return [_visible(text) for text in shown]


def _characters(pieces: Sequence[bytes]) -> list[str]:
    """The text of each piece; a character that several share stands in each, with its number."""
    texts = [""] * len(pieces)
    owners = [place for place, piece in enumerate(pieces) for _ in piece]
    begin = 0
    for character in b"".join(pieces).decode("utf-8", errors="surrogateescape"):
        byte = ord(character) - 0xDC00  # of one that is no character
        is_byte = 0x80 <= byte <= 0xFF
        size = 1 if is_byte else len(character.encode())
        sharing = list(dict.fromkeys(owners[begin : begin + size]))
        for number, place in enumerate(sharing, start=1):
            part = chr(0x2080 + number) if len(sharing) > 1 else ""
            texts[place] += f"\\x{byte:02x}" if is_byte else character + part
        begin += size
    return texts


def _visible(text: str) -> str:
    """A text without characters that would not be seen."""
    text = text.replace("▁", SPACE).replace("\n", "↵").replace("\r", "").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) or "∅"


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(others)}


# Equality of results: bit for bit in their arrays.


def same(a: Any, b: Any) -> bool:
    """Whether two fields of results are equal, bit for bit in their arrays."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return bool(a == b or (a != a and b != b))  # NaN


class Record:
    """A dataclass that is compared field by field, and that a file can hold."""

    def _check(self) -> None:
        """Raise an InputError unless the fields fit together; their types do."""

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same numbers and labels; provenance does not count."""
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in fields(self) if each.compare]  # type: ignore[arg-type]
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


# Conversion of any value to one that strict JSON can hold.


def plain(value: Any) -> Any:
    """A value for strict JSON: no NumPy, None for NaN and infinity, text for the rest."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        numbers = value.astype(object)  # without a Python call per number
        numbers[~np.isfinite(value)] = None
        return numbers.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


def dataset(result: Any, variables: Any, coordinates: Any, *attributes: str) -> xr.Dataset:
    """Arrays of a result with named axes and coordinates, and some of its attributes."""
    check_installed(XARRAY)
    import xarray as xr

    about = {"model": result.provenance.get("model")}
    about |= {name: getattr(result, name) for name in attributes}
    return xr.Dataset(variables, coords=coordinates, attrs=about)


def strongest_rows(table: pd.DataFrame, column: str, count: int) -> pd.DataFrame:
    """The rows of a table with the largest values of a column, whatever their sign."""
    ordered = table.sort_values(column, key=abs, ascending=False, kind="stable", ignore_index=True)
    return ordered.head(count)


def long_table(array: NDArray[Any], *axes: Mapping[str, Any]) -> pd.DataFrame:
    """One row per entry of an array: the labels of its place along each axis, and its `value`."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for places, labels in zip(np.indices(array.shape), axes, strict=True):
        for name, named in labels.items():
            columns[name] = pd.Index(named).take(places.ravel())
    return pd.DataFrame({**columns, "value": array.ravel()})


# Which experts each token of a text used, layer by layer, and with which weights.


#: What tables call an expert that all tokens use.
SHARED = "shared"


@dataclass(frozen=True, eq=False)
class Routing(Record):
    """The routing that the model really used, in the layers that have experts."""

    layers: list[int]  # indices of the model's layers, from 0
    experts: NDArray[np.integer[Any]]  # [layer, token, place], numbers of experts, from 0
    weights: NDArray[np.floating[Any]]  # [layer, token, place]
    count: int  # experts of a layer, without a shared one
    tokens: list[str]  # as people read them
    shared: NDArray[np.floating[Any]] | None = None  # [layer, token]; None: no expert is shared

    def __post_init__(self) -> None:
        used = self.experts.shape[-1]
        sizes = {"layer": len(self.layers), "token": len(self.tokens), "expert": used}
        check_arrays(self, ROUTING, sizes)

    def _check(self) -> None:
        """Raise unless every expert is one of those that a layer has."""
        known = (self.experts >= 0) & (self.experts < self.count)
        require(known.all(), f"an expert is none of {self.count}")

    def __repr__(self) -> str:
        more = "" if self.shared is None else " and a shared one"
        return (
            f"Routing({len(self.tokens)} tokens, {layers_in_words(self.layers)}: "
            f"{self.experts.shape[-1]} of {self.count} experts{more})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per layer, token and expert that it used, with the weight.

        `position` and `layer` count from 0; a shared expert is called "shared".
        """
        names: NDArray[Any] = self.experts.astype(object)
        weights = self.weights
        if self.shared is not None:
            names = np.concatenate([names, np.full_like(names[..., :1], SHARED)], axis=-1)
            weights = np.concatenate([weights, self.shared[..., None]], axis=-1)
        tokens = {"position": range(len(self.tokens)), "token": self.tokens}
        table = long_table(names, {"layer": self.layers}, tokens, {})
        return table.rename(columns={"value": "expert"}).assign(weight=weights.ravel())

    def of_layers(self, layers: Sequence[int]) -> Routing | None:
        """The routing of some layers; None if none of them has experts."""
        here = [layer for layer in self.layers if layer in layers]
        if not here:
            return None
        return self._taken(0, places_of(here, self.layers), layers=here)

    def of_tokens(self, tokens: Sequence[int]) -> Routing:
        """The routing of some tokens, in the order given."""
        return self._taken(1, tokens, tokens=[self.tokens[place] for place in tokens])

    def _taken(self, axis: int, places: Sequence[int], **labels: Any) -> Routing:
        """The same with some places along an axis of its arrays."""
        for name in ROUTING:
            array = getattr(self, name)
            labels[name] = None if array is None else np.take(array, places, axis)
        return replace(self, **labels)


# The grid of patches that an image model cuts a picture into, and the picture itself.


#: A token by its place, or by its name: "[CLS]", or "3,4" for a patch.
Token: TypeAlias = int | str

#: Pixels on the longer side of a picture that is kept with results.
LARGEST_PICTURE = 448


@dataclass(frozen=True, eq=False)
class PatchGrid(Record):
    """Which tokens are patches, and where: patch (r, c) is token ``first + r·columns + c``.

    Tokens before `first`, and any behind the grid, are [CLS], registers and the like.
    """

    rows: int
    columns: int
    first: int
    picture: NDArray[np.uint8] | None = None  # RGB (height, width, 3), what the patches cover

    def __post_init__(self) -> None:
        shape = (1, 1, 3) if self.picture is None else self.picture.shape
        is_rgb = len(shape) == 3 and shape[2] == 3 and 0 not in shape
        require(is_rgb, f"a picture is RGB, (height, width, 3), and not {shape}")

    def __len__(self) -> int:
        return self.rows * self.columns

    def _check(self) -> None:
        """Raise unless there are patches, and the picture is one that results keep."""
        require(len(self), "'grid' has 0 patches")
        shape = (0,) if self.picture is None else self.picture.shape
        limit = f"'picture' has shape {shape}, and no side is above {LARGEST_PICTURE}"
        require(max(shape) <= LARGEST_PICTURE, limit)

    def check_tokens(self, count: int) -> None:
        """Raise unless the patches are among so many tokens."""
        words = f"'grid' has {len(self)} patches from token {self.first} on, of {count}"
        require(self.first + len(self) <= count, words)

    @property
    def tokens(self) -> range:
        """The places of the patches among all tokens."""
        return range(self.first, self.first + len(self))

    def labels(self) -> list[str]:
        """What the patches are called: row and column, counted from 1."""
        return [f"{r + 1},{c + 1}" for r in range(self.rows) for c in range(self.columns)]

    def place(self, token: int) -> tuple[int, int] | None:
        """The row and the column, from 0, of a token; None if it is no patch."""
        return divmod(token - self.first, self.columns) if token in self.tokens else None

    def token(self, row: int, column: int) -> int:
        """The token of a patch, by its row and column from 0."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise InputError(
                f"there is no patch ({row}, {column}); rows are 0 to {self.rows - 1} and columns 0 "
                f"to {self.columns - 1}"
            )
        return self.first + row * self.columns + column

    def named(self, token: Token, tokens: Sequence[str]) -> int:
        """The place of a token among `tokens`, which may be given by its name."""
        if isinstance(token, str):
            wanted = "".join(token.split())
            if wanted in tokens:
                return tokens.index(wanted)
        elif type(token) is not bool and token in range(-len(tokens), len(tokens)):
            return int(token) % len(tokens)
        patches = f"{tokens[self.first]} to {tokens[self.tokens[-1]]}"
        others = [name for place, name in enumerate(tokens) if place not in self.tokens]
        raise InputError(
            f"there is no token {token!r}; patches are {patches} (row,column)"
            + (f", and beside them {', '.join(others)}" if others else "")
            + f"; by their places tokens are 0 to {len(tokens) - 1}"
        )

    def of(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """The values of the patches (row, column) among values of all tokens."""
        return values[self.first : self.first + len(self)].reshape(self.rows, self.columns)

    def among(self, places: Sequence[int]) -> PatchGrid | None:
        """The grid where only the tokens at `places` are left; None unless all patches are."""
        places = list(places)
        if self.first not in places:
            return None
        first = places.index(self.first)
        whole = places[first : first + len(self)] == list(self.tokens)
        return replace(self, first=first) if whole else None

"""Tokens and their pairs: categories, relations, sums, a bounded sample, and the common pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.errors import InputError
from normlens.results.maps import Maps
from normlens.scopes import chains, components_of, is_among

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded

# Categories of tokens, and relations between two tokens.


#: of a sequence's tokens, (n, n) booleans: is target i related to source j?
Relation = Callable[[Item], Any]

CATEGORIES = ("ordinary", "mask", "cls", "sep", "other-special")
#: what two tokens have in common; a pair is of one of these alone
RELATIONS = (
    "word_outside_entity",
    "word_in_entity",
    "entity_across_words",
    "same_type",
    "other",
    "special",
)
#: Kinds of pairs that are compared with others, and the relations each consists of. The papers' are
#: same_word and same_entity: all pairs of one word, and all pairs of one entity expression, those
#: inside its words included (Kobayashi et al. 2024, sections 5.2.1 and 5.2.2).
GROUPS = {
    "same_word": ("word_outside_entity", "word_in_entity"),
    "same_entity": ("word_in_entity", "entity_across_words"),
    "entity_across_words": ("entity_across_words",),
    "same_type": ("same_type",),
}

_NAMES = {
    "mask": {"[MASK]", "<mask>"},
    "cls": {"[CLS]", "<s>", "<cls>"},
    "sep": {"[SEP]", "</s>", "<sep>"},
}


def categories(item: Item) -> NDArray[np.int8]:
    """Give each token's place in `CATEGORIES`, (n,); Kobayashi et al. 2021, section 4.

    A token that was masked is a mask. A special token that opens the sequence is cls, whatever its
    name (OPT opens with </s>); elsewhere the name decides.
    """
    encoded = item.encoded
    masked = getattr(encoded, "masked", None) or [False] * len(encoded.ids)
    names = [
        _category(token, special, hidden, position)
        for position, (token, special, hidden) in enumerate(
            zip(encoded.tokens, encoded.special, masked, strict=True)
        )
    ]
    return np.array([CATEGORIES.index(name) for name in names], dtype=np.int8)


def _category(token: str, special: bool, masked: bool, position: int) -> str:
    if masked or token in _NAMES["mask"]:
        return "mask"
    if special and position == 0:
        return "cls"
    named = next((name for name, tokens in _NAMES.items() if token in tokens), None)
    return named or ("other-special" if special else "ordinary")


def relations(
    item: Item, user_relations: Mapping[str, Relation] | None = None
) -> NDArray[np.int16]:
    """Classify how target i and source j belong together, (n, n).

    Numbers are places in `RELATIONS`, then in `user_relations`.

    word_in_entity: two tokens of one word and of one entity; word_outside_entity: of one word but
    not of one entity; entity_across_words: of one entity but not of one word; same_type: the same
    subword elsewhere; special: one of them at least is no ordinary token (special or masked);
    other: all other pairs of ordinary tokens. A pair is of one relation only; `GROUPS` puts them
    together. A user's relations come before all others, the first of them first.
    """
    n = len(item)
    ordinary = categories(item) == CATEGORIES.index("ordinary")
    word = _together(item.encoded.words, n)
    entity = _together(getattr(item.encoded, "entities", None), n)
    places = np.full((n, n), RELATIONS.index("other"), dtype=np.int16)
    for name, related in (
        ("same_type", _together(item.encoded.ids, n)),
        ("entity_across_words", entity),
        ("word_outside_entity", word),
        ("word_in_entity", word & entity),
    ):
        places[related] = RELATIONS.index(name)
    places[~(ordinary[:, None] & ordinary)] = RELATIONS.index("special")
    for place, (name, function) in reversed(
        list(enumerate((user_relations or {}).items(), len(RELATIONS)))
    ):
        related = np.asarray(function(item))
        if related.shape != (n, n) or related.dtype != bool:
            raise InputError(
                f"the relation {name!r} gave {related.dtype} of shape {related.shape} for {n} "
                f"tokens; it must give booleans of shape ({n}, {n}), targets first"
            )
        places[related] = place
    return places


def relations_across(item: Item) -> NDArray[np.int16]:
    """Classify how target i of a decoder and source j of its encoder belong together, (n, m).

    same_type: the same subword in both texts; special and other as in `relations`.
    """
    source = item.source
    assert source is not None
    ordinary = CATEGORIES.index("ordinary")
    targets, sources = (
        categories(one) == ordinary for one in (item, replace(item, encoded=source))
    )
    tokens, of_source = (np.array(one.tokens, object) for one in (item.encoded, source))
    places = np.full((len(item), len(source)), RELATIONS.index("other"), dtype=np.int16)
    places[tokens[:, None] == of_source] = RELATIONS.index("same_type")
    places[~(targets[:, None] & sources)] = RELATIONS.index("special")
    return places


def _together(groups: Sequence[int | None] | None, n: int) -> NDArray[np.bool_]:
    """Whether i and j belong to the same group; None belongs to no group."""
    number = np.array([-1 if g is None else g for g in groups or [None] * n])
    return (number[:, None] == number) & (number >= 0)


# The scopes before and after the feed-forward block, whatever the architecture.


ScopePair = tuple[str, str]


def _prefixes(scopes: Iterable[str]) -> dict[tuple[str, ...], str]:
    return {tuple(components_of(scope)): scope for scope in scopes if scope.endswith("-N")}


def feed_forward_pair(scopes: Iterable[str]) -> ScopePair | None:
    """Find the scope just before the feed-forward block and the one that ends with it.

    A block that mixes nothing has none: it stands beside the attention, before any residual.
    """
    named = _prefixes(scopes)
    longest = max(named, key=len, default=())
    if "RES" not in longest or "FF" not in longest[longest.index("RES") :]:
        return None
    place = longest.index("FF", longest.index("RES"))
    before, after = named.get(longest[:place]), named.get(longest[: place + 1])
    return None if before is None or after is None else (before, after)


def whole_block_pair(scopes: Iterable[str]) -> ScopePair | None:
    """Find the scope behind the residual before FF and the whole layer (FF, residual, norms).

    That residual is the layer's first, or with two attentions that of the second.
    """
    named = _prefixes(scopes)
    longest = max(named, key=len, default=())
    start = longest.index("CROSS") if "CROSS" in longest else 0
    if "RES" not in longest[start:]:
        return None
    before, after = named.get(longest[: longest.index("RES", start) + 1]), named[longest]
    return None if before is None or before == after else (before, after)


def feed_forward_pairs(scopes: Iterable[str]) -> list[ScopePair]:
    """`feed_forward_pair` of each kind of layer, where layers differ."""
    return _of_each_kind(scopes, feed_forward_pair)


def default_pairs(scopes: Iterable[str]) -> list[ScopePair]:
    """Find the pairs that FF-amp is taken of: before FF / FF, and before LN1 / the whole layer.

    Kobayashi et al. 2024, section 5. In BERT: ATTNRESLN-N / ATTNRESLNFF-N and ATTNRES-N /
    ATTNRESLNFFRESLN-N. A layer whose block stands beside the attention has neither. Where layers
    differ, each kind of layer has its pairs.
    """
    return _of_each_kind(scopes, feed_forward_pair, whole_block_pair)


def _of_each_kind(
    scopes: Iterable[str], *find: Callable[[list[str]], ScopePair | None]
) -> list[ScopePair]:
    pairs = [pair(chain) for chain in chains(scopes) for pair in find]
    return [pair for pair in dict.fromkeys(pairs) if pair is not None]


def of_other_stack(pair: ScopePair, maps: Maps) -> bool:
    """Whether both scopes, perhaps by short names, are of a stack that these maps are not of."""
    if maps.provenance.get("stack") == "encoder":
        return not _are_among(pair, maps.scopes)  # the decoder's maps know those of both
    elsewhere = maps.encoder is not None and _are_among(pair, maps.encoder.scopes)
    return elsewhere and not _are_among(pair, maps.scopes)


def _are_among(pair: ScopePair, scopes: Sequence[str]) -> bool:
    return all(is_among(name, scopes) for name in pair)


# A bounded sample of pairs that does not depend on how a corpus is cut into blocks.
#
# Every pair has a priority, a hash of what identifies it. The sample of a stratum is the k pairs
# of lowest priority: of two samples together the k lowest are the sample of both.


#: Relations whose pairs are sampled from each distance apart: others are drawn from them.
UNRELATED = ("other", "special")
#: Upper ends of these distances; the last is open. Words and entities are short, so that near
#: distances must be at hand one by one.
EDGES = (*range(1, 17), 32, 64)


def priorities(
    seed: int, sequence: str, layer: int | NDArray[Any], target: NDArray[Any], source: NDArray[Any]
) -> NDArray[np.uint64]:
    """Hash (seed, sequence, layer, target, source); no two pairs of one layer share a hash.

    A key from SHA-256 for seed and sequence, mixed with the packed rest by SplitMix64, which is
    a bijection (Steele, Lea and Flood 2014).
    """
    digest = hashlib.sha256(f"{seed}\n{sequence}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "big"))
    pair = target.astype(np.uint64) << np.uint64(24) | source.astype(np.uint64)
    return mixed(key ^ mixed(np.asarray(layer, np.uint64) << np.uint64(48) | pair))


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of numbers (SplitMix64); no two numbers give the same."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is meant
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def strata(
    relation: NDArray[Any], distance: NDArray[Any], names: Sequence[str] = RELATIONS
) -> NDArray[np.int64]:
    """Number each pair's stratum: its relation (place in `names`), of `UNRELATED` its distance."""
    number = np.asarray(relation, np.int64)
    first = len(names)
    for name in UNRELATED:
        number = np.where(
            relation == names.index(name), first + np.searchsorted(EDGES, distance), number
        )
        first += len(EDGES) + 1
    return number


def strata_sql() -> str:
    """Write the strata as SQL, apart from the relation itself."""
    cases = " ".join(f"WHEN distance <= {edge} THEN {edge}" for edge in EDGES)
    return f"CASE WHEN relation NOT IN {UNRELATED} THEN 0 {cases} ELSE {EDGES[-1] + 1} END"


def limits(keep: int, keep_other: int, names: Sequence[str] = RELATIONS) -> NDArray[np.int64]:
    """Limit the pairs of each stratum: `keep` where they are related, else `keep_other`."""
    sizes = [keep_other if name in UNRELATED else keep for name in names]
    distances = len(UNRELATED) * (len(EDGES) + 1)
    return np.array(sizes + [keep_other] * distances, dtype=np.int64)


def lowest(
    priority: NDArray[np.uint64], stratum: NDArray[np.int64], limit: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Find the places of each stratum's lowest priorities, in the order given; all differ."""
    keep = np.ones(len(priority), dtype=bool)
    counts = np.bincount(stratum, minlength=len(limit))
    for full in np.flatnonzero(counts > limit):
        places = np.flatnonzero(stratum == full)
        cut = np.partition(priority[places], limit[full] - 1)[limit[full] - 1]
        keep[places[priority[places] > cut]] = False
    return np.flatnonzero(keep)


def lowest_in_groups(
    group: NDArray[np.int64], limit: NDArray[np.int64], *keys: NDArray[Any]
) -> NDArray[np.intp]:
    """Find the places of each group's first rows by `keys`, sorted by group and keys.

    `limit` is the size of each row's own group.
    """
    # Faster than lexsort, and small integers sort in linear time.
    order = np.argsort(keys[0])
    order = order[
        np.argsort(group[order].astype(np.min_scalar_type(group.max(initial=0))), kind="stable")
    ]
    # Only records with the same id tie, and sorting by every key takes several times as long.
    if ((np.diff(group[order]) == 0) & (keys[0][order][1:] == keys[0][order][:-1])).any():
        order = np.lexsort((*reversed(keys), group))
    begins = np.searchsorted(group[order], group[order])
    return order[np.arange(len(order)) - begins < limit[order]]


# The pairs of a map's tokens, and sums over pairs with the same types or distance.


Columns = dict[str, NDArray[Any]]


class Types(NamedTuple):
    """The subword types of one text."""

    ids: NDArray[np.int64]
    tokens: list[str]
    kind: NDArray[np.intp]  # of each token, its place among the types

    @classmethod
    def of(cls, encoded: Encoded) -> Types:
        ids, first, kind = np.unique(encoded.ids, return_index=True, return_inverse=True)
        return cls(ids, [encoded.tokens[place] for place in first], kind)


class TokenPairs:
    """Every (target i, source j) of a map; arrays are flat, (n · m,), targets first.

    By default both are of one text. `across` the stacks of an encoder–decoder, sources are tokens
    of the text that the encoder read: they have no distance, and may have another vocabulary, in
    which equal tokens have other ids.
    """

    def __init__(
        self,
        item: Item,
        user_relations: Mapping[str, Relation] | None = None,
        across: bool = False,
    ):
        related = relations_across(item) if across else relations(item, user_relations)
        self.across, self.relation = across, related.ravel()
        self.target, self.source = (axis.ravel() for axis in np.indices(related.shape))
        self.distance = np.where(across, 0, np.abs(self.target - self.source))
        self.targets = Types.of(item.encoded)
        self.sources = Types.of(item.source) if across and item.source else self.targets
        self.target_type = self.targets.kind[self.target]
        self.source_type = self.sources.kind[self.source]
        self.same_subword = self.target_type == self.source_type
        if across:
            target, source = (np.array(t.tokens, object) for t in (self.targets, self.sources))
            self.same_subword = np.asarray(target[self.target_type] == source[self.source_type])

    def counted(self, exclude_same_type: bool, exclude_special: bool) -> NDArray[np.bool_]:
        """Mark the pairs that FF-amp is taken of: i ≠ j, less what the options exclude."""
        counted = (self.target != self.source) | self.across
        if exclude_same_type:
            counted &= ~self.same_subword
        if exclude_special:
            counted &= self.relation != RELATIONS.index("special")
        return counted

    def ids(self, at: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The token ids of the sources and of the targets of the pairs `at`."""
        return self.sources.ids[self.source_type[at]], self.targets.ids[self.target_type[at]]


class Groups:
    """Groups of pairs with equal keys, each of (pairs,)."""

    def __init__(self, **keys: NDArray[Any]):
        sizes = [int(key.max(initial=0)) + 1 for key in keys.values()]
        numbers = np.ravel_multi_index([key.astype(np.int64) for key in keys.values()], sizes)
        kinds, self._group = np.unique(numbers, return_inverse=True)
        self._keys = dict(zip(keys, np.unravel_index(kinds, sizes), strict=True))

    def sums(self, layers: NDArray[np.int64], **values: NDArray[np.float64]) -> Columns:
        """Count the pairs of each group, and sum their values in each layer, (layers, pairs)."""
        counts = np.bincount(self._group)
        columns = {**self._keys, "count": counts}
        columns = {name: np.tile(column, len(layers)) for name, column in columns.items()}
        for name, value in values.items():
            columns[name] = np.concatenate(
                [np.bincount(self._group, of_layer, len(counts)) for of_layer in value]
            )
        return {"layer": np.repeat(layers, len(counts)), **columns}


# Which pairs of subwords a corpus has often enough, counted before the run begins.
#
# A count-min sketch (Cormode & Muthukrishnan 2005): every ordered pair adds to one counter in
# each of two rows, so that the smaller of its two counters is never less than its count. What is
# kept is decided by these counters, for all sequences alike, so that the sums of a pair that is
# kept are exact; a pair that is kept by mistake is left out when the blocks are merged.


#: Counters in each of the two rows, as a power of two: 32 MiB of counters, 1 MiB of bits.
_BITS = 23
_SIZE = 1 << _BITS
#: Bytes that hold one bit of every counter.
BYTES = 2 * _SIZE // 8
#: Counters stop here, before they could begin anew.
_MOST = np.uint32(1 << 31)


def places_of(sources: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    """The counters of pairs of token ids, (2, pairs)."""
    pair = sources.astype(np.uint64) << np.uint64(32) | targets.astype(np.uint64)
    number = mixed(pair)
    rows = [number & np.uint64(_SIZE - 1), number >> np.uint64(64 - _BITS)]
    return np.stack(rows).astype(np.int64)


class PairCounter:
    """Counts the ordered pairs of a corpus's subwords, sequence by sequence."""

    def __init__(self, causal: bool):
        self.causal = causal
        self._counters = np.zeros((2, _SIZE), np.uint32)

    def add(self, ids: list[int]) -> None:
        """Count the pairs of a sequence: each source with each other token, or with later ones."""
        tokens = np.asarray(ids, np.int64)
        if self.causal:
            target, source = np.tril_indices(len(tokens), -1)
            sources, targets = tokens[source], tokens[target]
            counts = np.ones(len(sources), np.uint32)
        else:
            kinds, times = np.unique(tokens, return_counts=True)
            often = np.outer(times, times)
            np.fill_diagonal(often, times * (times - 1))  # no token is paired with itself
            sources, targets = (axis.ravel() for axis in np.meshgrid(kinds, kinds, indexing="ij"))
            counts = often.ravel().astype(np.uint32)
            occur = counts > 0
            sources, targets, counts = sources[occur], targets[occur], counts[occur]
        for row, places in zip(self._counters, places_of(sources, targets), strict=True):
            np.add.at(row, places, counts)
            row[places] = np.minimum(row[places], _MOST)

    def kept(self, min_count: int, keep_pairs: int | None) -> KeptPairs:
        """The pairs that occur `min_count` times, or so often that about `keep_pairs` are left."""
        least = max(1, min_count)
        if keep_pairs is not None:
            # As many pairs occur so often as counters say so, but for those that share one.
            high = max(least, int(self._counters.max(initial=0)) + 1)
            while least < high:
                middle = (least + high) // 2
                if int((self._counters >= middle).sum(axis=1).min()) <= keep_pairs:
                    high = middle
                else:
                    least = middle + 1
        return KeptPairs(
            np.packbits(self._counters >= least, axis=1),
            np.packbits(self._counters > 0, axis=1),
            least,
        )


@dataclass(frozen=True, eq=False)
class KeptPairs:
    """The pairs that a run keeps, as bits of the counters, and how often each occurs at least."""

    often: NDArray[np.uint8]  # (2, counters / 8): as often as `least`
    seen: NDArray[np.uint8]  # (2, counters / 8): at all
    least: int

    def holds(self, sources: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each pair of token ids is kept."""
        return _set(self.often, places_of(sources, targets))

    def saw(self, sources: NDArray[Any], targets: NDArray[Any]) -> bool:
        """Whether all of these pairs may have been counted; False is certain."""
        return bool(_set(self.seen, places_of(sources, targets)).all())


def _set(bits: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the bits of both rows are set."""
    byte, bit = places >> 3, 7 - (places & 7)
    one, other = (row[at] >> by & 1 for row, at, by in zip(bits, byte, bit, strict=True))
    return (one & other).astype(bool)

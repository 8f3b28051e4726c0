"""Categories of tokens, relations between two tokens, and the scopes around the FF block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.errors import InputError
from normlens.results.maps import Maps
from normlens.scopes import chains, components_of, is_among

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
    pairs = [feed_forward_pair(chain) for chain in chains(scopes)]
    return [pair for pair in dict.fromkeys(pairs) if pair is not None]


def default_pairs(scopes: Iterable[str]) -> list[ScopePair]:
    """Find the pairs that FF-amp is taken of: before FF / FF, and before LN1 / the whole layer.

    Kobayashi et al. 2024, section 5. In BERT: ATTNRESLN-N / ATTNRESLNFF-N and ATTNRES-N /
    ATTNRESLNFFRESLN-N. A layer whose block stands beside the attention has neither. Where layers
    differ, each kind of layer has its pairs.
    """
    pairs = [
        pair(chain) for chain in chains(scopes) for pair in (feed_forward_pair, whole_block_pair)
    ]
    return [pair for pair in dict.fromkeys(pairs) if pair is not None]


def of_other_stack(pair: ScopePair, maps: Maps) -> bool:
    """Whether both scopes, perhaps by short names, are of a stack that these maps are not of."""
    if maps.provenance.get("stack") == "encoder":
        return not _are_among(pair, maps.scopes)  # the decoder's maps know those of both
    other = maps.encoder
    return (
        other is not None and _are_among(pair, other.scopes) and not _are_among(pair, maps.scopes)
    )


def _are_among(pair: ScopePair, scopes: Sequence[str]) -> bool:
    return all(is_among(name, scopes) for name in pair)

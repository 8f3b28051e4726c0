"""Categories of tokens, and relations between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.measures.base import Item
from normlens.errors import InputError

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

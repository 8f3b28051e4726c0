"""Variants of a text: some of its tokens replaced by others, or left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from normlens.errors import InputError
from normlens.inputs.text import Encoded


@dataclass(frozen=True)
class Variant:
    """The tokens that the model is given, and where its score is read among them."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None
    position: int | None = None  # None: the score belongs to the whole text

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError("a variant without any token cannot be scored; leave one token")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def encoded(self) -> Encoded:
        """The same as a sequence that a batch is made of."""
        types = None if self.type_ids is None else list(self.type_ids)
        return Encoded(list(self.ids), [""] * len(self), [False] * len(self), types)


def whole_text(encoded: Encoded, position: int | None) -> Variant:
    """The text as it is."""
    types = None if encoded.type_ids is None else tuple(encoded.type_ids)
    return Variant(tuple(encoded.ids), types, position)


def with_ids(encoded: Encoded, position: int | None, ids: Sequence[int]) -> Variant:
    """The text with other tokens, as many as it has, or fewer where it does not matter which."""
    whole = whole_text(encoded, position)
    if len(ids) == len(whole):
        return Variant(tuple(ids), whole.type_ids, position)
    if len(set(whole.type_ids or ())) > 1:
        raise InputError(
            "which token types belong to the remaining tokens of a pair is not clear from their "
            "ids; make the variant with Question.without"
        )
    if position not in (None, len(whole) - 1):
        raise InputError(
            f"where the score of position {position} is read in a text of another length is not "
            "clear from its ids; make the variant with Question.without"
        )
    types = None if whole.type_ids is None else whole.type_ids[:1] * len(ids)
    return Variant(tuple(ids), types, None if position is None else len(ids) - 1)


def replaced(variant: Variant, places: Collection[int], token: int | Sequence[int]) -> Variant:
    """`token`, or one token for each of the `places` in their order, put in their stead."""
    tokens = [token] * len(places) if isinstance(token, int) else list(token)
    ids = list(variant.ids)
    for place, new in zip(places, tokens, strict=True):
        ids[place] = new
    return Variant(tuple(ids), variant.type_ids, variant.position)


def without(variant: Variant, places: Collection[int], *, slot: bool) -> Variant:
    """The tokens at `places` left out.

    Where the token that the score is read at is left out, the one before it is read. A `slot`,
    such as a mask, cannot be left out.
    """
    left_out = set(places)
    kept = [place for place in range(len(variant)) if place not in left_out]
    position = variant.position
    if position is not None:
        if slot and position in left_out:
            raise InputError(f"the score is read at token {position}, which cannot be left out")
        position = sum(place <= position for place in kept) - 1
        if position < 0:
            raise InputError("no token is left that the score could be read at")
    types = variant.type_ids
    return Variant(
        tuple(variant.ids[place] for place in kept),
        None if types is None else tuple(types[place] for place in kept),
        position,
    )

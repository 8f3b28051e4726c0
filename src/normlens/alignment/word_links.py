"""Links between the words of a source and of its target, from a decoder's maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.alignment.options import INPUT, WAYS
from normlens.errors import InputError, check_choice
from normlens.measures.alignment import NO_WORD, Link, aligned_words
from normlens.results.maps import Maps
from normlens.results.words import OTHER_SEQUENCE

if TYPE_CHECKING:
    from normlens.inputs.text import Encoded


@dataclass(frozen=True)
class WordPlaces:
    """Where a source's and a target's words stand among the tokens of a decoder's maps."""

    columns: Sequence[Sequence[int]]  # of each source word
    no_word: Sequence[int]  # columns of the source's special tokens
    tokens: Sequence[Sequence[int]]  # of each target word, as the decoder reads them

    @classmethod
    def of(cls, source: Encoded, target: Encoded) -> WordPlaces:
        """The places of a pair's words; every word counts, with or without tokens."""
        for name, side in (("source", source), ("target", target)):
            if side.words is None:
                raise InputError(
                    f"the words of the {name} are not known, because its tokenizer does not say "
                    "which word a token belongs to; give words that spaces separate"
                )
        return cls(
            columns=_places(source.words or [], len(source.word_labels)),
            no_word=[place for place, word in enumerate(source.words or []) if word is None],
            tokens=_places(target.words or [], len(target.word_labels)),
        )

    def rows(self, way: str) -> list[list[int]]:
        """The rows of each target word."""
        check_choice(way, WAYS, "way")
        if way == INPUT:
            return [list(places) for places in self.tokens]
        return [[place - 1 for place in places if place > 0] for places in self.tokens]

    def links(self, scores: NDArray[np.floating], way: str) -> list[list[Link]]:
        """The links of each map (layer, target, source of the encoder)."""
        words = aligned_words(scores, self.rows(way), self.columns, self.no_word)
        return [
            [(int(source), target) for target, source in enumerate(row) if source != NO_WORD]
            for row in words
        ]


def word_links(maps: Maps, scope: str = "CROSS-N", layer: int = -1, way: str = INPUT) -> list[Link]:
    """Links (source word, target word) of one map of an encoder–decoder, both from 0.

    Source subwords are summed and target subwords averaged; a target word goes to the source word
    with the largest score, or to none if a special token (the end of the source) has a larger one.
    """
    of_encoder = maps.sources_of(OTHER_SEQUENCE)
    places = WordPlaces(
        columns=_places(of_encoder.sources.token_words or [], None),
        no_word=[k for k, w in enumerate(of_encoder.sources.token_words or []) if w is None],
        tokens=_places(maps.token_words or [], len(maps.word_labels)),
    )
    if of_encoder.sources.token_words is None or maps.token_words is None:
        raise InputError("the words of these maps are not known; give both texts as lists of words")
    (links,) = places.links(of_encoder.at(scope, layer)[None], way)
    return links


def _places(words: Sequence[int | None], count: int | None) -> list[list[int]]:
    """The tokens of each word; `count` words, or up to the last that has a token."""
    last = max((word for word in words if word is not None), default=-1)
    places: list[list[int]] = [[] for _ in range(last + 1 if count is None else count)]
    for place, word in enumerate(words):
        if word is not None:
            places[word].append(place)
    return places


def pharaoh(links: Iterable[Link]) -> str:
    """Links as Pharaoh's format writes them, ``0-0 1-2``, by target word."""
    return " ".join(f"{source}-{target}" for source, target in links)

"""Links between the words of a source and of its target, from maps or contributions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, check_choice, require
from normlens.explain.explainer import ask
from normlens.inputs.text import Encoded
from normlens.measures.alignment import NO_WORD, Link, aligned_words
from normlens.models.base import read_head
from normlens.models.parts import DECODER, TwoStacks
from normlens.options import AnalysisOptions, ExplainOptions
from normlens.pipeline.batches import layers_by_stack, scopes_of
from normlens.results.maps import Maps
from normlens.results.words import OTHER_SEQUENCE
from normlens.scopes import components_of, resolve
from normlens.studies.alignment.options import ALL, EXPLAIN, INPUT, OUTPUT, WAYS

if TYPE_CHECKING:
    from normlens.lens import Lens

# Links between the words of a source and of its target, from a decoder's maps.


@dataclass(frozen=True)
class WordPlaces:
    """Map the words of a source and a target to token positions of a decoder's maps."""

    columns: Sequence[Sequence[int]]  # of each source word
    no_word: Sequence[int]  # columns of the source's special tokens
    tokens: Sequence[Sequence[int]]  # of each target word, as the decoder reads them

    @classmethod
    def of(
        cls, source: Sequence[int | None] | None, target: Sequence[int | None] | None
    ) -> WordPlaces:
        """Build from the word of each token on either side."""
        if source is None or target is None:
            raise InputError("the words are not known; give both texts as lists of words")
        no_word = [place for place, word in enumerate(source) if word is None]
        return cls(_places(source), no_word, _places(target))

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
    places = WordPlaces.of(of_encoder.sources.token_words, maps.token_words)
    (links,) = places.links(of_encoder.at(scope, layer)[None], way)
    return links


def _places(words: Sequence[int | None]) -> list[list[int]]:
    """The tokens of each word, up to the last that has a token."""
    last = max((word for word in words if word is not None), default=-1)
    return [[place for place, own in enumerate(words) if own == word] for word in range(last + 1)]


def pharaoh(links: Iterable[Link]) -> str:
    """Links as Pharaoh's format writes them, ``0-0 1-2``, by target word."""
    return " ".join(f"{source}-{target}" for source, target in links)


# Scores that links are read from: a map of a layer, of a head, or contributions to logits.


@dataclass(frozen=True)
class Reading:
    """Scores of one kind, (layer, target, source of the encoder)."""

    scope: str
    head: int | None  # None: all heads together
    layers: Sequence[int | None]  # of the first axis; None: the whole model
    ways: Sequence[str]
    scores: NDArray[np.floating]


# What an alignment is read from: scopes of the decoder that the source has reached, and heads.


#: The cross-attention alone: its weights, and the norms of what it adds.
WEIGHTS, NORMS = "CROSS-W", "CROSS-N"


@dataclass(frozen=True)
class Chosen:
    """Scopes by the names that tables use, each with its full name; layers and heads from 0."""

    scopes: dict[str, str]
    layers: list[int]
    heads: list[int]  # none: all heads together
    together: bool  # whether maps of all heads together are read
    explains: bool = False  # whether contributions to logits are read


def choose(
    lens: Lens,
    scopes: Sequence[str],
    layers: int | Iterable[int] | None,
    ways: Sequence[str],
    head: int | str | None,
) -> Chosen:
    """Resolve the options for a model, or raise an error that lists what it has."""
    if not isinstance(lens.adapter, TwoStacks):
        raise InputError(f"{lens.name} reads one sequence; align with an encoder–decoder")
    decoder = layers_by_stack(lens.adapter, lens.layers)[DECODER]
    available = scopes_of(decoder)
    reached = {_name(scope): scope for scope in available if "CROSS" in components_of(scope)}
    of_maps = [scope for scope in scopes if scope.upper() != EXPLAIN]
    explains = len(of_maps) < len(scopes)
    if explains:
        read_head(lens.adapter)  # raises for a model without one
        by_output = "contributions are of the row that predicts a word; choose way output"
        require(OUTPUT in ways, by_output)
        whole = "contributions to a logit are of the whole model; leave head out"
        require(head in (None, ALL), whole)
    named: set[str] = set()
    for scope in of_maps:
        full = None if scope == ALL else resolve(scope, available)
        found = set(reached) if full is None else {_name(full)} & set(reached)
        require(found, f"the source does not reach {full}; choose: {', '.join(reached)}, explain")
        named |= found
    wanted = AnalysisOptions(layers=layers).layers_of(len(decoder), f"the decoder of {lens.name}")
    count = min(
        step.heads
        for layer in wanted
        for step in decoder[layer].attentions
        if step.source is not None
    )
    every = range(count)
    heads = [] if head is None else list(every) if head == ALL else [head]
    is_there = all(one in every for one in heads)
    require(is_there, f"head {head!r} is out of range; {lens.name} has heads 0 to {count - 1}")
    ordered = {name: full for name, full in reached.items() if name in named}
    together = head in (None, ALL)
    have_heads = together or {*ordered} <= {WEIGHTS, NORMS}
    require(have_heads, f"single heads have {WEIGHTS} and {NORMS} alone; leave head out")
    return Chosen(ordered, wanted, [int(one) for one in heads], together, explains)


def _name(scope: str) -> str:
    """CROSS-N for the scope that ends with the cross-attention, whatever stands before it."""
    if scope.endswith("-N") and components_of(scope)[-1] == "CROSS":
        return NORMS
    return scope


# Scores for links from explanations: what each source token contributes to a word's logits.


def explained(
    lens: Lens, pairs: Sequence[Encoded], batch_size: int | str
) -> Iterator[tuple[int, Reading, float]]:
    """Yield each pair's index, contributions and completeness error.

    Row i has the contributions of the source's tokens to the logit of the target token that the
    decoder predicts there. They are signed: a token that speaks against a word is no link to it.
    """
    options = ExplainOptions(flow=False, batch_size=batch_size)
    answers = ask(lens, pairs, True, options, position="all")
    for place, (pair, answer) in enumerate(zip(pairs, answers, strict=True)):
        scores = np.zeros((1, len(pair), len(pair.sequences[0])))
        for why in answer:
            scores[0, why.position] = why.source.contributions
        worst = max(float(why.completeness) for why in answer)
        yield place, Reading(EXPLAIN, None, [None], [OUTPUT], scores), worst

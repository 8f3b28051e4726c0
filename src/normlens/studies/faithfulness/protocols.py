"""Protocols: what a model's answer loses when a text loses the tokens that scores point at."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.inputs.text import Encoded
from normlens.studies.faithfulness.questions import (
    CLASSES,
    COSINE,
    NEXT_TOKEN,
    Question,
    Variant,
    mask_token,
)
from normlens.studies.faithfulness.scoring import Scored

if TYPE_CHECKING:
    from normlens.lens import Lens

# Orders of tokens by their scores; equal scores are put in an order that a seed decides.


#: Which tokens go first.
MOST, LEAST = "most", "least"


def seeded_numbers(seed: int, ids: Sequence[int], purpose: str, count: int) -> NDArray[np.uint64]:
    """Numbers of 64 random bits that depend on the seed, the text and their purpose alone."""
    digest = hashlib.sha256(json.dumps([purpose, seed, *map(int, ids)]).encode()).digest()
    # Raw bits are the same in every version of NumPy; its permutations need not be.
    return np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(count)


def ordered(scores: NDArray[np.float64], ties: NDArray[np.uint64], first: str) -> NDArray[np.intp]:
    """The places of scores, the most or the least important first.

    Of equal scores the one with the lower number in `ties` goes first, in both directions: a score
    that is the same for all tokens says as little as a random order, wherever the tokens stand.
    """
    return np.lexsort((ties, -scores if first == MOST else scores))


# The interface of a protocol: how a text is changed, and what that says of a method's scores.


@dataclass(frozen=True, eq=False)
class Example:
    """A text put to the test: its question, and the word that must decide it, if any."""

    question: Question
    seed: int = 0
    evidence: str | None = None

    @cached_property
    def ordinary(self) -> NDArray[np.intp]:
        """The places of the tokens that may be changed; special tokens never are."""
        return np.array(self.question.ordinary, np.intp)

    def numbers(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """Random numbers that belong to this text; the same for every method."""
        return seeded_numbers(self.seed, self.question.encoded.ids, purpose, count)

    def by_importance(self, scores: NDArray[np.float64], first: str) -> NDArray[np.intp]:
        """The places of ordinary tokens, the most or the least important first."""
        places = self.ordinary
        return places[ordered(scores[places], self.numbers("ties", len(places)), first)]


@dataclass(frozen=True)
class Removal:
    """One variant of a text, some of whose ordinary tokens are replaced or left out."""

    first: str  # which tokens go first, the most or the least important
    share: float  # K, as the protocol counts it: what goes or, for sufficiency, what stays
    removed: int  # how many tokens are gone
    variant: Variant


class Protocol(ABC):
    """Turns a method's scores (one per token) into a number that says how true they are."""

    name: ClassVar[str]
    #: the kind of question that it is about (`Question.kind`)
    kind: ClassVar[str]
    #: it gives one value for each of these
    firsts: ClassVar[tuple[str, ...]] = (MOST,)

    @classmethod
    @abstractmethod
    def on(cls, lens: Lens) -> Protocol:
        """The protocol for a model; raises an `InputError` where the model lacks what it needs."""

    @abstractmethod
    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        """The variants whose scores the values need."""

    @abstractmethod
    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        """The value for each of `firsts`; None where the text says nothing about the scores.

        `intact` is what the model says of the text as it is, `outcomes` what it says of each
        removal.
        """


# Drops: how far the model's answer falls as a text loses its tokens, share by share.


#: What falls: a field of `Scored`.
PROBABILITY, SCORE = "probability", "score"


class Drops(Protocol):
    """``mean_K [s(x) − s(x without K % of its ordinary tokens)]``."""

    firsts: ClassVar[tuple[str, ...]] = (MOST, LEAST)
    reads: ClassVar[str]
    percents: ClassVar[tuple[int, ...]] = tuple(range(0, 100, 10))

    @abstractmethod
    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        """The text without the tokens at `places`, or with others in their stead."""

    def removed(self, order: list[int], percent: int) -> list[int]:
        """Which of the tokens, given in the order of importance, go: the first ⌊K·n⌋ of n."""
        return order[: percent * len(order) // 100]

    def says_something(self, example: Example) -> bool:
        """Whether there is anything to remove."""
        return len(example.ordinary) > 0

    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        if not self.says_something(example):
            return []
        made = []
        for first in self.firsts:
            order = example.by_importance(scores, first).tolist()
            for percent in self.percents:
                # In the order of the text, so that one set of tokens is one variant.
                places = sorted(self.removed(order, percent))
                variant = self.changed(example, places)
                made.append(Removal(first, percent / 100, len(places), variant))
        return made

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        if not removals:
            return dict.fromkeys(self.firsts)
        drops = getattr(intact, self.reads)[0] - getattr(outcomes, self.reads)
        firsts = np.array([removal.first for removal in removals])
        return {first: float(drops[firsts == first].mean()) for first in self.firsts}


# Deletions: ERASER's comprehensiveness and sufficiency share how tokens are left out.


#: Shares of the tokens that are taken as the rationale, in percent; at least one token.
BINS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class Deletion(Drops):
    """Drops as ordinary tokens are left out of the text."""

    kind = CLASSES
    reads = PROBABILITY

    @classmethod
    def on(cls, lens: Lens) -> Deletion:
        return cls()

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.without(places)

    def says_something(self, example: Example) -> bool:
        """Whether a token is left to the model when one goes."""
        return len(example.ordinary) > 0 and len(example.question) > 1


def rationale(percent: int, n: int) -> int:
    """How many of n tokens a bin takes."""
    return min(n, max(1, percent * n // 100))


# AOPC: how far the probability of the predicted class falls as tokens are masked.


@dataclass(frozen=True)
class Masking(Drops):
    """Drops as mask tokens take the place of ordinary ones."""

    mask_id: int

    @classmethod
    def on(cls, lens: Lens) -> Masking:
        mask_id = mask_token(lens)
        if mask_id is None:
            raise InputError(
                f"{cls.name} masks tokens and {lens.name} has no mask token; choose other protocols"
            )
        return cls(mask_id)

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.replaced(places, self.mask_id)


@dataclass(frozen=True)
class Aopc(Masking):
    """``mean_K [p(ŷ|x) − p(ŷ|x with the first K masked)]``, K = 0, 10, …, 90 %.

    Area over the perturbation curve, by the protocol of DecompX (Modarressi et al. 2023). ⌊K·n⌋ of
    the n ordinary tokens are masked. Most important first, larger is better; least important
    first, smaller.
    """

    name = "aopc"
    kind = CLASSES
    reads = PROBABILITY


# Comprehensiveness: what the predicted class loses without the most important tokens.


@dataclass(frozen=True)
class Comprehensiveness(Deletion):
    """``mean_K [p(ŷ|x) − p(ŷ|x without the K most important tokens)]``; larger is better.

    DeYoung et al. 2020 (ERASER), section 4: the tokens are left out, K = 1, 5, 10, 20, 50 %.
    """

    name = "comprehensiveness"
    firsts = (MOST,)
    percents = BINS

    def removed(self, order: list[int], percent: int) -> list[int]:
        return order[: rationale(percent, len(order))]


# Sufficiency: what the predicted class loses when nothing but the most important tokens stays.


@dataclass(frozen=True)
class Sufficiency(Deletion):
    """``mean_K [p(ŷ|x) − p(ŷ|the K most important tokens alone)]``; smaller is better.

    DeYoung et al. 2020 (ERASER), section 4. All other ordinary tokens are left out; a removal's
    share is the share that stays, K = 1, 5, 10, 20, 50 %.
    """

    name = "sufficiency"
    firsts = (MOST,)
    percents = BINS

    def removed(self, order: list[int], percent: int) -> list[int]:
        return order[rationale(percent, len(order)) :]


# The cosine's AOPC: how far two texts fall apart as the tokens of one are masked.


@dataclass(frozen=True)
class CosineAopc(Masking):
    """``mean_K [cos(u, v) − cos(u with the first K masked, v)]``, K = 0, 10, …, 90 %.

    u is the first text's vector and loses its tokens, v is the second text's and is fixed.
    """

    name = "cosine-aopc"
    kind = COSINE
    reads = SCORE


# Contrast drops: how far a causal model's preference falls as tokens are replaced.


@dataclass(frozen=True)
class ContrastDropEnd(Drops):
    """``mean_K [s(x) − s(x with the first K replaced by the end-of-text token)]``.

    s is the difference of two next tokens' logits; K = 0, 10, …, 90 %.
    """

    end_id: int

    name = "contrast-drop-end"
    kind = NEXT_TOKEN
    reads = SCORE

    @classmethod
    def on(cls, lens: Lens) -> ContrastDropEnd:
        end_id = getattr(lens.tokenizer, "eos_token_id", None)
        if end_id is None:
            raise InputError(
                f"{cls.name} writes the end-of-text token over others and {lens.name} has none; "
                "choose contrast-drop-random"
            )
        return cls(int(end_id))

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        return example.question.replaced(places, self.end_id)


@dataclass(frozen=True)
class ContrastDropRandom(Drops):
    """The same with random tokens, one for each place of a text, drawn by the run's seed.

    A place is given the same token by every method and at every share.
    """

    vocabulary: NDArray[np.int64] = field(repr=False)  # ids of ordinary tokens

    name = "contrast-drop-random"
    kind = NEXT_TOKEN
    reads = SCORE

    @classmethod
    def on(cls, lens: Lens) -> ContrastDropRandom:
        tokenizer = lens.tokenizer
        rows = lens.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        special = {*getattr(tokenizer, "all_special_ids", ())}
        special |= {*getattr(tokenizer, "added_tokens_decoder", ())}
        size = min(int(rows), len(tokenizer))  # type: ignore[arg-type]
        return cls(np.array([i for i in range(size) if i not in special], np.int64))

    def changed(self, example: Example, places: Sequence[int]) -> Variant:
        drawn = example.numbers("replacements", len(example.question)) % np.uint64(
            len(self.vocabulary)
        )
        tokens = self.vocabulary[drawn[list(places)].astype(np.intp)].tolist()
        return example.question.replaced(places, tokens)


# Evidence: the rank of the word that must decide between two next words.


@dataclass(frozen=True)
class Evidence(Protocol):
    """1 / the rank of the deciding word among the text's words; its mean is the MRR.

    A word's score is the sum of its tokens'. Where the deciding word stands several times, its best
    place counts. A text of one word says nothing.
    """

    name = "evidence"
    kind = NEXT_TOKEN

    @classmethod
    def on(cls, lens: Lens) -> Evidence:
        return cls()

    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        return []

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        intact: Scored,
        removals: Sequence[Removal],
        outcomes: Scored,
    ) -> dict[str, float | None]:
        assert example.evidence is not None
        words, deciding = deciding_words(example.question.encoded, example.evidence)
        count = max(words.max(initial=-1) + 1, 0)
        if count < 2:
            return {MOST: None}
        own = words >= 0
        totals = np.bincount(words[own], scores[own], minlength=count).astype(np.float64)
        order = ordered(totals, example.numbers("words", count), MOST)
        rank = 1 + int(np.flatnonzero(np.isin(order, sorted(deciding)))[0])
        return {MOST: 1 / rank}


def deciding_words(encoded: Encoded, evidence: str) -> tuple[NDArray[np.intp], set[int]]:
    """The word of each token (−1: none), and the words that are `evidence`.

    It is looked for as a whole word, with its capitals. Evidence that the tokenizer calls several
    words counts as one.
    """
    text = encoded.text
    if encoded.words is None or not isinstance(text, str):
        raise InputError("its words are not known, which evidence is looked for among")
    matches = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(evidence)}(?!\w)", text)]
    spans = _spans(text, encoded.word_labels)
    # The words of one match take the number of its first; numbers are then made dense.
    number = list(range(len(spans)))
    starts = []
    for low, high in matches if evidence else []:
        inside = [word for word, (a, b) in enumerate(spans) if a < high and b > low]
        if inside:
            starts.append(inside[0])
            for word in inside:
                number[word] = number[inside[0]]
    if not starts:
        raise InputError(f"its evidence {evidence!r} is not a word of the text")
    dense = {old: new for new, old in enumerate(sorted(set(number)))}
    words = [-1 if word is None else dense[number[word]] for word in encoded.words]
    return np.array(words, np.intp), {dense[number[start]] for start in starts}


def _spans(text: str, labels: Sequence[str]) -> list[tuple[int, int]]:
    """Where each word stands in the text; they come in its order."""
    spans, start = [], 0
    for label in labels:
        low = text.find(label, start)
        start = start if low < 0 else low + len(label)
        spans.append((start, start) if low < 0 else (low, start))
    return spans


# Protocols by name, and which of them a question is put to unless told otherwise.


PROTOCOLS: dict[str, type[Protocol]] = {
    protocol.name: protocol
    for protocol in (
        Aopc,
        Comprehensiveness,
        Sufficiency,
        Evidence,
        ContrastDropEnd,
        ContrastDropRandom,
        CosineAopc,
    )
}


def get(name: str) -> type[Protocol]:
    """The protocol of a name."""
    return PROTOCOLS[valid_choice(name, tuple(PROTOCOLS), "protocol")]


def kind_of(names: Sequence[str]) -> str:
    """The kind of question that these protocols are about, which must be one."""
    by_kind: dict[str, str] = {}
    for name in names:
        by_kind.setdefault(get(name).kind, name)
    if len(by_kind) > 1:
        first, second, *_ = by_kind.values()
        raise InputError(
            f"{first} and {second} are about different kinds of models; take one evaluation for "
            "each"
        )
    return next(iter(by_kind))


def of_kind(kind: str) -> list[str]:
    """The protocols for a kind of question."""
    return [name for name, protocol in PROTOCOLS.items() if protocol.kind == kind]

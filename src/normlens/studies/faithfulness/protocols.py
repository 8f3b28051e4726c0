"""Protocols: what a model's answer loses when a text loses the tokens that scores point at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import (
    FLAG,
    INT,
    LABEL,
    REAL,
    TEXT,
    WHOSE,
    Item,
    schema_of,
    whose,
)
from normlens.errors import InputError, valid_choice
from normlens.inputs.text import Encoded
from normlens.measures.bootstrap import numbers_of_text
from normlens.measures.ranks import places_by_score
from normlens.studies.faithfulness import questions
from normlens.studies.faithfulness.options import CITATIONS, LEAST, MOST

if TYPE_CHECKING:
    from normlens.lens import Lens

# The tables of an evaluation, which need no model to be read.
#
# `examples` has a row for each text: the question about it and what the model says of it.
# `correct` is by the label, or by which of two given words is preferred. `attributions` has a row
# for each method and token; `word` numbers the words whose tokens' scores are summed, and
# `evidence` marks the word that must decide. `removals` has a row for each variant of a text that
# a protocol ran: `first` says which tokens went first, the most or the least important, `share`
# which share of the ordinary tokens that was (for sufficiency, which share of the most important
# ones stayed), and `removed` how many are gone. `faithfulness` has a protocol's value for each
# method and text, null where the text says nothing. `method_passes` counts the rows that a method
# passed through the model.


# The probability is the target's, and null for a cosine.
_SCORES = {"score": REAL, "probability": REAL, "correct": FLAG}
_SCORED_BY = {"protocol": LABEL, "method": LABEL, "first": LABEL}
TABLES = {
    "examples": schema_of(
        *WHOSE,
        **{"tokens": INT, "ordinary": INT, "target_id": INT, "target": TEXT},
        **{"contrast_id": INT, "contrast": TEXT, "label": TEXT, "evidence": TEXT, **_SCORES},
    ),
    "attributions": schema_of(
        *WHOSE,
        **{"method": LABEL, "position": INT, "token": LABEL, "ordinary": FLAG},
        **{"word": INT, "evidence": FLAG, "score": REAL},  # null: of no word, none given
    ),
    "removals": schema_of(*WHOSE, **_SCORED_BY, share=REAL, removed=INT, **_SCORES),
    "faithfulness": schema_of(*WHOSE, **_SCORED_BY, value=REAL),
    "method_passes": schema_of(*WHOSE, method=LABEL, forward=REAL, backward=REAL),
}
ORDER = {
    "examples": ("index",),
    "attributions": ("index", "method", "position"),
    "removals": ("index", "protocol", "method", "first", "share"),
    "faithfulness": ("index", "protocol", "method", "first"),
    "method_passes": ("index", "method"),
}


def tables_of(item: Item, **rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Table]:
    """A text's rows of every table."""
    return {
        name: pa.Table.from_pylist(
            [{**whose(item), **row} for row in rows.get(name, ())], schema=schema
        )
        for name, schema in TABLES.items()
    }


# A text put to the test, and its changed versions.


@dataclass(frozen=True, eq=False)
class Example:
    """A text to evaluate: its question, and the right answer if its row has one."""

    question: questions.Question
    seed: int = 0
    evidence: str | None = None  # the word that must decide the question
    label: int | None = None  # the right class
    prefers: bool = False  # whether the target is the better of two words that the row names

    def correct(self, score: float, predicted: int) -> bool | None:
        """Whether the model is right; None where the row has no answer."""
        if self.label is not None:
            return predicted == self.label
        return score > 0 if self.prefers else None

    def numbers(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """Random numbers that belong to this text; the same for every method."""
        return numbers_of_text(self.seed, self.question.encoded.ids, purpose, count)

    def by_importance(self, scores: NDArray[np.float64], first: str) -> NDArray[np.intp]:
        """The places of ordinary tokens, the most or the least important first."""
        places = self.question.ordinary
        return places[
            places_by_score(scores[places], self.numbers("ties", len(places)), first == MOST)
        ]


@dataclass(frozen=True)
class Removal:
    """One variant of a text, some of whose ordinary tokens are replaced or left out."""

    first: str  # which tokens go first, the most or the least important
    share: float  # K, as the protocol counts it: what goes or, for sufficiency, what stays
    removed: int  # how many tokens are gone
    variant: questions.Variant


# Ways to change a text; each is made for a model, or says why the model does not allow it.


#: Makes a variant of an example, whose tokens at some places are changed.
Change: TypeAlias = Callable[[Example, Sequence[int]], questions.Variant]


def deleting(lens: Lens, protocol: str) -> Change:
    """Leave tokens out."""
    return lambda example, places: example.question.without(places)


def masking(lens: Lens, protocol: str) -> Change:
    """Replace tokens by the mask token."""
    mask = questions.mask_token(lens)
    if mask is None:
        raise InputError(f"{protocol} needs a mask token, which {lens.name} lacks; choose another")
    return lambda example, places: example.question.replaced(places, mask)


def ending(lens: Lens, protocol: str) -> Change:
    """Replace tokens by the end-of-text token."""
    end: int | None = getattr(lens.tokenizer, "eos_token_id", None)
    if end is None:
        raise InputError(f"{protocol} needs an end-of-text token; choose contrast-drop-random")
    return lambda example, places: example.question.replaced(places, end)


def drawing(lens: Lens, protocol: str) -> Change:
    """Replace tokens by random ones; a place gets the same one for every share and method."""
    tokenizer = lens.tokenizer
    rows = lens.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    special = {*getattr(tokenizer, "all_special_ids", ())}
    special |= {*getattr(tokenizer, "added_tokens_decoder", ())}
    size = min(int(rows), len(tokenizer))  # type: ignore[arg-type]
    ordinary = np.array([i for i in range(size) if i not in special], np.int64)

    def draw(example: Example, places: Sequence[int]) -> questions.Variant:
        drawn = example.numbers("replacements", len(example.question)) % np.uint64(len(ordinary))
        return example.question.replaced(places, ordinary[drawn[list(places)]].tolist())

    return draw


# Drops: how far the model's answer falls as a text loses its tokens, share by share.


@dataclass(frozen=True)
class Drops:
    """``mean_K [s(x) − s(x with K % of its ordinary tokens changed)]``."""

    name: str
    kind: str  # of the question that it is about (`Question.kind`)
    reads: int  # the column of `Scored` that falls
    changes: Callable[[Lens, str], Change]
    #: it gives one value for each of these
    firsts: tuple[str, ...] = (MOST, LEAST)
    percents: tuple[int, ...] = tuple(range(0, 100, 10))
    least: int = 0  # how many tokens a share has at least
    keeps: bool = False  # a share stays, and all other tokens go
    change: Change | None = None  # of the model that it is for

    def on(self, lens: Lens) -> Drops:
        """The protocol for a model; raises an `InputError` where the model lacks what it needs."""
        return replace(self, change=self.changes(lens, self.name))

    def removals(self, example: Example, scores: NDArray[np.float64]) -> list[Removal]:
        """The variants whose scores the values need."""
        assert self.change is not None
        question = example.question
        # A text of one token would vanish if that were left out.
        if not len(question.ordinary) or (self.changes is deleting and len(question) == 1):
            return []
        made = []
        for first in self.firsts:
            order = example.by_importance(scores, first)
            for percent in self.percents:
                end = max(self.least, percent * len(order) // 100)
                # In the order of the text, so that one set of tokens is one variant.
                places = sorted((order[end:] if self.keeps else order[:end]).tolist())
                variant = self.change(example, places)
                made.append(Removal(first, percent / 100, len(places), variant))
        return made

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        removals: Sequence[Removal],
        drops: NDArray[np.float64],
    ) -> dict[str, float | None]:
        """The value for each of `firsts`; None where the text says nothing about the scores.

        `drops` are how far the model's answer falls by each removal.
        """
        if not removals:
            return dict.fromkeys(self.firsts)
        firsts = np.array([removal.first for removal in removals])
        return {first: float(drops[firsts == first].mean()) for first in self.firsts}


#: ``mean_K [p(ŷ|x) − p(ŷ|x with the first K masked)]``, K = 0, 10, …, 90 %: the area over the
#: perturbation curve, by the protocol of DecompX (Modarressi et al. 2023). Most important first,
#: larger is better; least important first, smaller.
AOPC = Drops("aopc", questions.CLASSES, questions.PROBABILITY, masking)

#: Shares of the tokens that ERASER takes as the rationale, in percent.
BINS = (1, 5, 10, 20, 50)

#: ``mean_K [p(ŷ|x) − p(ŷ|x without the K most important tokens)]``; larger is better. DeYoung et
#: al. 2020 (ERASER), section 4.
COMPREHENSIVENESS = Drops(
    "comprehensiveness", questions.CLASSES, questions.PROBABILITY, deleting, (MOST,), BINS, least=1
)

#: ``mean_K [p(ŷ|x) − p(ŷ|the K most important tokens alone)]``; smaller is better. All other
#: ordinary tokens are left out; a removal's share is the share that stays.
SUFFICIENCY = replace(COMPREHENSIVENESS, name="sufficiency", keeps=True)

#: ``mean_K [cos(u, v) − cos(u with the first K masked, v)]``. u is the first text's vector and
#: loses its tokens, v is the second text's and is fixed.
COSINE_AOPC = Drops("cosine-aopc", questions.COSINE, questions.SCORE, masking)

#: ``mean_K [s(x) − s(x with the first K replaced)]`` by the end-of-text token, or by random tokens
#: that the run's seed draws; s is the difference of two next tokens' logits.
CONTRAST_DROP_END = Drops("contrast-drop-end", questions.NEXT_TOKEN, questions.SCORE, ending)
CONTRAST_DROP_RANDOM = Drops("contrast-drop-random", questions.NEXT_TOKEN, questions.SCORE, drawing)


# Evidence: the rank of the word that must decide between two next words.


class RankOfEvidence(Drops):
    """1 / the rank of the deciding word among the text's words; its mean is the MRR.

    A word's score is the sum of its tokens'. Where the deciding word stands several times, its best
    place counts. A text of one word says nothing. No text is changed.
    """

    def values(
        self,
        example: Example,
        scores: NDArray[np.float64],
        removals: Sequence[Removal],
        drops: NDArray[np.float64],
    ) -> dict[str, float | None]:
        assert example.evidence is not None
        words, deciding = deciding_words(example.question.encoded, example.evidence)
        count = max(words.max(initial=-1) + 1, 0)
        if count < 2:
            return {MOST: None}
        own = words >= 0
        totals = np.bincount(words[own], scores[own], minlength=count).astype(np.float64)
        order = places_by_score(totals, example.numbers("words", count))
        rank = 1 + int(np.flatnonzero(np.isin(order, sorted(deciding)))[0])
        return {MOST: 1 / rank}


EVIDENCE = RankOfEvidence("evidence", questions.NEXT_TOKEN, questions.SCORE, deleting, (MOST,), ())


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


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        AOPC,
        COMPREHENSIVENESS,
        SUFFICIENCY,
        EVIDENCE,
        CONTRAST_DROP_END,
        CONTRAST_DROP_RANDOM,
        COSINE_AOPC,
    )
}


def get(name: str) -> Drops:
    """The protocol of a name."""
    return PROTOCOLS[valid_choice(name, (*PROTOCOLS, CITATIONS), "protocol")]


def kind_of(names: Sequence[str]) -> str:
    """The kind of question that these protocols are about, which must be one."""
    by_kind: dict[str, str] = {}
    for name in names:
        by_kind.setdefault(CITATIONS if name == CITATIONS else get(name).kind, name)
    if len(by_kind) > 1:
        first, second, *_ = by_kind.values()
        raise InputError(f"{first} and {second} are for different kinds of models; ask them apart")
    return next(iter(by_kind))

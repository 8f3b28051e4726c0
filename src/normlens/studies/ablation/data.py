"""The data of an ablation: what the first pass reads, what is measured, and pairs taken apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.errors import InputError
from normlens.studies.ablation.options import CLASSES, DRIFT, FEWEST, LARGEST_PART, AblateOptions

LABEL, SCORE = "label", "score"


class Rest(Data):
    """A data set without its first sequences."""

    def __init__(self, whole: Data, first: int):
        super().__init__(whole.name)
        self.whole, self.first = whole, first

    def _records(self) -> Iterator[Record]:
        return islice(self.whole, self.first, None)

    def _fingerprint(self) -> str:
        return _hashed(self.whole.fingerprint, "without the first", self.first)


class Apart(Data):
    """The texts of pairs as sequences of their own: those of pair k are 2k and 2k + 1."""

    def __init__(self, pairs: Data):
        super().__init__(pairs.name)
        self.pairs = pairs

    def _records(self) -> Iterator[Record]:
        for record in self.pairs:
            texts = record.text if isinstance(record.text, tuple) else (record.text, record.text)
            for letter, text in zip("ab", texts, strict=True):
                yield replace(record, id=f"{record.id}{letter}", text=text)

    def _fingerprint(self) -> str:
        return _hashed(self.pairs.fingerprint, "apart")


def _hashed(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class AblationData:
    """What is measured, what the first pass reads, and what the records hold."""

    measured: Data
    reference: Data | None  # None: no ablation needs a first pass
    reference_size: int  # its first sequences, so many, are read
    apart: bool  # records are pairs whose texts are encoded each for itself
    #: columns that the records keep: those of right classes or gold scores
    extra: tuple[str, ...]
    note: str  # what the first pass reads, in words

    @property
    def of_maps(self) -> Data:
        """The sequences whose maps are taken: the same, the texts of a pair one by one."""
        return Apart(self.measured) if self.apart else self.measured

    def reference_records(self) -> Iterator[Record]:
        return islice(self.reference or (), self.reference_size)


def open_ablation_data(options: AblateOptions, loss: str | None = None) -> AblationData:
    """Open the data, and set sequences apart for a first pass if there is to be one.

    Data with too few sequences for an interval is refused, and data without the columns that a loss
    needs; None is a loss that is not known yet.
    """
    plain = _open(options, options.data, options.limit)
    pairs = isinstance(next(iter(plain)).text, tuple)
    extra = _extra(options, loss, pairs)
    whole = _open(options, options.data, options.limit, extra) if extra else plain
    total = sum(1 for record in whole if record.unreadable is None)
    apart = loss == DRIFT and pairs
    if not options.gathers:
        _check_enough(total, whole.name)
        return AblationData(whole, None, 0, apart, extra, "nothing: no ablation needs other data")
    if options.reference is None:
        size = min(options.reference_size, total // LARGEST_PART)
        _check_enough(total - size, whole.name, f" beside {size} that are set apart")
        note = f"the first {size} of the {total} sequences of {whole.name}, which are not measured"
        return AblationData(Rest(whole, size), whole, size, apart, extra, note)
    _check_enough(total, whole.name)
    other = _open(options, options.reference)
    if other.fingerprint == _open(options, options.data).fingerprint:
        raise InputError(
            f"--reference is {whole.name!r} itself, and the first pass needs other data; leave it "
            "out to set some sequences apart"
        )
    size = min(options.reference_size, sum(1 for _ in other))
    return AblationData(whole, other, size, apart, extra, f"the first {size} of {other.name}")


def _open(
    options: AblateOptions, data: str, limit: int | None = None, extra: tuple[str, ...] = ()
) -> Data:
    return open_data(
        data,
        column=options.column,
        pair_column=options.pair_column,
        paragraphs=options.paragraphs,
        limit=limit,
        extra=extra,
    )


def _check_enough(count: int, name: str, beside: str = "") -> None:
    if count < FEWEST:
        raise InputError(
            f"{name!r} has {count} sequences to measure{beside}, too few for an interval; give at "
            f"least {FEWEST}"
        )


def _extra(options: AblateOptions, loss: str | None, pairs: bool) -> tuple[str, ...]:
    """The column that a loss reads beside the text, if any."""
    if loss is None:
        return ()
    if options.label is not None and loss != CLASSES:
        raise InputError(
            f"right classes are of the loss {CLASSES!r}, not {loss!r}; leave --label out"
        )
    if options.score is not None and not (loss == DRIFT and pairs):
        raise InputError(
            f"gold scores are of pairs of texts and the loss {DRIFT!r}; leave --score out, or name "
            "the second text's column with --pair-column"
        )
    if loss == CLASSES:
        return (options.label or LABEL,)
    if loss == DRIFT and pairs:
        return (options.score,) if options.score else _usual_score(options)
    return ()


def _usual_score(options: AblateOptions) -> tuple[str, ...]:
    """The column "score", where the data has one."""
    try:
        _open(options, options.data, 1, (SCORE,))
    except InputError:
        return ()
    return (SCORE,)

"""The data of an ablation: what the first pass reads, what is measured, and pairs taken apart."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.errors import InputError
from normlens.options import from_json
from normlens.studies.ablation.options import CLASSES, DRIFT, FEWEST, LARGEST_PART, AblateOptions
from normlens.studies.reports.files import damaged, read_settings

LABEL, SCORE = "label", "score"


class Derived(Data):
    """The records of another data set, changed; `how` stands for the change in the fingerprint."""

    def __init__(
        self, whole: Data, how: str, change: Callable[[Iterable[Record]], Iterator[Record]]
    ):
        super().__init__(whole.name)
        self.whole, self.how, self.change = whole, how, change

    def _records(self) -> Iterator[Record]:
        return self.change(self.whole)

    def _fingerprint(self) -> str:
        return hashlib.sha256(f"{self.whole.fingerprint}\n{self.how}".encode()).hexdigest()


def texts_apart(pairs: Iterable[Record]) -> Iterator[Record]:
    """Split pairs into single texts: those of pair k are sequences 2k and 2k + 1."""
    for record in pairs:
        texts = record.text if isinstance(record.text, tuple) else (record.text, record.text)
        for letter, text in zip("ab", texts, strict=True):
            yield replace(record, id=f"{record.id}{letter}", text=text)


@dataclass(frozen=True)
class AblationData:
    """The sequences to measure and those of the first pass, with the columns that are read."""

    measured: Data
    reference: Data | None  # None: no ablation needs a first pass
    reference_size: int  # its first sequences, so many, are read
    apart: bool  # records are pairs whose texts are encoded each for itself
    #: columns that the records keep: those of right classes or gold scores
    extra: tuple[str, ...]
    note: str  # what the first pass reads, in words

    @property
    def of_maps(self) -> Data:
        """The same sequences for the maps, with the two texts of a pair one by one."""
        return Derived(self.measured, "apart", texts_apart) if self.apart else self.measured

    def reference_records(self) -> Iterator[Record]:
        return islice(self.reference or (), self.reference_size)


def open_ablation_data(options: AblateOptions, loss: str | None = None) -> AblationData:
    """Open the data; reserve sequences for the first pass if one is needed.

    Data with too few sequences for an interval is refused, and data without the columns that a loss
    needs; None is a loss that is not known yet.
    """
    plain = _open(options, options.data, options.limit)
    pairs = isinstance(next(iter(plain)).text, tuple)
    extra = _extra(options, loss, pairs)
    whole = _open(options, options.data, options.limit, extra) if extra else plain
    total = sum(1 for record in whole if record.unreadable is None)
    measured, reference, size, beside = whole, None, 0, ""
    note = "nothing: no ablation needs other data"
    if options.gathers and options.reference is None:
        size = min(options.reference_size, total // LARGEST_PART)
        rest = partial(_without_first, size)
        measured, reference = Derived(whole, f"without the first\n{size}", rest), whole
        note = f"the first {size} of the {total} sequences of {whole.name}, which are not measured"
        total, beside = total - size, f" beside {size} that are set apart"
    elif options.gathers and options.reference is not None:
        reference = _open(options, options.reference)
        if reference.fingerprint == _open(options, options.data).fingerprint:
            raise InputError(f"reference is {whole.name!r} itself; leave it out to set some apart")
        size = min(options.reference_size, sum(1 for _ in reference))
        note = f"the first {size} of {reference.name}"
    if total < FEWEST:
        raise InputError(f"{whole.name!r} has {total} sequences{beside}; give {FEWEST} or more")
    return AblationData(measured, reference, size, loss == DRIFT and pairs, extra, note)


def _without_first(count: int, records: Iterable[Record]) -> Iterator[Record]:
    return islice(records, count, None)


def _open(
    options: AblateOptions, data: str, limit: int | None = None, extra: tuple[str, ...] = ()
) -> Data:
    how = {name: getattr(options, name) for name in ("column", "pair_column", "paragraphs")}
    return open_data(data, limit=limit, extra=extra, **how)


def _extra(options: AblateOptions, loss: str | None, pairs: bool) -> tuple[str, ...]:
    """Return the extra column that a loss reads, if any."""
    if loss is None:
        return ()
    if options.label is not None and loss != CLASSES:
        raise InputError(f"label (--label-column) is of the loss {CLASSES!r}; leave it out")
    if options.score is not None and not (loss == DRIFT and pairs):
        raise InputError("a score is of a pair of texts; leave it out, or add --pair-column")
    if loss == CLASSES:
        return (options.label or LABEL,)
    if not (loss == DRIFT and pairs):
        return ()
    if options.score is None:  # the column "score", where the data has one
        try:
            _open(options, options.data, 1, (SCORE,))
        except InputError:
            return ()
    return (options.score or SCORE,)


# The folder of an ablation: its settings, the statistics of the first pass, its two runs.


#: What a settings file says it is of, so that a report is built by the right room.
KIND = "ablation"
STATISTICS = "statistics.safetensors"
ABLATION, MAPS = "runs/ablation", "runs/maps"


@dataclass(frozen=True)
class Told:
    """Facts about a run that its report states."""

    loss: str
    reference: str  # what the first pass read, in words
    apart: bool  # pairs of texts were run text by text


def load_settings(folder: str | os.PathLike[str]) -> tuple[AblateOptions, Told]:
    """Read the settings of a folder that `ablate` has made."""
    nothing = "ablation; make one with: normlens reproduce ablate --model … --data …"
    contents = read_settings(folder, KIND, nothing)
    try:
        return from_json(AblateOptions, contents["options"]), Told(**contents["told"])
    except (TypeError, AttributeError, KeyError) as error:
        raise damaged(folder, error) from error

"""Records for an encoder–decoder: a source and its target, given or generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from normlens.corpus.data.records import Record, located
from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.data.text_files import SEPARATOR, split_pair
from normlens.corpus.measures import Measure, ModelMeasure
from normlens.errors import InputError
from normlens.inputs.encode import SourceTarget, encode_pair, encode_target
from normlens.inputs.text import Encoded
from normlens.lens import Lens


def check_stacks(lens: Lens, measures: Sequence[Measure]) -> None:
    """Raise for measures that cannot read what this model reads: one sequence, or two."""
    if not lens.two_stacks:
        for measure in measures:
            if measure.needs.pairs:
                raise InputError(
                    f"{lens.name} reads one sequence, and the measure {measure.name!r} needs the "
                    "source and the target of an encoder–decoder"
                )
        return
    refused = [measure.name for measure in measures if not _reads_pairs(measure)]
    if refused:
        left = [measure.name for measure in measures if measure.name not in refused]
        instead = left or ["similarity", "mixing", "norms", "amplification", "explanations"]
        raise InputError(
            f"{lens.name} is an encoder–decoder, which reads two sequences; the measure "
            f"{refused[0]!r} is for models that read one: take --measures {','.join(instead)}"
        )


def _reads_pairs(measure: Measure) -> bool:
    if isinstance(measure, ModelMeasure):
        return measure.reads_pairs
    return not measure.needs.apart


def encode_pair_record(
    record: Record,
    lens: Lens,
    *,
    max_length: int | None,
    truncate: bool = True,
    in_words: bool = False,
) -> EncodedRecord:
    """The decoder's tokens of a record, with what the encoder reads as their `source`.

    A record is a pair, a line ``source ||| target``, or a source alone, whose target the model
    generates. With `in_words`, texts are words that spaces separate.
    """
    with located(record.id):
        if record.unreadable is not None:
            raise InputError(record.unreadable)
        source, target = _sides(record)
        if in_words:
            source = source.split() if isinstance(source, str) else source
            target = target.split() if isinstance(target, str) else target
        pair = encode_pair(lens, (source, target), truncate=truncate, max_length=max_length)
        if in_words and pair.generated is not None:
            pair = _in_words(pair, lens)
    return EncodedRecord(
        **{item.name: getattr(pair, item.name) for item in fields(Encoded)},
        id=record.id,
        entities=[None] * len(pair),
        masked=[False] * len(pair),
        extra=record.extra,
    )


def _sides(record: Record) -> SourceTarget:
    if record.tokens is not None:
        raise InputError("tokens of a vocabulary are one sequence; give a source and its target")
    if record.words is not None:
        second = record.second_words
        return list(record.words), None if second is None else list(second)
    if isinstance(record.text, tuple):
        return record.text
    assert record.text is not None  # a record has one of the three
    if SEPARATOR not in record.text:
        return record.text, None
    pair = split_pair(record.text)
    if pair is None or not all(pair):
        raise InputError(
            f"a line with {SEPARATOR} has a source before it and its target behind it, once"
        )
    return list(pair[0]), list(pair[1])


def _in_words(pair: Encoded, lens: Lens) -> Encoded:
    """A generated target with the words that spaces separate, if they have the same tokens."""
    text = pair.text
    if not isinstance(text, str) or not text.split():
        return pair
    again = encode_target(lens, text.split())
    if again.ids != pair.ids:
        return pair
    return replace(again, source=pair.source, generated=pair.generated)

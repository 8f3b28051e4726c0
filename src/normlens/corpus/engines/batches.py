"""What a model reads of a record: a sequence or a pair; and its explanations of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from normlens.corpus.data.formats import SEPARATOR, split_pair
from normlens.corpus.data.records import Record, located
from normlens.corpus.data.spans import EncodedRecord, encode_apart, encode_record, mask_tokens
from normlens.corpus.measures import Measure, ModelMeasure, Needs
from normlens.corpus.measures.base import Asked
from normlens.corpus.runs.options import RunOptions
from normlens.errors import InputError
from normlens.explain.explainer import ask
from normlens.inputs.encode import SourceTarget, encode_pair, encode_target
from normlens.inputs.text import Encoded
from normlens.lens import Lens
from normlens.models.parts import SignalEncoder
from normlens.options import ExplainOptions
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

# Models that a run cannot take, refused before it begins.


def check_tokenizer(lens: Lens) -> None:
    """Raise for a model that does not read texts as a run gives them."""
    if isinstance(lens.adapter, SignalEncoder):
        raise InputError(f"{lens.name} reads pictures or sound, and a run is over texts")
    if lens.adapter.reads_padding:
        raise InputError(
            f"{lens.name} reads texts with their padding, which a run leaves out; lens.maps(text) "
            "analyses them one by one"
        )
    if lens.tokenizer is None:
        raise InputError(
            f"{lens.name} has no tokenizer, which a run needs; save one beside the model with "
            "tokenizer.save_pretrained(…), or pass normlens.load(model, tokenizer) as the model"
        )


def check_masking(options: RunOptions, lens: Lens) -> None:
    """Raise for a mask that the model does not know."""
    if options.mask and lens.two_stacks:
        raise InputError(
            f"{lens.name} is an encoder–decoder, whose texts are not masked; leave --mask out"
        )
    if options.mask and lens.causal:
        raise InputError(f"{lens.name} is a causal model and knows no mask token; leave --mask out")


# Records as a worker's model reads them: one sequence, two apart, or a source and its target.


def encode_for(lens: Lens, record: Record, options: RunOptions, needs: Needs) -> EncodedRecord:
    """Tokenise and mask a record as a run's options and its measures ask."""
    if lens.two_stacks:
        return encode_pair_record(
            record,
            lens,
            max_length=options.max_length,
            truncate=options.truncate,
            in_words=needs.pairs,
        )
    limits = [n for n in (options.max_length, lens.max_tokens) if n is not None]
    encode = encode_apart if needs.apart else encode_record
    encoded = encode(
        record,
        lens.tokenizer,
        max_length=min(limits, default=None),
        truncate=options.truncate,
        causal=lens.causal,
    )
    if options.mask:
        encoded = mask_tokens(encoded, lens.tokenizer, options.mask, options.seed)
    return encoded


# Records for an encoder–decoder: a source and its target, given or generated.


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


# Explanations of a batch of a corpus's sequences.


def explained(
    lens: Lens, items: Sequence[Encoded], asked: Asked, batch_size: int | str
) -> list[tuple[Explanation, ...]]:
    """The explanations of each sequence: one, or one for each of its next tokens.

    Of an encoder–decoder's pairs, `asked.position` is the place of a token of the target.
    """
    options = ExplainOptions(
        nonlinearity=asked.nonlinearity,
        flow=False,
        first_piece=asked.first_piece,
        batch_size=batch_size if batch_size == "auto" else int(batch_size),
    )
    answers = ask(
        lens,
        items,
        True,
        options,
        target=asked.target,
        contrast=asked.contrast,
        position=asked.position,
    )
    return [(each,) if isinstance(each, Explanation) else tuple(each) for each in answers]


def no_maps(encoded: Encoded) -> Maps:
    """The maps of a sequence of which no maps were computed: they have no layers."""
    n = len(encoded)
    return Maps(
        arrays={},
        raw_tokens=encoded.tokens,
        layers=[],
        allowed=np.zeros((0, n, n), dtype=bool),
        completeness=float("nan"),
        token_ids=encoded.ids,
        special=encoded.special,
        token_words=encoded.words,
    )

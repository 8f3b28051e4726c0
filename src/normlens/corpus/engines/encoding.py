"""Records as a worker's model reads them: one sequence, two apart, or a source and its target."""

from __future__ import annotations

from normlens.corpus.data.records import Record
from normlens.corpus.data.spans import EncodedRecord, encode_apart, encode_record, mask_tokens
from normlens.corpus.engines.pair_records import encode_pair_record
from normlens.corpus.measures import Needs
from normlens.corpus.runs.options import RunOptions
from normlens.lens import Lens


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

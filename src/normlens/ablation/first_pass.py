"""The first pass of an ablation, kept in a file beside its runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.ablation.data import AblationData
from normlens.ablation.gathering import gather
from normlens.ablation.loss_base import Loss
from normlens.ablation.loss_names import MASKED
from normlens.ablation.options import AblateOptions
from normlens.corpus.data.records import Record
from normlens.corpus.data.spans import EncodedRecord, encode_apart, encode_record
from normlens.corpus.runs.folder_base import TEMPORARY
from normlens.errors import InputError, OutputError, system_reason

if TYPE_CHECKING:
    from normlens.lens import Lens


def first_pass(
    lens: Lens,
    loss: Loss,
    data: AblationData,
    options: AblateOptions,
    path: Path,
    batch_size: int | str = "auto",
) -> None:
    """Gather the statistics of a model and write them, the whole file or none of it."""
    texts = [
        text
        for record in data.reference_records()
        for text in _texts(lens, loss, data, options, record)
    ]
    if not texts:
        raise InputError(f"the first pass can read none of its sequences ({data.note})")
    statistics = gather(
        lens,
        texts,
        keys=[text.id for text in texts],
        seed=options.seed,
        batch_size=batch_size,
    )
    temporary = path.with_name(path.name + TEMPORARY)
    statistics.save(temporary)
    try:
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error


def _texts(
    lens: Lens, loss: Loss, data: AblationData, options: AblateOptions, record: Record
) -> Iterator[EncodedRecord]:
    """A record as the model will read those that are measured; nothing if it cannot be read."""
    limits = [n for n in (options.max_length, lens.max_tokens) if n is not None]
    encode = encode_apart if data.apart else encode_record
    try:
        encoded = encode(record, lens.tokenizer, max_length=min(limits), causal=lens.causal)
        if loss.name == MASKED:
            asked = loss.question(encoded, record.id).encoded
            encoded = replace(encoded, ids=asked.ids, tokens=asked.tokens)
    except InputError:
        return
    yield encoded
    if encoded.second is not None:
        yield replace(encoded.second, id=f"{record.id}\nsecond")

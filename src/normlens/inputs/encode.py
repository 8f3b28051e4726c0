"""Encode what a lens is given, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.inputs.iterables import as_list
from normlens.inputs.padding import warn_of_padding
from normlens.inputs.pairs import GivenPairs, encode_pairs
from normlens.inputs.signals import check_no_signal, encode_signals, takes_signals
from normlens.inputs.text import (
    Encoded,
    Ids,
    Item,
    Pair,
    Text,
    Texts,
    check_token_types,
    encode_ids,
    encode_texts,
)

if TYPE_CHECKING:
    from normlens.inputs.pairs import GivenPairs
    from normlens.lens import Lens


# What a lens is given, a text or token ids, as sequences that its model takes.


def encode_input(
    lens: Lens,
    text: Text | Texts | None,
    input_ids: Ids | None,
    attention_mask: Ids | None,
    token_type_ids: Ids | None,
    *,
    truncate: bool,
) -> tuple[list[Encoded], bool]:
    """The sequences, and whether they were given as a list."""
    if lens.two_stacks:
        raise InputError(
            f"{lens.name} is an encoder–decoder, of which this analysis needs one stack; "
            "lens.maps(source, target) and lens.explain(source, target=…) take both"
        )
    if (text is None) == (input_ids is None):
        raise InputError("pass either a text (or a list of texts) or input_ids=…, one of the two")
    vocabulary = getattr(lens.adapter.config, "vocab_size", None)
    if text is None:
        encoded, many = encode_ids(
            input_ids,
            attention_mask,
            token_type_ids,
            lens.tokenizer,
            vocabulary,
            lens.max_tokens,
        )
        check_token_types(encoded, lens.adapter.token_types(), lens.name)
        warn_of_padding(lens, encoded)
        return encoded, many
    many = isinstance(text, list)
    texts: list[Any] = list(text) if isinstance(text, list) else [text]
    padded = lens.adapter.reads_padding
    encoded = encode_texts(texts, lens.tokenizer, lens.max_tokens, truncate, vocabulary, padded)
    return encoded, many


def check_one_sequence_given(lens: Lens, given: GivenPairs) -> None:
    """Raise for a second sequence where the model has one stack."""
    second = given.target, given.decoder_input_ids, given.input_features
    if any(value is not None for value in second):
        raise InputError(
            f"{lens.name} reads one sequence, and a target (or decoder_input_ids, input_features) "
            "is for an encoder–decoder; pass the text alone, or a pair of texts as a tuple"
        )


def check_stacks(lens: Lens, items: Sequence[Item]) -> None:
    """Raise unless the items are pairs for an encoder–decoder, and single sequences for others."""
    if any(isinstance(item, Pair) != lens.two_stacks for item in items):
        takes = "pairs of a source and a target" if lens.two_stacks else "single sequences"
        maker = "encode_pairs" if lens.two_stacks else "encode"
        raise InputError(f"{lens.name} takes {takes}; make them with lens.{maker}(…)")


# What a lens is given, tokenised: sequences, or the pairs of an encoder–decoder.


#: What an audio model hears, (mel bins, time steps) or a batch of it.
Features: TypeAlias = torch.Tensor | NDArray[np.floating] | list[list[float]]


def encode_any(
    lens: Lens, given: GivenPairs, token_type_ids: Ids | None, *, truncate: bool
) -> tuple[Sequence[Item], bool]:
    """Sequences or pairs, as the model takes them, and whether they were given as a list."""
    if given.target is None:
        given = replace(given, source=as_list(given.source))
    if lens.two_stacks:
        check_no_signal(lens, given)
        if token_type_ids is not None:
            raise InputError(f"{lens.name} has no token types; leave token_type_ids out")
        return encode_pairs(lens, given, truncate=truncate)
    if not takes_signals(lens):
        check_one_sequence_given(lens, given)
    return encode_one(lens, given, token_type_ids, truncate=truncate)


def encode_one(
    lens: Lens, given: GivenPairs, token_type_ids: Ids | None, *, truncate: bool
) -> tuple[list[Encoded], bool]:
    """Single sequences, as the model takes them, and whether they were given as a list."""
    if takes_signals(lens):
        return encode_signals(lens, given)
    check_no_signal(lens, given)
    return encode_input(
        lens, given.source, given.input_ids, given.attention_mask, token_type_ids, truncate=truncate
    )

"""What a lens is given, tokenised: sequences, or the pairs of an encoder–decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.inputs import check_one_sequence_given, encode_input
from normlens.iterables import as_list
from normlens.pair_inputs import GivenPairs, SourceTarget, encode_pairs
from normlens.pairs import Item, Pair
from normlens.signal_inputs import Signal, check_no_signal, encode_signals, takes_signals
from normlens.text import Encoded, Ids, Text, Texts
from normlens.text_sides import Side

if TYPE_CHECKING:
    from normlens.lens import Lens

#: What an audio model hears, (mel bins, time steps) or a batch of it.
Features: TypeAlias = torch.Tensor | NDArray[np.floating] | list[list[float]]


class Encodes:
    """The part of a lens that tokenises."""

    def encode(
        self,
        text: Text | Texts | Signal | list[Signal] | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        sampling_rate: int | None = None,
        truncate: bool = False,
    ) -> list[Encoded]:
        """Texts, token ids, pictures or sounds as `analyse` takes them."""
        lens = cast("Lens", self)
        given = GivenPairs(
            as_list(text), None, input_ids, attention_mask, sampling_rate=sampling_rate
        )
        return encode_one(lens, given, token_type_ids, truncate=truncate)[0]

    def encode_pairs(
        self,
        source: Side | list[str] | list[SourceTarget] | SourceTarget | None = None,
        target: Side | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        decoder_input_ids: Ids | None = None,
        decoder_attention_mask: Ids | None = None,
        input_features: Features | None = None,
        truncate: bool = False,
    ) -> list[Pair]:
        """Sources and targets of an encoder–decoder as `analyse` takes them; see `maps`."""
        given = GivenPairs(
            source,
            target,
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            input_features,
        )
        return encode_pairs(cast("Lens", self), given, truncate=truncate)[0]


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

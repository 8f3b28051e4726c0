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
        text: Text | Texts | None = None,
        *,
        input_ids: Ids | None = None,
        attention_mask: Ids | None = None,
        token_type_ids: Ids | None = None,
        truncate: bool = False,
    ) -> list[Encoded]:
        """Texts, or token ids, as `analyse` takes them."""
        texts = as_list(text)
        return encode_input(
            cast("Lens", self), texts, input_ids, attention_mask, token_type_ids, truncate=truncate
        )[0]

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
        if token_type_ids is not None:
            raise InputError(f"{lens.name} has no token types; leave token_type_ids out")
        return encode_pairs(lens, given, truncate=truncate)
    check_one_sequence_given(lens, given)
    return encode_input(
        lens, given.source, given.input_ids, given.attention_mask, token_type_ids, truncate=truncate
    )

"""Maps as bertviz takes them: tensors of attention, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from normlens.analysis.widening import widened
from normlens.errors import InputError
from normlens.results.sequences import OTHER_SEQUENCE, OWN_SEQUENCE, SequencedMaps
from normlens.scopes import holds, resolve

if TYPE_CHECKING:
    import torch


class HeadViewKeywords(TypedDict, total=False):
    """The keywords of ``bertviz.head_view`` for an encoder–decoder; attention layer by layer."""

    encoder_attention: tuple[torch.Tensor, ...]  # (1, heads, source, source) each
    decoder_attention: tuple[torch.Tensor, ...]  # (1, heads, target, target)
    cross_attention: tuple[torch.Tensor, ...]  # (1, heads, target, source)
    encoder_tokens: list[str]
    decoder_tokens: list[str]


def to_bertviz(maps: SequencedMaps, scope: str) -> tuple[torch.Tensor, ...] | HeadViewKeywords:
    """Per layer that has the scope, a (1, heads, target, source) tensor.

    Of an encoder–decoder the keywords of ``head_view``: each stack's attention to itself, the
    attention between them, and the tokens of both.
    """
    encoder, sequences = maps.encoder, np.array(maps.source_sequences, dtype=object)
    if encoder is None and (not maps.stack or not sequences.size):
        return _by_layer(maps, resolve(scope, maps.scopes))
    keywords: HeadViewKeywords = {}
    if encoder is not None and scope in encoder:
        keywords["encoder_attention"] = _by_layer(encoder, resolve(scope, encoder.scopes))
    own, other = _attentions(maps, scope)
    is_own, is_other = sequences == OWN_SEQUENCE, sequences == OTHER_SEQUENCE
    if own is not None and is_own.any():
        keywords["decoder_attention"] = _by_layer(maps, own, is_own)
    if other is not None and is_other.any():
        keywords["cross_attention"] = _by_layer(maps, other, is_other)
    if not keywords:
        name = resolve(scope, maps.scopes)  # raises for a scope of neither stack
        raise InputError(f"{name} has no parts of the sources that these maps still have")
    others = np.array(maps.source_tokens, dtype=object)[sequences == OTHER_SEQUENCE].tolist()
    tokens = others if encoder is None else encoder.tokens
    keywords["encoder_tokens"], keywords["decoder_tokens"] = tokens, maps.tokens
    return keywords


def _attentions(maps: SequencedMaps, scope: str) -> tuple[str | None, str | None]:
    """The scopes that show the decoder's columns of its own sequence and of the other one.

    The weights and the norms of one attention go together with those of the other.
    """
    if scope not in maps:
        return None, None
    name = resolve(scope, maps.scopes)
    own, other = (name if held else None for held in holds(name))
    counterpart = {"ATTN-W": "CROSS-W", "ATTN-N": "CROSS-N"}.get(name, "")
    return own, resolve(counterpart, maps.scopes) if counterpart in maps else other


def _by_layer(
    maps: SequencedMaps, name: str, columns: NDArray[np.bool_] | None = None
) -> tuple[torch.Tensor, ...]:
    """A tensor per layer, of single heads where there are some; `columns` chooses sources."""
    import torch

    of_heads = "CROSS-N" if name.endswith("CROSS-N") else name
    stacked = maps.heads[of_heads] if of_heads in maps.heads else maps.arrays[name][:, None]
    stacked = stacked if columns is None else stacked[..., columns]
    layers = (np.ascontiguousarray(widened(layer)) for layer in stacked)
    return tuple(torch.from_numpy(layer)[None] for layer in layers)

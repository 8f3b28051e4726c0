"""Maps as bertviz takes them: tensors of attention, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.results.sequences import OTHER_SEQUENCE, OWN_SEQUENCE, SequencedMaps
from normlens.scopes import holds, resolve

if TYPE_CHECKING:
    import torch


def to_bertviz(maps: SequencedMaps, scope: str) -> tuple[torch.Tensor, ...] | dict[str, Any]:
    """Per layer that has the scope, a (1, heads, target, source) tensor.

    Of an encoder–decoder the keywords of ``head_view``: each stack's attention to itself, the
    attention between them, and the tokens of both.
    """
    encoder, sequences = maps.encoder, np.array(maps.source_sequences, dtype=object)
    if encoder is None and (not maps.stack or not sequences.size):
        return _by_layer(maps, resolve(scope, maps.scopes))
    keywords: dict[str, Any] = {}
    if encoder is not None and scope in encoder:
        keywords["encoder_attention"] = to_bertviz(encoder, scope)
    for part, name in _attentions(maps, scope).items():
        columns = sequences == (OTHER_SEQUENCE if part == "cross_attention" else OWN_SEQUENCE)
        if columns.any():
            keywords[part] = _by_layer(maps, name, columns)
    if not keywords:
        resolve(scope, maps.scopes)  # raises, and lists them all
    others = np.array(maps.source_tokens, dtype=object)[sequences == OTHER_SEQUENCE].tolist()
    tokens = others if encoder is None else encoder.tokens
    return {**keywords, "encoder_tokens": tokens, "decoder_tokens": maps.tokens}


def _attentions(maps: SequencedMaps, scope: str) -> dict[str, str]:
    """What of the decoder is shown for a scope: its columns of either sequence, by scope.

    The weights and the norms of one attention go together with those of the other.
    """
    parts: dict[str, str] = {}
    if scope in maps:
        name = resolve(scope, maps.scopes)
        own, other = holds(name)
        parts |= {"decoder_attention": name} if own else {}
        parts |= {"cross_attention": name} if other else {}
        counterpart = {"ATTN-W": "CROSS-W", "ATTN-N": "CROSS-N"}.get(name, "")
        if counterpart in maps:
            parts["cross_attention"] = resolve(counterpart, maps.scopes)
    return parts


def _by_layer(
    maps: SequencedMaps, name: str, columns: NDArray[np.bool_] | None = None
) -> tuple[torch.Tensor, ...]:
    """A tensor per layer, of single heads where there are some; `columns` chooses sources."""
    import torch

    of_heads = "CROSS-N" if name.endswith("CROSS-N") else name
    stacked = maps.heads[of_heads] if of_heads in maps.heads else maps.arrays[name][:, None]
    stacked = stacked if columns is None else stacked[..., columns]
    return tuple(torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in stacked)

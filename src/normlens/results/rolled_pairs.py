"""The rollout of an encoder–decoder: through the decoder's layers and, below them, the encoder's.

A layer of the decoder reads its own tokens, as the layer below left them, and the encoder's last
vectors, which are products of the encoder's layers. The encoder's final norm, where a family has
one, stands between the two and has no map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from normlens import analysis
from normlens.errors import InputError
from normlens.results.rolled import ROLLOUT, check_layers, rolled_out
from normlens.results.sequences import OTHER_SEQUENCE, SequencedMaps
from normlens.scopes import components_of, holds, resolve

if TYPE_CHECKING:
    from normlens.results.maps import Maps

M = TypeVar("M", bound=SequencedMaps)


def pair_rollout(maps: M, scope: str) -> M:
    """The rollout of a decoder's scope, over the inputs of both sequences.

    The encoder's share is the rollout of the scope that ends as this one does behind CROSS:
    ATTNRESLNFFRESLN-N for ATTNRESLNCROSSRESLNFFRESLN-N.
    """
    name = resolve(scope, maps.scopes)
    behind = [each for each in maps.scopes if each.endswith("-N") and all(holds(each))]
    if name not in behind:
        raise InputError(
            f"{name} has parts of one sequence alone, and a rollout of a decoder needs both: take "
            "a scope behind the attention to the encoder and its residual connection"
            + (f" ({', '.join(behind)})" if behind else "")
        )
    check_layers(maps, len(maps.arrays[name]))
    other = np.array([label == OTHER_SEQUENCE for label in maps.source_sequences], dtype=bool)
    encoder = _rolled_encoder(maps, name)
    if len(encoder.targets) != other.sum() or (~other).sum() != len(maps.targets):
        raise InputError(
            "a rollout of a decoder needs every token of both sequences among its sources; call "
            "rollout() before sources_of()"
        )
    (of_encoder,) = encoder.arrays.values()
    about = {"method": name, "residual": 0.0, "normalise": True, "encoder": encoder.scopes[0]}
    return replace(
        maps,
        arrays={name: analysis.pair_rollout(maps.arrays[name], other, of_encoder[-1])},
        allowed=analysis.pair_reachable(maps.allowed, other, encoder.allowed[-1]),
        provenance={**maps.provenance, "origin": ROLLOUT, "rollout": about},
        mixing={},
        heads={},
        standard_error={},
        statistics={},
        correlations=None,
        encoder=encoder,
    )


def _rolled_encoder(maps: SequencedMaps, name: str) -> Maps:
    """The rollout of the encoder's scope that belongs to a scope of the decoder."""
    encoder = maps.encoder
    if encoder is None:
        raise InputError(
            "a rollout of a decoder goes on through the encoder; call it on the maps of both "
            "stacks, with layers and scopes of both"
        )
    parts = components_of(name)
    behind = parts[len(parts) - parts[::-1].index("CROSS") :]
    wanted = f"ATTN{''.join(behind)}-N"
    if wanted not in encoder.scopes:
        raise InputError(
            f"a rollout of {name} goes on with the encoder's {wanted}; these maps have "
            f"{', '.join(encoder.scopes)}"
        )
    if len(encoder.layers) != encoder.provenance.get("stack_layers"):
        raise InputError(
            "a rollout of a decoder needs all layers of the encoder, whose last one it reads; "
            f"these maps have {len(encoder.layers)} of {encoder.provenance.get('stack_layers')}"
        )
    return rolled_out(encoder, wanted, method=wanted, residual=0.0, normalise=True)

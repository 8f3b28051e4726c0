"""GlobEnc: the rollout of norms through a post-LN layer without its feed-forward block.

    ‖(P_ij − mean P_ij) / σ(LN2)_i ⊙ γ₂‖,    P the parts behind ATTN RES LN

Modarressi et al. 2022. The feed-forward block is left out of the parts, which pass it by the
residual connection, but σ is that of LN2's real input. Rows are not normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.components import Layer, Norm
from normlens.decomposition import FrozenLayer, freeze, layer_maps
from normlens.decomposition.norm import FrozenNorm
from normlens.errors import InputError
from normlens.results.maps import Maps
from normlens.rollouts.layerwise import (
    Given,
    RolloutOptions,
    as_given,
    rolled_maps,
    sequences,
    traced_maps,
)
from normlens.tracing.recorder import LayerTrace

if TYPE_CHECKING:
    from normlens.lens import Lens

#: The components that GlobEnc is defined for, and those that its parts pass.
COMPONENTS = "ATTN RES LN FF RES LN"
SCOPE = "ATTNRESLNLN-N"


def globenc(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """GlobEnc of a text, as maps [layer, target, source]; a list gives a list."""
    check_layers(lens)
    encoded, many = sequences(lens, text, options)
    maps = rolled_maps(
        lens,
        encoded,
        lambda batch: traced_maps(lens, batch, SCOPE, norms_of_layer),
        options,
        scope=SCOPE,
        method="globenc",
        normalise=False,
    )
    return as_given(maps, many)


def check_layers(lens: Lens) -> None:
    """Refuse layers that GlobEnc is not defined for."""
    for layer in lens.layers:
        if layer.component_sequence != COMPONENTS:
            raise InputError(
                f"GlobEnc is defined for layers of {COMPONENTS}; those of {lens.name} are "
                f"{layer.component_sequence}"
            )


def norms_of_layer(traced: LayerTrace, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The norms (b, i, j) of one layer, and the error of the parts behind its first norm."""
    layer = traced.layer
    (first, _), (second, norm) = (
        (index, step) for index, step in enumerate(layer.steps) if isinstance(step, Norm)
    )
    frozen = freeze(layer, traced.x, traced.alphas, lengths, until=first)
    # What stands behind RES2 in the model is what LN2 reads.
    last = FrozenNorm.at(norm, traced.real[second - 1].to(traced.x.dtype))
    without_block = Layer([*layer.steps[: first + 1], norm], layer.reach)
    frozen = FrozenLayer(without_block, traced.x, (*frozen.steps, last), frozen.lengths)
    maps = layer_maps(frozen, [SCOPE], real={first: traced.real[first]})
    return maps.norms[SCOPE], maps.completeness["ATTNRESLN-N"]

"""An encoder–decoder whose cross-attention is built by hand, and pairs for it."""

from __future__ import annotations

from typing import Any

import torch
from pair_examples import Letters, with_head

import normlens

#: How much larger the score of the wanted source is.
_SHARP = 6.0


def pointing(shift: int, seed: int = 0) -> Any:
    """A lens on a BART of one layer, in which decoder place i attends to encoder place i + shift.

    Vectors are the positions' unit vectors: token embeddings are 0, and so is what self-attentions
    and feed-forward blocks add. The first head's keys are shifted; the second sees nothing.
    """
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}
    model = with_head("bart", seed, **sizes)
    with torch.no_grad():
        model.model.shared.weight.zero_()
        for stack in (model.model.encoder, model.model.decoder):
            positions = stack.embed_positions
            positions.weight.zero_()
            width = positions.weight.shape[1]
            positions.weight[positions.offset : positions.offset + width] = torch.eye(width)
            _plain(stack.layernorm_embedding)
            (layer,) = stack.layers
            for part in (layer.self_attn.out_proj, layer.fc2):
                part.weight.zero_()
                part.bias.zero_()
            _plain(layer.self_attn_layer_norm)
            _plain(layer.final_layer_norm)
        cross = model.model.decoder.layers[0].encoder_attn
        _plain(model.model.decoder.layers[0].encoder_attn_layer_norm)
        width = cross.q_proj.weight.shape[0]
        for part in (cross.q_proj, cross.k_proj, cross.v_proj, cross.out_proj):
            part.weight.copy_(torch.eye(width))
            part.bias.zero_()
        cross.q_proj.weight.mul_(_SHARP)
        # Key j is the unit vector of place j − shift: place i finds the key of i + shift.
        cross.k_proj.weight.copy_(torch.roll(torch.eye(width), -shift, 0))
    return normlens.load(model.double(), Letters())


def _plain(norm: Any) -> None:
    norm.weight.fill_(1)
    norm.bias.zero_()

"""BART and the encoder–decoders that share its block, with norms behind or first."""

from collections.abc import Sequence
from typing import Any

from normlens.layers import HeadStep, Norm, Step
from normlens.models import base
from normlens.models.parts import ENCODER, TINY, TwoStacks


@base.register("marian", tiny=dict(TINY, decoder_start_token_id=1, activation_function="swish"))
@base.register("bart", "blenderbot-small", "plbart", tiny=TINY)
class Bart(TwoStacks):
    norm_first = False

    def encoder_end(self) -> list[HeadStep]:
        return _final_norm(self.model.encoder)

    def end(self) -> list[HeadStep]:
        return _final_norm(self.model.decoder)

    def steps(self, block: Any) -> list[Step]:
        parts: list[tuple[Norm, Step]] = [
            (base.layer_norm(block.self_attn_layer_norm), base.projected_attention(block.self_attn))
        ]
        if hasattr(block, "encoder_attn"):
            cross = base.projected_attention(block.encoder_attn, ENCODER)
            parts.append((base.layer_norm(block.encoder_attn_layer_norm), cross))
        feed_forward = base.feed_forward_of(block.fc1, block.fc2, self.config.activation_function)
        parts.append((base.layer_norm(block.final_layer_norm), feed_forward))
        return base.sublayers(parts, norm_first=self.norm_first)


def _final_norm(stack: Any) -> list[HeadStep]:
    """The norm behind a stack's last layer, which those with norms first have."""
    norm = getattr(stack, "layer_norm", None)
    return [] if norm is None else [base.layer_norm(norm)]


@base.register("blenderbot", tiny=TINY)
@base.register("pegasus", tiny=dict(TINY, decoder_start_token_id=1))
class Pegasus(Bart):
    norm_first = True


@base.register("mbart", tiny=TINY)
class MBart(Pegasus):
    """The language's token starts a target."""

    def start_token(self, labels: Sequence[int]) -> int:
        # The last label goes round to the front: mBART 50 ends with </s>, the first mBART with the
        # language.
        return labels[-1]

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        if labels is None:
            return {}
        first, last = labels[0], labels[-1]
        if last == self.config.eos_token_id:
            return {"decoder_start_token_id": last, "forced_bos_token_id": first}
        return {"decoder_start_token_id": last, "forced_bos_token_id": None}


@base.register("m2m_100", tiny=TINY)
class M2M100(Pegasus):
    """M2M-100 and NLLB: a target begins with its language's token."""

    def generation_options(self, labels: Sequence[int] | None) -> dict[str, Any]:
        return {} if labels is None else {"forced_bos_token_id": labels[0]}

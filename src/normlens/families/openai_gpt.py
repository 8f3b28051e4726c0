"""GPT (the first): GPT-2's projections, post-LN."""

from __future__ import annotations

from typing import Any

from normlens.families.gpt2 import GPT2
from normlens.layers import Attention
from normlens.models.base import attention_of, columns, register
from normlens.models.tiny import GPT


@register("openai-gpt", tiny=GPT)
class OpenAIGPT(GPT2):
    norm_first = False
    final_norm = None
    causal = True  # each layer has a triangular mask, whatever the configuration says

    def attention(self, block: Any) -> Attention:
        attention, d = block.attn, self.config.n_embd
        # The module returns its weights only on request; they all pass through the dropout.
        return attention_of(
            attention.attn_dropout,
            columns(attention.c_attn, 2 * d, 3 * d),
            attention.c_proj,
            attention.n_head,
        )

    @property
    def activation(self) -> str:
        # What it calls GELU is the approximation by a hyperbolic tangent.
        return "gelu_new" if self.config.afn == "gelu" else self.config.afn

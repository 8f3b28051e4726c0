"""GPT (the first): GPT-2's projections, post-LN."""

from normlens.families.gpt2 import GPT2
from normlens.models.base import register
from normlens.models.tiny import GPT


@register("openai-gpt", tiny=GPT)
class OpenAIGPT(GPT2):
    # The module returns its weights only on request; they all pass through the dropout.
    attention_paths = "attn.attn_dropout", "attn.c_attn", "attn.c_proj"
    norm_first = False
    final_norm = None
    causal = True  # each layer has a triangular mask, whatever the configuration says

    @property
    def activation(self) -> str:
        # What it calls GELU is the approximation by a hyperbolic tangent.
        return "gelu_new" if self.config.afn == "gelu" else self.config.afn

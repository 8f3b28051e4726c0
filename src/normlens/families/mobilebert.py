"""MobileBERT: BERT in bottlenecks, with several feed-forward blocks in each layer.

A layer's vectors are projected into a narrower space and back. By default the attention's values
are projected from the wide vectors, and only what its residual connection adds passes the
bottleneck; queries and keys have a bottleneck of their own, which α has seen.
"""

from typing import Any

import torch

from normlens import layers
from normlens.families.bert import Bert
from normlens.models.base import affine, layer_norm, linear, register
from normlens.models.tiny import ENCODER

TINY = dict(
    ENCODER,
    embedding_size=8,
    intra_bottleneck_size=8,
    num_attention_heads=2,
    num_feedforward_networks=2,
)


@register("mobilebert", tiny=TINY)
class MobileBert(Bert):
    @property
    def padding_leaks(self) -> bool:  # type: ignore[override]
        return self.config.trigram_input  # each token's embedding is also of its two neighbours

    def norm(self, module: Any) -> layers.Norm:
        is_norm = self.config.normalization_type == "layer_norm"
        return layer_norm(module) if is_norm else affine(module)

    def bottleneck(self, module: Any) -> tuple[layers.Projection, layers.Norm]:
        return layers.Projection(linear(module.dense)), self.norm(module.LayerNorm)

    def steps(self, block: Any) -> list[layers.Step]:
        attention, config = self.attention(block), self.config
        after_attention = self.norm(block.attention.output.LayerNorm)
        steps: list[layers.Step]
        if not config.use_bottleneck:
            steps = [layers.Branch(), attention, layers.Residual(), after_attention]
        elif config.use_bottleneck_attention:
            inside = self.bottleneck(block.bottleneck.input)
            steps = [
                layers.Branch(),
                *inside,
                layers.Branch(),
                attention,
                layers.Residual(),
                after_attention,
            ]
        else:
            beside = layers.Branch(self.bottleneck(block.bottleneck.input))
            steps = [layers.Branch(), beside, attention, layers.Residual(), after_attention]
        blocks = list(block.ffn) if config.num_feedforward_networks > 1 else []
        for ff in [*blocks, block]:
            norm = self.norm(ff.output.LayerNorm)
            steps += [layers.Branch(), self.feed_forward(ff), layers.Residual(), norm]
        if config.use_bottleneck:
            out, norm = self.bottleneck(block.output.bottleneck)
            steps += [out, layers.Residual(), norm]
        return steps

    def masked_head(self, model: Any) -> layers.Head | None:
        head = model.cls.predictions
        # Words have narrower vectors than the model; the rest of the output's rows is its own.
        words = linear(head.decoder)
        weight = torch.cat([words.weight, linear(head.dense).weight.T])
        output, inner = layers.Linear(weight, words.bias), head.transform
        return self.words_head(inner.dense, self.config.hidden_act, inner.LayerNorm, output)

    def sequence_head(self, model: Any) -> layers.Head | None:
        if not self.config.classifier_activation:
            return self.classifier(layers.SEQUENCES, layers.FIRST, model.classifier)
        return self.pooled_head(self.model.pooler.dense, "tanh", model.classifier)

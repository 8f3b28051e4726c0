"""MobileBERT: BERT in bottlenecks, with several feed-forward blocks in each layer.

A layer's vectors are projected into a narrower space and back. By default the attention's values
are projected from the wide vectors, and only what its residual connection adds passes the
bottleneck; queries and keys have a bottleneck of their own, which α has seen.
"""

from __future__ import annotations

from typing import Any

import torch

from normlens.families.bert import Bert
from normlens.layers import (
    ANY,
    FIRST,
    MASKED,
    SEQUENCES,
    Branch,
    Elementwise,
    FeedForward,
    Head,
    Linear,
    Norm,
    Projection,
    Residual,
    Step,
)
from normlens.models.base import affine, dense, layer_norm, linear, register, transform
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

    def norm(self, module: Any) -> Norm:
        is_norm = self.config.normalization_type == "layer_norm"
        return layer_norm(module) if is_norm else affine(module)

    def bottleneck(self, module: Any) -> tuple[Projection, Norm]:
        return Projection(linear(module.dense)), self.norm(module.LayerNorm)

    def steps(self, block: Any) -> list[Step]:
        attention, config = self.attention(block), self.config
        after_attention = self.norm(block.attention.output.LayerNorm)
        steps: list[Step]
        if not config.use_bottleneck:
            steps = [Branch(), attention, Residual(), after_attention]
        elif config.use_bottleneck_attention:
            inside = self.bottleneck(block.bottleneck.input)
            steps = [Branch(), *inside, Branch(), attention, Residual(), after_attention]
        else:
            beside = Branch(self.bottleneck(block.bottleneck.input))
            steps = [Branch(), beside, attention, Residual(), after_attention]
        blocks = list(block.ffn) if config.num_feedforward_networks > 1 else []
        for ff in [*blocks, block]:
            norm = self.norm(ff.output.LayerNorm)
            steps += [Branch(), self.feed_forward(ff), Residual(), norm]
        if config.use_bottleneck:
            out, norm = self.bottleneck(block.output.bottleneck)
            steps += [out, Residual(), norm]
        return steps

    def feed_forward(self, block: Any) -> FeedForward:
        return FeedForward(
            up=linear(block.intermediate.dense),
            down=linear(block.output.dense),
            activation=self.activation,
            module=block.output.dense,
        )

    def masked_head(self, model: Any) -> Head | None:
        head = model.cls.predictions
        norm = layer_norm(head.transform.LayerNorm)
        steps = transform(head.transform.dense, self.config.hidden_act, norm)
        # Words have narrower vectors than the model; the rest of the output's rows is its own.
        words = linear(head.decoder)
        weight = torch.cat([words.weight, linear(head.dense).weight.T])
        return Head(MASKED, ANY, steps=steps, output=Linear(weight, words.bias))

    def sequence_head(self, model: Any) -> Head | None:
        if not self.config.classifier_activation:
            return self.classifier(SEQUENCES, FIRST, model.classifier)
        pooler = dense(self.model.pooler.dense)
        return self.classifier(SEQUENCES, FIRST, model.classifier, pooler, Elementwise("tanh"))

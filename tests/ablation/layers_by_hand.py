"""Layers written out by hand, with any component replaced: what interventions are compared with.

A copy of a model runs these functions in place of its blocks' own code. Attention weights and
linear maps are the model's modules; norms, sums and their order are written out here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Replaced:
    """What is replaced in which layer, and all vectors that were seen."""

    layer: int = -1
    #: (layer, component) → what stands in for the vectors; norms get (input, γ, β, eps, centred)
    vectors: dict[tuple[int, str], Callable[[Tensor], Tensor]] = field(default_factory=dict)
    norms: dict[tuple[int, str], Callable[..., Tensor]] = field(default_factory=dict)
    seen: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)
    sigmas: dict[tuple[int, str], list[Tensor]] = field(default_factory=dict)

    def vector(self, name: str, y: Tensor) -> Tensor:
        self.seen.setdefault((self.layer, name), []).append(y.detach())
        return self.vectors.get((self.layer, name), lambda same: same)(y)

    def end(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.setdefault((self.layer, "LAYER"), []).append(y.detach())
        if (self.layer, "bypass") in self.vectors:
            return x
        return self.vectors.get((self.layer, "LAYER"), lambda same: same)(y)

    def norm(self, name: str, module: Any, x: Tensor, centred: bool = True) -> Tensor:
        gemma = type(module).__name__.startswith("Gemma")
        gamma = 1 + module.weight if gemma else module.weight
        beta = getattr(module, "bias", None)
        beta = torch.zeros_like(gamma) if beta is None else beta
        eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
        centre = x - x.mean(-1, keepdim=True) if centred else x
        sigma = (centre.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        self.sigmas.setdefault((self.layer, name), []).append(sigma.detach())
        if (self.layer, name) in self.norms:
            return self.norms[self.layer, name](x, centre, sigma, gamma, beta)
        return centre / sigma * gamma + beta


def bert(block: Any, do: Replaced, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    mask = args[0] if args else kwargs.get("attention_mask")
    mixed = block.attention.self(x, attention_mask=mask)[0]
    a = do.vector("ATTN", block.attention.output.dense(mixed))
    y = do.norm("LN1", block.attention.output.LayerNorm, a + do.vector("RES1", x))
    f = do.vector("FF", block.output.dense(block.intermediate(y)))
    y = do.norm("LN2", block.output.LayerNorm, f + do.vector("RES2", y))
    return y


def gpt2(block: Any, do: Replaced, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs |= {"past_key_values": None}
    names = ("past_key_values", "attention_mask", "encoder_hidden_states", "encoder_attention_mask")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given = {k: v for k, v in given.items() if not k.startswith("encoder")}
    a = do.vector("ATTN", block.attn(do.norm("(LN)", block.ln_1, x), **given)[0])
    y = a + do.vector("RES1", x)
    f = do.vector("FF", block.mlp(do.norm("LN", block.ln_2, y)))
    return f + do.vector("RES2", y)


def gemma2(block: Any, do: Replaced, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    s = do.norm("(LN)", block.input_layernorm, x, centred=False)
    a = block.self_attn(s, *args, **kwargs)[0]
    a = do.vector("ATTN", do.norm("LN1", block.post_attention_layernorm, a, centred=False))
    y = a + do.vector("RES1", x)
    s = do.norm("LN2", block.pre_feedforward_layernorm, y, centred=False)
    f = do.norm("LN3", block.post_feedforward_layernorm, block.mlp(s), centred=False)
    return do.vector("FF", f) + do.vector("RES2", y)


def gpt_neox(block: Any, do: Replaced, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    a = block.attention(do.norm("(LN)", block.input_layernorm, x), *args, **kwargs)[0]
    f = block.mlp(do.norm("(LN)FF", block.post_attention_layernorm, x))
    return do.vector("ATTN", a) + do.vector("FF", f) + do.vector("RES", x)


#: A layer by hand, for each way in which layers are built.
LAYERS: dict[str, Callable[..., Tensor]] = {
    "bert": bert,
    "gpt2": gpt2,
    "gemma2": gemma2,
    "gpt_neox": gpt_neox,
}


def by_hand(model: Any, blocks: Callable[[Any], list[Any]], do: Replaced) -> Any:
    """A copy of a model whose layers are written out by hand."""
    family = model.config.model_type
    changed = copy.deepcopy(model)
    listed = blocks(changed)

    def forward_of(block: Any) -> Callable[..., Any]:
        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            do.layer = (do.layer + 1) % len(listed)
            y = LAYERS[family](block, do, hidden_states, *args, **kwargs)
            return do.end(hidden_states, y)

        return forward

    for block in dict.fromkeys(listed):
        block.forward = forward_of(block)
    return changed

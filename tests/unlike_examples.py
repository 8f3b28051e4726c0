"""Models whose layers differ, and one whose layers read another sequence; and their adapters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normlens
from normlens.layers import Attention, Branch, FeedForward, ParallelFeedForward, Residual
from normlens.models import base
from normlens.models.base import layer_norm, linear

D, HEADS, WORDS = 12, 3, 40


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """The examples' adapters are registered for one test, and gone afterwards."""
    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))
    normlens.register("unlike")(UnlikeAdapter)
    normlens.register("reader")(ReaderAdapter)


class SomeAttention(nn.Module):
    """Attention from `x` to `s`; weights where `mask` (b, i, j) is true."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x, s, mask):
        q, k, v = (
            layer(vectors).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, vectors in ((self.query, x), (self.key, s), (self.value, s))
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask[:, None], -1e9).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).flatten(-2)), weights


class Block(nn.Module):
    """A layer of a `kind`: "post" (norms behind), "plain" (none), "bare" (no feed-forward),
    "parallel" (feed-forward beside the attention) or "cross" (attention to a memory).
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.attention, self.norm = SomeAttention(), nn.LayerNorm(D)
        if kind != "bare":
            self.up, self.down = nn.Linear(D, 18), nn.Linear(18, D)
        if kind in ("post", "cross"):
            self.last_norm = nn.LayerNorm(D)
        if kind == "cross":
            self.cross, self.cross_norm = SomeAttention(), nn.LayerNorm(D)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.normal_(parameter, mean=float("weight" in name), std=0.3)

    def forward(self, x, mask, memory=None, memory_mask=None):
        if self.kind == "parallel":
            y = self.norm(x)
            attended, weights = self.attention(y, y, mask)
            return x + attended + self.down(F.silu(self.up(y))), weights
        attended, weights = self.attention(x, x, mask)
        if self.kind == "plain":
            x = x + attended
            return x + self.down(F.silu(self.up(x))), weights
        x = self.norm(x + attended)
        if self.kind == "cross":
            x = self.cross_norm(x + self.cross(x, memory, memory_mask)[0])
        if self.kind != "bare":
            x = self.last_norm(x + self.down(F.silu(self.up(x))))
        return x, weights


def attention_step(module: SomeAttention, source: str | None = None) -> Attention:
    value, output = linear(module.value), linear(module.output)
    return Attention(value, output, HEADS, HEADS, module, module.output, source)


class UnlikeAdapter(normlens.Adapter):
    def blocks(self):
        return list(self.model.blocks)

    def steps(self, block):
        attention = attention_step(block.attention)
        norm = layer_norm(block.norm)
        if block.kind == "bare":
            return [Branch(), attention, Residual(), norm]
        ff = FeedForward(linear(block.up), linear(block.down), "silu", module=block.down)
        if block.kind == "parallel":
            return [Branch(), norm, attention, ParallelFeedForward(ff, norm), Residual()]
        if block.kind == "plain":
            return [Branch(), attention, Residual(), Branch(), ff, Residual()]
        cross = []
        if block.kind == "cross":
            cross = [Branch(), attention_step(block.cross, "memory"), Residual()]
            cross.append(layer_norm(block.cross_norm))
        last = layer_norm(block.last_norm)
        return [Branch(), attention, Residual(), norm, *cross, Branch(), ff, Residual(), last]


class ReaderAdapter(UnlikeAdapter):
    causal = True

    def source_tokens(self, name, inputs):
        assert name == "memory"
        return [[f"m{k}" for k in range(n)] for n in memory_lengths(inputs["attention_mask"])]


def memory_lengths(mask: torch.Tensor) -> list[int]:
    """How many tokens the memory of each row has: fewer than the row, and not all the same."""
    return (mask.sum(1) // 2 + 1).tolist()


class Model(nn.Module):
    """Blocks of the given kinds; "cross" blocks read a memory made of the first tokens."""

    def __init__(self, kinds: list[str], model_type: str):
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(model_type=model_type, vocab_size=WORDS, pad_token_id=0)
        self.embedding, self.memory = nn.Embedding(WORDS, D), nn.Embedding(WORDS, D)
        self.blocks = nn.ModuleList(map(Block, kinds))
        self.causal = model_type == "reader"

    def forward(self, input_ids, attention_mask=None, output_attentions=False):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        x, n = self.embedding(input_ids), input_ids.shape[1]
        mask = attention_mask.bool()[:, None].expand(-1, n, -1)
        if self.causal:
            mask = mask & torch.ones(n, n, dtype=torch.bool).tril()
        lengths = memory_lengths(attention_mask)
        memory = self.memory(input_ids[:, : max(lengths)])
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        attentions = []
        for block in self.blocks:
            x, weights = block(x, mask, memory, real[:, None].expand(-1, n, -1))
            attentions.append(weights)
        return SimpleNamespace(last_hidden_state=x, attentions=attentions)


def unlike(kinds: str = "post bare parallel post") -> Model:
    return Model(kinds.split(), "unlike").double()


def reader(kinds: str = "post cross") -> Model:
    return Model(kinds.split(), "reader").double()

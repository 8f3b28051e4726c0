"""Tiny search models, and what each score is by a frozen copy with autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from frozen_copies import frozen_outputs
from torch import Tensor

import normlens
from normlens.models.tiny import scramble, tiny_config

QUERY, DOCUMENT = "the cats sat", "the mat sat on the cats"


def frozen_parts(
    model: Any, ids: list[int], read: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """What each token (k, …) and no token (…) give to a vector, linear in a text's last ones."""
    layers = len(list(normlens.load(model).adapter.blocks()))
    tokens, outputs = frozen_outputs(model, ids, "ig", [{} for _ in range(layers)])
    vector = read(outputs[-1][-1])
    parts = torch.stack(
        [
            (torch.autograd.grad(one, tokens, retain_graph=True)[0] * tokens).sum(-1)
            for one in vector.flatten()
        ],
        dim=-1,
    )
    parts = parts.reshape(len(ids), *vector.shape).detach()
    return parts, vector.detach() - parts.sum(0)


def tiny_of(
    kind: str, dtype: torch.dtype = torch.float64, of: str = "bert", **settings: Any
) -> Any:
    """A tiny transformers model of a class, with random weights."""
    import transformers

    config = tiny_config(of)
    for name, value in settings.items():
        setattr(config, name, value)
    model = getattr(transformers, kind)._from_config(config, attn_implementation="eager")
    scramble(model)
    return model.eval().to(dtype)

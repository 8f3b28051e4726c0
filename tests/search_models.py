"""Tiny search models, and texts for them."""

from __future__ import annotations

from typing import Any

import torch

from normlens.models.tiny import scramble, tiny_config

QUERY, DOCUMENT = "the cats sat", "the mat sat on the cats"


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

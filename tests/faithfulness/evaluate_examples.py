"""Tiny models with heads, texts for them, and what plain torch makes of a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import transformers

import normlens
from normlens.inputs.text import Encoded
from normlens.models.tiny import scramble, tiny_config

IDS = [3, 9, 27, 14, 5, 33, 8]
SHORT = [40, 41, 3, 6]
MASK = 60

CLASSIFIERS = ["bert", "roberta", "distilbert", "gpt2", "llama", "modernbert"]
SENTENCE_ENCODERS = ["bert", "mpnet", "llama"]


@lru_cache(maxsize=32)
def model_of(
    family: str, task: str, dtype: torch.dtype = torch.float64, pad_token: int | None = 1
) -> Any:
    """A tiny model of a family with a head."""
    kind = getattr(transformers, f"AutoModelFor{task}")
    config = tiny_config(family, num_labels=3, pad_token_id=pad_token)
    model = kind.from_config(config, attn_implementation="eager").eval()
    scramble(model, 3)
    return model.to(dtype)


def lens_of(family: str, task: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    return normlens.load(model_of(family, task, dtype, **settings))


def text(ids: list[int] = IDS, *, special: bool = True, types: bool = False) -> Encoded:
    """Token ids as a text, whose first and last tokens are special."""
    ends = [special and place in (0, len(ids) - 1) for place in range(len(ids))]
    kinds = [int(place > len(ids) // 2) for place in range(len(ids))] if types else None
    return Encoded(list(ids), [f"t{i}" for i in ids], ends, kinds)


def plain_logits(model: Any, ids: list[int], types: list[int] | None = None) -> torch.Tensor:
    """What the model returns for one text, without padding or mask."""
    inputs = {"input_ids": torch.tensor([ids])}
    if types is not None:
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return model(**inputs).logits[0].double()


@contextmanager
def rows_run(model: Any) -> Iterator[list[int]]:
    """How many rows each call of a model has."""
    rows: list[int] = []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        rows.append(len(kwargs["input_ids"]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        handle.remove()

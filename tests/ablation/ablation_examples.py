"""Tiny models with heads, sequences for them, and a tokenizer that only knows its mask."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from normlens.inputs.text import Encoded
from normlens.lens import Lens

sys.path.insert(0, str(Path(__file__).parents[1] / "explain"))

from heads import every_head, headed, tried_families

LENGTHS = (7, 5, 9, 2)
#: One head of every family: of a language model. Several blocks in one layer are refused.
LANGUAGE = [
    (family, task)
    for family, task in every_head()
    if family in tried_families()
    if family != "mobilebert"
    if task == "MaskedLM" or (task == "CausalLM" and (family, "MaskedLM") not in every_head())
]
#: The same without one that has no module which returns its FF's output.
FAMILIES = [(family, task) for family, task in LANGUAGE if family != "granitemoeshared"]
#: One family for each kind of layer: post- and pre-norm, shared, parallel, gated, with experts, …
KINDS = [
    (family, task)
    for family, task in FAMILIES
    if family in ("albert", "bert", "deberta-v2", "falcon", "gemma2", "gpt2", "gpt_neox", "gptj")
    or family in ("llama", "mixtral", "modernbert", "olmo2", "squeezebert")
]


class MaskTokenizer:
    """Just enough of a tokenizer to mask tokens."""

    mask_token, mask_token_id, unk_token_id = "[MASK]", 5, None
    all_special_ids = (0, 1, 2, 5)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(i) for i in ids]


def lens_on(family: str, task: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Lens:
    """A lens on a tiny model of a family with the head of a task."""
    return Lens(headed(family, task, dtype, **settings), MaskTokenizer())


def texts(lens: Lens, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Encoded]:
    """Random sequences of ordinary tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(6, 60, (n,), generator=generator).tolist() for n in lengths]
    return [lens.encode(input_ids=row)[0] for row in ids]


def questions(loss: Any, encoded: list[Encoded]) -> list[Any]:
    """A question about each text, which is a sequence of its own."""
    return [[loss.question(one, f"text {i}", i % 3)] for i, one in enumerate(encoded)]

"""Tiny models with every head that their family has, and a frozen copy of them in autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normlens.models.tiny import scramble, tiny_config, tiny_families

#: Mixtures of experts that share every line of the algebra with another that is tried.
RELATIVES = {
    "deepseek_v2",
    "dots1",
    "ernie4_5_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "granitemoe",
    "hunyuan_v1_moe",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen3_moe",
}
TASKS = ("CausalLM", "MaskedLM", "SequenceClassification", "TokenClassification")


def tried_families() -> list[str]:
    """Every family of one stack but those that have a relative here."""
    return [family for family in tiny_families() if family not in RELATIVES]


def headed(model_type: str, task: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """A tiny model of a family with the head of a task; None where transformers has none."""
    import transformers

    kind = getattr(transformers, f"AutoModelFor{task}")
    config = tiny_config(model_type, num_labels=3, **settings)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    try:
        model = kind.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        ).eval()
    except (ValueError, KeyError):
        return None
    scramble(model, 3)
    return model.to(dtype)


def every_head() -> list[tuple[str, str]]:
    """Every family with every task that transformers has a model for."""
    from transformers.models.auto import modeling_auto as auto

    names = {
        "CausalLM": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "MaskedLM": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "SequenceClassification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "TokenClassification": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    }
    tried = tried_families()
    return [(family, task) for family in tried for task in TASKS if family in names[task]]


class _InFloat64(TorchFunctionMode):
    """Keep float64 where a model's code asks for float32, as many norms and softmaxes do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        if func is Tensor.float and not first.is_floating_point():
            return first.double()  # positions, which some releases multiply by frequencies so
        if isinstance(first, Tensor) and first.dtype == torch.float64:
            if func is Tensor.float:
                return first
            if func is Tensor.to and any(a is torch.float32 for a in (*args, *kwargs.values())):
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
            elif kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def in_float64() -> Iterator[None]:
    """Run models in float64 throughout."""
    with _InFloat64():
        yield

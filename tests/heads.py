"""Tiny models with every head that their family has, and what holds of their explanations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normlens.models.tiny import scramble, tiny_config, tiny_families

#: Families with every kind of layer that any family has; `test_kinds` compares.
KINDS = (
    *("albert", "bert", "bloom", "cohere", "deberta-v2", "deepseek_v3", "falcon", "gemma2", "glm4"),
    *("gpt2", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoeshared", "gte"),
    *("llama", "llama4_text", "mistral", "mixtral", "mobilebert", "modernbert", "mpt", "olmo"),
    *("olmo2", "opt", "squeezebert"),
)
TASKS = ("CausalLM", "MaskedLM", "SequenceClassification", "TokenClassification")


def tried_families() -> list[str]:
    """Families with every kind of layer; what is tried with them knows layers alone."""
    return [family for family in tiny_families() if family in KINDS]


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
    return [(family, task) for family in tiny_families() for task in TASKS if family in names[task]]


def assert_every_layer_makes_the_score(why: Any) -> None:
    """A layer's components, and the biases from that layer on, are the score; none counts twice."""
    layers = len(why.nodes)
    biases = np.zeros(layers + 1)
    for layer, _, share in why.biases:
        biases[layers if layer == "head" else layer] += share
    by_head = {"ATTN": why.heads, "CROSS": why.cross_heads}
    scale = max(1, abs(why.value), np.abs(why.nodes).max())
    for layer in range(layers):
        behind = biases[layer:].sum()
        whole = np.nansum(why.components[layer])
        assert abs(whole + behind - why.value) < 1e-9 * scale
        split = sum(
            np.nansum(by_head[name][layer] if name in by_head else why.components[layer, place])
            for place, name in enumerate(why.component_names)
        )
        assert abs(split + behind - why.value) < 1e-9 * scale
    # At every position they are the row of the flow map.
    np.testing.assert_allclose(
        np.nansum(why.components, axis=1), why.flow.sum(-1), atol=1e-9 * scale
    )


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
        if func.__name__ in ("matmul", "__matmul__") and args[0].dtype != args[1].dtype:
            args = tuple(each.double() for each in args)  # positions and frequencies
        return func(*args, **kwargs)


@contextmanager
def in_float64() -> Iterator[None]:
    """Run models in float64 throughout."""
    with _InFloat64():
        yield

"""Unwrapping of a user's model: the transformers model whose layers it runs."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from normlens.errors import UnsupportedModelError


def unwrapped(model: Any) -> Any:
    """The model without compilation and peft's wrapper, with any head on top."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        model = _without_peft(model)
    return model


def body(model: Any) -> Any:
    """The model without any wrapper or head."""
    model = unwrapped(model)
    if is_vision_classifier(model):
        return model.vision_model
    base = getattr(model, "base_model", model)
    # DINOv3 calls its stack of layers so, which stands behind the patches.
    read = getattr(model, "main_input_name", None)
    takes = inspect.signature(base.forward).parameters
    return base if read is None or read in takes else model


def is_vision_classifier(model: Any) -> bool:
    """Whether a model is the vision tower of two, CLIP's for example, with a head of its own."""
    return hasattr(model, "vision_model") and hasattr(model, "classifier")


def tower_config(config: Any) -> Any:
    """The configuration of the vision tower where a checkpoint of two holds that one alone."""
    names = getattr(config, "architectures", None) or [""]
    alone = len(names) == 1 and names[0].endswith("ForImageClassification")
    return getattr(config, "vision_config", config) if alone else config


def _without_peft(model: Any) -> Any:
    kind = getattr(model, "active_peft_config", None)
    if getattr(kind, "is_prompt_learning", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} puts virtual tokens of {type(kind).__name__} before the text, "
            "and they have no place in maps of its tokens; load the base model "
            "(model.get_base_model())"
        )
    return model.get_base_model()


def unreadable(model: nn.Module, family: str, error: Exception) -> UnsupportedModelError:
    """An error for a model that names a supported family but does not have its layers."""
    inner = next(
        (
            name
            for name, child in model.named_modules()
            if name
            and hasattr(child, "base_model")
            and getattr(getattr(child, "config", None), "model_type", None) == family
        ),
        None,
    )
    cure = (
        "pass the transformers model itself, or register an adapter with normlens.register"
        if inner is None
        else f"pass the model inside it (its `.{inner}`)"
    )
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnsupportedModelError(
        f"{type(model).__name__} does not have the layers of {family!r}, which its configuration "
        f"names ({reason}); {cure}"
    )

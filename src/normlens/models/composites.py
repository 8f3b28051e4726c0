"""Models that are made of several models: which of those inside can be passed instead.

A model of images and text, for example, holds a language model that reads vectors of either. Maps
of a text are maps of the language model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from normlens.models.refusals import refusal


def inner_models(model: nn.Module, is_supported: Callable[[str], bool]) -> dict[str, Any]:
    """The supported models inside another one by their paths, those inside others left out."""
    inner: dict[str, Any] = {}
    for path, module in model.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        is_model = path and hasattr(module, "base_model")
        if not is_model or model_type is None or not is_supported(model_type):
            continue
        if not any(path.startswith(f"{outer}.") for outer in inner):
            inner[path] = module
    return inner


def composite_refusal(
    config: Any, is_supported: Callable[[str], bool], model: nn.Module | None = None
) -> str | None:
    """The line that says which model inside another one to pass; None if there are none inside.

    Without the model, a skeleton of it tells what it holds.
    """
    types = _inner_types(config)
    if not types:
        return None
    what = f"model type {config.model_type!r} is made of several models"
    whole = _skeleton(config) if model is None else model
    if whole is None:
        names = ", ".join(types)
        return f"{what} ({names}); load it with transformers and pass the one whose maps you want"
    if inner := inner_models(whole, is_supported):
        get = "" if model is not None else "load it with transformers' AutoModel and "
        choices = " or ".join(
            f"model.{path} ({module.config.model_type!r})" for path, module in inner.items()
        )
        first = next(iter(inner))
        return (
            f"{what}; {get}pass the one whose maps you want: {choices}; or name its path, "
            f"part={first!r} (--part {first})"
        )
    if getattr(config, "is_encoder_decoder", False):
        return None
    reasons = [line for name in types if (line := refusal(name)) is not None]
    why = reasons[0] if reasons else "`normlens models` lists the types that are"
    return f"{what}, none of which is supported ({', '.join(types)}); {why}"


def _inner_types(config: Any) -> list[str]:
    """The model types of the configurations inside a configuration, each once."""
    names = getattr(type(config), "sub_configs", None) or {}
    types = (getattr(getattr(config, name, None), "model_type", None) for name in names)
    return list(dict.fromkeys(name for name in types if name))


def _skeleton(config: Any) -> nn.Module | None:
    """A model without weights; None where transformers cannot make one."""
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            return AutoModel.from_config(config)
    # The model is refused in any case; this is only about how precisely.
    except Exception:
        return None

"""Unwrapping of a user's model: the transformers model whose layers it runs."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from normlens.errors import UnsupportedModelError
from normlens.model_names import shown_name
from normlens.models.reading import active_adapters

#: Kinds of peft whose wrapper does more than run the model inside it.
_BEYOND_LAYERS = ("XLORA", "POLY", "ADAPTION_PROMPT", "SHADOW")


def unwrapped(model: Any) -> Any:
    """The model without compilation, parallel wrappers and peft's, with any head on top."""
    while True:
        if hasattr(model, "_orig_mod"):  # torch.compile's wrapper
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif _is_sharded(model):
            raise UnsupportedModelError(
                f"the weights of this {type(model).__name__} are shared out among processes "
                "(FSDP); save the whole model and load it in one process"
            )
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = _without_peft(model)
        else:
            return model


def name_of_model(model: Any, *, path: bool = False) -> str:
    """What a model is called, or its class, with the adapters at work: "gpt2 + default".

    Of a model from a folder it is the folder's last part, or with `path` where it says it is from.
    """
    active = {
        name
        for module in model.modules()
        if hasattr(module, "base_layer") or hasattr(module, "modules_to_save")
        for name in active_adapters(module)
    }
    source = getattr(model.config, "_name_or_path", "")
    name = (source if path else shown_name(source)) if source else type(model).__name__
    return " + ".join([name, *sorted(active)])


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


def _is_sharded(model: Any) -> bool:
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return not kinds.isdisjoint(("FullyShardedDataParallel", "FSDPModule"))


def _without_peft(model: Any) -> Any:
    name = type(model).__name__
    configs = [model.peft_config[active] for active in model.active_adapters]
    for config in configs:
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"{name} puts virtual tokens of {type(config).__name__} before the text, and they "
                "have no place in maps of its tokens; load the base model (model.get_base_model())"
            )
        if kind in _BEYOND_LAYERS or getattr(config, "alora_invocation_tokens", None):
            what = "an activated LoRA" if kind == "LORA" else kind
            raise UnsupportedModelError(
                f"{name} has {what}, whose wrapper acts beside the model's layers, so maps of the "
                "layers would not be the model's; load the base model (model.get_base_model())"
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

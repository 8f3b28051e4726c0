"""Find the transformers model inside a user's object, or say why there is none to read."""

from __future__ import annotations

import inspect
from collections.abc import Container
from typing import Any

import torch
from torch import nn

from normlens.errors import UnsupportedModelError, reason_of
from normlens.loading.hub import shown_name
from normlens.models.reading import active_adapters
from normlens.models.refusals import refusal

# Unwrapping of a user's model: the transformers model whose layers it runs.


#: Kinds of peft whose wrapper does more than run the model inside it.
_BEYOND_LAYERS = ("XLORA", "POLY", "ADAPTION_PROMPT", "SHADOW")
#: Classes of torch whose weights are shared out among processes.
_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def unwrapped(model: Any) -> Any:
    """The model without compilation, parallel wrappers and peft's, with any head on top."""
    while True:
        if hasattr(model, "_orig_mod"):  # torch.compile's wrapper
            model = model._orig_mod
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif _SHARDED & {kind.__name__ for kind in type(model).__mro__}:
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
    # The vision tower of two, CLIP's for example, with a head of its own.
    if hasattr(model, "vision_model") and hasattr(model, "classifier"):
        return model.vision_model
    base = getattr(model, "base_model", model)
    # DINOv3 calls its stack of layers so, which stands behind the patches.
    read = getattr(model, "main_input_name", None)
    takes = inspect.signature(base.forward).parameters
    return base if read is None or read in takes else model


def tower_config(config: Any) -> Any:
    """The configuration of the vision tower where a checkpoint of two holds that one alone."""
    names = getattr(config, "architectures", None) or [""]
    alone = len(names) == 1 and names[0].endswith("ForImageClassification")
    return getattr(config, "vision_config", config) if alone else config


def _without_peft(model: Any) -> Any:
    name, cure = type(model).__name__, "load the base model (model.get_base_model())"
    for config in (model.peft_config[active] for active in model.active_adapters):
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"{name} puts virtual tokens of {type(config).__name__} before the text, and they "
                f"have no place in maps of its tokens; {cure}"
            )
        if kind in _BEYOND_LAYERS or getattr(config, "alora_invocation_tokens", None):
            what = "an activated LoRA" if kind == "LORA" else kind
            raise UnsupportedModelError(
                f"{name} has {what}, whose wrapper acts beside the model's layers, so maps of the "
                f"layers would not be the model's; {cure}"
            )
    return model.get_base_model()


def unreadable(model: nn.Module, error: Exception) -> UnsupportedModelError:
    """An error for a model that names a supported family but does not have its layers."""
    config: Any = model.config
    family = getattr(config, "model_type", type(config).__name__)
    inner = next(iter(inner_models(model, [family])), None)
    cure = (
        "pass the transformers model itself, or register an adapter with normlens.register"
        if inner is None
        else f"pass the model inside it (its `.{inner}`)"
    )
    return UnsupportedModelError(
        f"{type(model).__name__} does not have the layers of {family!r}, which its configuration "
        f"names ({reason_of(error)}); {cure}"
    )


# Models that are made of several models: which of those inside can be passed instead.
#
# A model of images and text, for example, holds a language model that reads vectors of either.
# Maps of a text are maps of the language model.


def inner_models(model: nn.Module, model_types: Container[str] | None = None) -> dict[str, Any]:
    """The models of these types (None: of any) inside another one by their paths.

    Those inside others of them are left out.
    """
    inner: dict[str, Any] = {}
    for path, module in model.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        if not path or not hasattr(module, "base_model") or model_type is None:
            continue
        if model_types is not None and model_type not in model_types:
            continue
        if not any(path.startswith(f"{outer}.") for outer in inner):
            inner[path] = module
    return inner


def composite_refusal(
    config: Any, supported: Container[str], model: nn.Module | None = None
) -> str | None:
    """The line that says which model inside another one to pass; None if there are none inside.

    Without the model, a skeleton of it tells what it holds.
    """
    names = getattr(type(config), "sub_configs", None) or {}
    held = (getattr(getattr(config, name, None), "model_type", None) for name in names)
    types = list(dict.fromkeys(name for name in held if name))
    if not types:
        return None
    what, get = f"model type {config.model_type!r} is made of several models", ""
    if model is None:
        from transformers import AutoModel

        get = "load it with transformers' AutoModel and "
        try:
            with torch.device("meta"):
                model = AutoModel.from_config(config)
        # The model is refused in any case; this is only about how precisely.
        except Exception:
            return (
                f"{what} ({', '.join(types)}); load it with transformers and pass the one whose "
                "maps you want"
            )
    if inner := inner_models(model, supported):
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


def check_causal(config: Any, name: str) -> None:
    """Raise where a configuration asks to look both ways, and the model's code cannot do so."""
    if not getattr(config, "is_causal", True):
        raise UnsupportedModelError(
            f"transformers runs {name} with a causal mask alone; set is_causal to True in its "
            "configuration"
        )


# The class of transformers that makes a model of a configuration.


def body_class(config: Any) -> Any:
    """`AutoModel`, or the class named like the configuration where that has none for it.

    SigLIP's text tower is such a model: it is loaded as a part of a whole, or by its own name.
    """
    import transformers

    auto = transformers.AutoModel
    if type(config) in auto._model_mapping:
        return auto
    name = type(config).__name__.removesuffix("Config") + "Model"
    kind = getattr(transformers, name, None)
    return kind if getattr(kind, "config_class", None) is type(config) else auto


def model_of(config: Any) -> Any:
    """A model of this configuration with random weights."""
    kind = body_class(config)
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    # The fast way of experts has no float64.
    return make(config, attn_implementation="eager", experts_implementation="eager")

"""The class of transformers that makes a model of a configuration."""

from __future__ import annotations

from typing import Any


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


def model_of(config: Any, attention: str | None = "eager") -> Any:
    """A model of this configuration with random weights; `attention` None is transformers' own."""
    kind = body_class(config)
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    if attention is None:
        return make(config)
    # The fast way of experts has no float64.
    return make(config, attn_implementation=attention, experts_implementation="eager")

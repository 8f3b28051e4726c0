"""Which adapter reads which model: NormLens's own families, and those that others register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from normlens.errors import InputError, UnsupportedModelError
from normlens.models.adapter import Adapter
from normlens.models.composites import composite_refusal
from normlens.models.installed import is_available, load_installed
from normlens.models.refusals import UnknownModelType, refusal
from normlens.models.unwrapping import (
    body,
    is_vision_classifier,
    tower_config,
    unreadable,
    unwrapped,
)

_ADAPTERS: dict[str, type[Adapter]] = {}
_TINY: dict[str, dict[str, Any]] = {}


def register(
    *model_types: str, tiny: Mapping[str, object] | None = None
) -> Callable[[type[Adapter]], type[Adapter]]:
    """Class decorator: use this adapter for models whose ``config.model_type`` is one of these.

    `tiny` holds the settings of a configuration of these types, as small as it can be. Tables and
    tests build models of it (`normlens.models.tiny`); analyses do without.
    """
    if not model_types or not all(isinstance(name, str) for name in model_types):
        raise InputError('register takes model types: @normlens.register("my_model_type")')
    if tiny is not None and not isinstance(tiny, Mapping):
        raise InputError(
            f"register takes the settings of a tiny configuration, tiny={{…}}, not {tiny!r}"
        )

    def decorate(adapter: type[Adapter]) -> type[Adapter]:
        if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
            raise InputError(f"an adapter must be a subclass of normlens.Adapter, not {adapter!r}")
        for name in model_types:
            _ADAPTERS[name] = adapter
            if tiny is not None:
                _TINY[name] = dict(tiny)
        return adapter

    return decorate


def supported_families() -> dict[str, type[Adapter]]:
    """Every registered model type with its adapter, those of other installed packages included.

    Families of NormLens that the installed transformers does not have yet are left out.
    """
    bring_installed_families()
    return {name: adapter for name, adapter in _ADAPTERS.items() if is_available(name, adapter)}


def bring_installed_families() -> bool:
    """Import the families of other installed packages, once; return whether that added any."""
    return load_installed(_ADAPTERS, _TINY)


def tiny_settings(model_type: str) -> dict[str, Any] | None:
    """The settings of a registered model type's tiny configuration, if it came with them."""
    if model_type not in _ADAPTERS:
        bring_installed_families()
    return _TINY.get(model_type)


def adapter_class(config: Any, model: nn.Module | None = None) -> type[Adapter]:
    """The adapter class for a configuration, or an error that says what to do.

    Given the model as well, the error can name the modules inside it.
    """
    config = tower_config(config)
    model_type = getattr(config, "model_type", None) or type(config).__name__
    decoder_too = getattr(config, "is_encoder_decoder", False)
    if model_type not in _ADAPTERS:
        bring_installed_families()
    adapter = _ADAPTERS.get(model_type)
    if adapter is None:
        reason = refusal(model_type) or composite_refusal(config, _ADAPTERS.__contains__, model)
        if reason is not None:
            raise UnsupportedModelError(reason)
    if adapter is None or (decoder_too and not adapter.two_stacks):
        raise UnknownModelType(model_type, two_stacks=decoder_too)
    return adapter


def adapt(model: nn.Module) -> Adapter:
    """The adapter of a model, which is read without any wrapper or head class on top."""
    model = unwrapped(model)
    config = getattr(model, "config", None)
    if config is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no `config`; pass a transformers model, or a module whose "
            "`config.model_type` is registered with normlens.register"
        )
    inner = body(model)
    kind = adapter_class(inner.config if is_vision_classifier(model) else config, model)
    adapter = kind(inner)
    adapter.whole = model
    try:
        for block in {id(block): block for block in adapter.blocks()}.values():
            adapter.layer(block)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        family = getattr(config, "model_type", type(config).__name__)
        raise unreadable(adapter.model, family, error) from error
    return adapter

"""Checkpoints as models: what lies in a folder or on the hub, read with its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from normlens.checkpoints.adapters import CONFIG, SavedAdapter
from normlens.checkpoints.device_maps import DeviceMap, free_everywhere, loading_options
from normlens.checkpoints.embedded import EMBEDDED
from normlens.checkpoints.embedded_files import embedded_reader
from normlens.checkpoints.headed import complete_part, headed_class
from normlens.checkpoints.hub import Origin, explained, quiet_transformers
from normlens.checkpoints.tokenizer_loading import tokenizer_of
from normlens.errors import InputError, ModelLoadError
from normlens.fitting import dtype_to_load
from normlens.model_names import is_local
from normlens.models import adapter_class
from normlens.models.base import bring_installed_families
from normlens.models.composites import inner_models
from normlens.models.unwrapping import unwrapped
from normlens.precisions import AUTO

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.gguf")


def embedded_model(
    name: str, asked: Any, place: torch.device, device_map: DeviceMap | None = None
) -> tuple[Any, Any]:
    """An embedded model, with its head if it has one, and its tokenizer."""
    read = embedded_reader(name)
    from transformers import AutoTokenizer

    kind = headed_class([EMBEDDED[name].architecture])
    dtype = torch.float32 if asked == AUTO else dtype_to_load(asked, None, place, name)
    spread = loading_options(device_map)
    model = read(kind, dtype=dtype, attn_implementation="eager", **spread)
    return model if spread else model.to(place), read(AutoTokenizer)


def adapted_model(
    adapter: SavedAdapter, asked: Any, place: torch.device, *, wanted: bool
) -> tuple[Any, Any]:
    """An adapter on its base model, and a tokenizer, where one is wanted."""
    trust = adapter.origin.options["trust_remote_code"]
    classifies = adapter.task in ("SEQ_CLS", "TOKEN_CLS")
    settings = adapter.head_settings if classifies else {}
    try:
        if is_local(adapter.base):
            check_folder(adapter.base, weights=True)
        base = Origin.find(adapter.base, adapter.base_revision, trust)
        model, report = _read(base, asked, place, adapter.model_class, settings)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"{adapter.origin.name!r} is an adapter for the model {adapter.base!r}, which cannot "
            f"be loaded: {error}"
        ) from error
    # A head that the base lacks is the adapter's, or it is random numbers and left out.
    saved = {name.removeprefix("base_model.model.") for name in adapter.shapes()}
    lacking = {
        "missing_keys": [key for key in report.get("missing_keys", ()) if key not in saved],
        "mismatched_keys": [it for it in report.get("mismatched_keys", ()) if it[0] not in saved],
    }
    wrapped = adapter.applied_to(model)
    if complete_part(adapter.base, model, lacking) is not model:
        wrapped = unwrapped(wrapped).base_model
    if not wanted:
        return wrapped, None
    return wrapped, tokenizer_of(adapter.origin) or tokenizer_of(base)


def read_config(origin: Origin) -> Any:
    """The configuration of a checkpoint, whatever family it is of."""
    try:
        return _config(origin)
    except ModelLoadError as error:
        # transformers does not know this model type, but an installed family may teach it.
        if not isinstance(error.__cause__, ValueError) or not bring_installed_families():
            raise
        return _config(origin)


def _config(origin: Origin) -> Any:
    from transformers import AutoConfig

    with quiet_transformers(), explained(origin):
        return AutoConfig.from_pretrained(origin.name, **origin.options)


def pretrained_model(
    origin: Origin,
    asked: Any,
    place: torch.device,
    part: str | None = None,
    device_map: DeviceMap | None = None,
) -> Any:
    """The model of a checkpoint in the precision that was asked for, all of it that is there.

    With `part`, the model inside it at that path.
    """
    if part is not None:
        from transformers import AutoModel

        whole, report = _read(origin, asked, place, AutoModel, composite=True)
        inner = inner_model(whole, part)
        inside = f"{part}."
        missing = [key for key in report.get("missing_keys", ()) if key.startswith(inside)]
        wrong = [it for it in report.get("mismatched_keys", ()) if it[0].startswith(inside)]
        if missing or wrong:
            lacking = missing[0] if missing else wrong[0][0]
            raise ModelLoadError(
                f"the weights of {origin.name!r} do not hold {lacking!r} as this model has it; "
                "another class saved them"
            )
        return inner
    model, report = _read(origin, asked, place, device_map=device_map)
    return complete_part(origin.name, model, report)


def inner_model(model: Any, part: str) -> Any:
    """The model at a path inside another one."""
    try:
        inner = unwrapped(model).get_submodule(part)
    except AttributeError:
        inner = None
    if getattr(inner, "config", None) is None:
        inside = list(inner_models(model, lambda _: True))
        known = f"those inside are {', '.join(inside)}" if inside else "there are none inside it"
        raise InputError(f"{part!r} is no model inside this {type(model).__name__}; {known}")
    return inner


def _read(
    origin: Origin,
    asked: Any,
    place: torch.device,
    kind: Any = None,
    settings: Any = None,
    composite: bool = False,
    device_map: DeviceMap | None = None,
) -> tuple[Any, dict[str, Any]]:
    """A model, and what transformers says of its weights.

    `kind` is the class to load, by default the one that the checkpoint names; `settings` replace
    some of the configuration. A `composite` model is made of several, of which one is wanted.
    """
    # An unsupported architecture is refused before its weights are fetched.
    config = read_config(origin)
    if not composite:
        adapter_class(config)
    kind = kind or headed_class(getattr(config, "architectures", None) or [], config)
    packed = getattr(config, "quantization_config", None) is not None
    free = None if device_map is None else free_everywhere()
    dtype = dtype_to_load(asked, config, place, origin.name, free)
    # Quantised weights are put in their place as they are read; many cannot be moved.
    spread = loading_options({"": place} if packed and device_map is None else device_map)
    with quiet_transformers(), explained(origin):
        model, report = kind.from_pretrained(
            origin.name,
            dtype=dtype,
            attn_implementation="eager",
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `complete_part` says which ones do not match
            **spread,
            **origin.options,
            **(settings or {}),
        )
    return model if spread else model.to(place), report


def check_folder(name: str, *, weights: bool) -> None:
    """Raise unless a folder holds a model or an adapter; with `weights`, all of a model."""
    path = Path(name).expanduser()
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelLoadError(
            f"{name!r} {what}; give a folder that save_pretrained wrote, or a hub name"
        )
    if not (path / "config.json").is_file() and (path / CONFIG).is_file():
        return  # an adapter, whose base model is looked for next
    if not (path / "config.json").is_file():
        raise ModelLoadError(
            f"the folder {name!r} holds no config.json, so it is not a model; save one there with "
            "model.save_pretrained(…), or give another folder"
        )
    if weights and not any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelLoadError(
            f"the folder {name!r} holds no weights (model.safetensors or "
            "pytorch_model.bin); save the model there with model.save_pretrained(…)"
        )

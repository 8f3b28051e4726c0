"""From a name, a folder or a model to a lens, with errors that say what to do."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from normlens.checkpoints.devices import pick_device, pick_dtype
from normlens.checkpoints.embedded import DEFAULT, EMBEDDED
from normlens.checkpoints.embedded_files import embedded_reader, file_beside, is_embedded
from normlens.checkpoints.headed import complete_part, headed_class
from normlens.checkpoints.hub import Origin, explained, file_of, is_local, quiet_transformers
from normlens.checkpoints.sentences import Finder, read_pooling
from normlens.checkpoints.tokenizer_loading import named_tokenizer, tokenizer_of
from normlens.errors import InputError, ModelLoadError, NormLensError, reason_of
from normlens.lens import Lens
from normlens.models import adapter_class
from normlens.models.base import bring_installed_families
from normlens.text import Tokenizer

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.gguf")


def load(
    source: str | os.PathLike[str] | nn.Module | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | Literal[False] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Lens:
    """A lens on a model: a hub name, a local folder, an embedded model's name, or a model object.

    Without `source` it is the embedded default. `tokenizer` is a tokenizer, or the name or folder
    of one, where the model's own is not wanted; False is none at all. A model that comes without
    one loads, too, and takes `input_ids`. `device` "auto" takes a GPU where there is one and
    leaves a model object where it is. `dtype` "auto" is float32 on a CPU, the checkpoint's own
    on a GPU, and a model object's own; the algebra runs in float32 at least. Code from the hub
    runs only with `trust_remote_code`; pickled weights are read with ``weights_only=True``.
    """
    named = _given_tokenizer(tokenizer, trust_remote_code)
    if isinstance(source, nn.Module):
        return _from_object(source, named, device, dtype, revision)
    name = _name(source)
    _check_revision(name, revision)
    place = pick_device(device)
    precision = pick_dtype(dtype, place)
    if is_embedded(name):
        model, with_model = _embedded(name, precision)
        find: Finder = partial(file_beside, name)
    else:
        if is_local(name):
            _check_folder(name, weights=True)
        origin = Origin.find(name, revision, trust_remote_code)
        model = _pretrained(origin, precision)
        with_model = tokenizer_of(origin) if named is None else None
        find = partial(file_of, origin)
    return Lens(
        model.to(place),
        with_model if named is None else named,
        name=name,
        revision=revision,
        pooling=partial(read_pooling, find),
    )


def load_config(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The configuration of a model alone, found where `load` would find the model."""
    from transformers import AutoConfig

    name = _name(source)
    _check_revision(name, revision)
    if not is_embedded(name):
        if is_local(name):
            _check_folder(name, weights=False)
        return _config(Origin.find(name, revision, trust_remote_code))
    return embedded_reader(name)(AutoConfig)


def _given_tokenizer(
    tokenizer: Tokenizer | str | os.PathLike[str] | Literal[False] | None, trust_remote_code: bool
) -> Tokenizer | Literal[False] | None:
    """The tokenizer that a user asks for; None is the model's."""
    if isinstance(tokenizer, (str, os.PathLike)):
        return named_tokenizer(os.fspath(tokenizer), trust_remote_code)
    if tokenizer is None or tokenizer is False or callable(tokenizer):
        return tokenizer
    raise InputError(
        f"tokenizer is a tokenizer, the name or folder of one, or False for none, not {tokenizer!r}"
    )


def _name(source: object) -> str:
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise InputError(f"load takes a name, a folder or a model, not {type(source).__name__}")
    name = DEFAULT if source is None else os.fspath(source)
    if not name.strip():
        raise InputError(
            "the model's name is empty; give a hub name, a folder, or an embedded model "
            f"({', '.join(EMBEDDED)})"
        )
    return name


def _from_object(
    model: nn.Module,
    tokenizer: Tokenizer | Literal[False] | None,
    device: str | torch.device,
    dtype: str | torch.dtype,
    revision: str | None,
) -> Lens:
    try:
        if device != "auto":
            model = model.to(pick_device(device))
        if dtype != "auto":
            model = model.to(pick_dtype(dtype, torch.device("cpu")))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if isinstance(error, NormLensError):
            raise
        # Weights that are offloaded or quantised stay what they are.
        raise InputError(
            f"{type(model).__name__} cannot be moved or converted ({reason_of(error)}); leave "
            "device and dtype out, or load it anew where and how you want it"
        ) from error
    return Lens(model, tokenizer, revision=revision)


def _embedded(name: str, dtype: Any) -> tuple[Any, Any]:
    """An embedded model, with its head if it has one, and its tokenizer."""
    read = embedded_reader(name)
    from transformers import AutoTokenizer

    kind = headed_class([EMBEDDED[name].architecture])
    return read(kind, dtype=dtype, attn_implementation="eager"), read(AutoTokenizer)


def _config(origin: Origin) -> Any:
    try:
        return _read_config(origin)
    except ModelLoadError as error:
        # transformers does not know this model type, but an installed family may teach it.
        if not isinstance(error.__cause__, ValueError) or not bring_installed_families():
            raise
        return _read_config(origin)


def _read_config(origin: Origin) -> Any:
    from transformers import AutoConfig

    with quiet_transformers(), explained(origin):
        return AutoConfig.from_pretrained(origin.name, **origin.options)


def _pretrained(origin: Origin, dtype: Any) -> Any:
    # An unsupported architecture is refused before its weights are fetched.
    config = _config(origin)
    adapter_class(config)
    kind = headed_class(getattr(config, "architectures", None) or [])
    with quiet_transformers(), explained(origin):
        model, report = kind.from_pretrained(
            origin.name,
            dtype=dtype,
            attn_implementation="eager",
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `complete_part` says which ones do not match
            **origin.options,
        )
    return complete_part(origin.name, model, report)


def _check_revision(name: str, revision: str | None) -> None:
    if revision is not None and (is_embedded(name) or is_local(name)):
        raise InputError(
            f"revision {revision!r} is for models on the hub; {name!r} is "
            f"{'an embedded model' if is_embedded(name) else 'a folder'}, so leave it out"
        )


def _check_folder(name: str, *, weights: bool) -> None:
    path = Path(name).expanduser()
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelLoadError(
            f"{name!r} {what}; give a folder that save_pretrained wrote, or a hub name"
        )
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

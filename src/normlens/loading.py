"""From a name, a folder or a model to a lens, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from normlens.checkpoints.adapters import saved_adapter
from normlens.checkpoints.device_maps import DeviceMap, check_device_map
from normlens.checkpoints.devices import pick_device, pick_dtype
from normlens.checkpoints.embedded import DEFAULT, EMBEDDED
from normlens.checkpoints.embedded_files import embedded_reader, file_beside, is_embedded
from normlens.checkpoints.hub import Origin, file_of
from normlens.checkpoints.objects import Held, held_by
from normlens.checkpoints.processor_loading import processor_of
from normlens.checkpoints.sentences import Finder, read_pooling
from normlens.checkpoints.tokenizer_loading import named_tokenizer, tokenizer_of
from normlens.errors import InputError, NormLensError, reason_of
from normlens.lens import Lens
from normlens.memory_shortage import is_out_of_memory, shortage_explained
from normlens.model_names import is_local, shown_name
from normlens.models import adapter_class
from normlens.models.signals import SignalEncoder
from normlens.precisions import AUTO, CHECKPOINT
from normlens.pretrained import (
    adapted_model,
    check_folder,
    embedded_model,
    inner_model,
    pretrained_model,
    read_config,
)
from normlens.text import Tokenizer


@shortage_explained("this model", 'load it in half precision (dtype="bfloat16"), or a smaller one')
def load(
    source: str | os.PathLike[str] | nn.Module | Callable[..., object] | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | Literal[False] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    part: str | None = None,
    device_map: DeviceMap | None = None,
    name: str | None = None,
) -> Lens:
    """A lens on a model: a hub name, a local folder, an embedded model's name, or a model object.

    A folder or name may be an adapter's (peft), which brings its base model along. An object is a
    model, also with adapters, quantised, compiled, offloaded or wrapped (`DataParallel`), or what
    holds one: a transformers pipeline or Trainer, a SentenceTransformer, a CrossEncoder. Nothing
    in it is changed.

    Without `source` it is the embedded default. `tokenizer` is a tokenizer, or the name or folder
    of one, where the model's own is not wanted; False is none at all. A model that comes without
    one loads, too, and takes `input_ids`. Of a model that sees or hears it is the processor, which
    makes pixel or input values; without one the model takes those as tensors.

    `device` "auto" takes a GPU where there is one and
    leaves a model object where it is. `dtype` "auto" is float32 where that fits into the device's
    free memory, else the checkpoint's own, with a warning; "checkpoint" is the checkpoint's own
    wherever it is; a model object keeps its own. The algebra runs in float32 at least. Code from
    the hub runs only with `trust_remote_code`; pickled weights are read with
    ``weights_only=True``.

    `part` is the path of a model inside one that is made of several: "vision_model" of CLIP.

    `device_map` ("auto", or what transformers takes as such) has accelerate spread a model that is
    too large for one device over GPUs, memory and disk. Maps of single layers are computed where
    each layer's weights are; other analyses need all of it to run on one device.

    `name` is what results call the model in titles and files; by default its name on the hub, or
    the last part of its folder's path.
    """
    if name is not None and not name.strip():
        raise InputError("the name that results shall call the model by is empty")
    named = _given_tokenizer(tokenizer, trust_remote_code)
    if device_map is not None:
        check_device_map(source, device, part)
    if (held := held_by(source)) is not None:
        held = held if part is None else replace(held, model=inner_model(held.model, part))
        return _from_object(held, named, device, dtype, revision, name)
    called, name = name, _name(source)
    _check_revision(name, revision)
    place = pick_device(device)
    precision = pick_dtype(dtype)
    if is_embedded(name):
        if part is not None:
            raise InputError(f"{name} is one model; leave part out")
        model, with_model = embedded_model(name, precision, place, device_map)
        find: Finder = partial(file_beside, name)
    else:
        if is_local(name):
            check_folder(name, weights=True)
        origin = Origin.find(name, revision, trust_remote_code)
        adapter = saved_adapter(origin)
        if adapter is None:
            model = pretrained_model(origin, precision, place, part, device_map)
            with_model = _read_beside(origin, model) if named is None else None
        elif part is not None or device_map is not None:
            asked = "part" if part is not None else "device_map"
            raise InputError(
                f"{name!r} is an adapter; give `{asked}` with its base model merged in"
            )
        else:
            model, with_model = adapted_model(adapter, precision, place, wanted=named is None)
        find = partial(file_of, origin)
    inside = "" if part is None else f" ({part})"
    return Lens(
        model,
        with_model if named is None else named,
        name=called or f"{shown_name(name)}{inside}",
        source=f"{name}{inside}",
        revision=revision,
        pooling=partial(read_pooling, find),
    )


def _read_beside(origin: Origin, model: Any) -> Any:
    """What makes the model's input, if it comes with the model: a tokenizer or a processor."""
    adapter = adapter_class(model.config)
    if issubclass(adapter, SignalEncoder):
        return processor_of(origin, adapter)
    return tokenizer_of(origin)


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
            check_folder(name, weights=False)
        origin = Origin.find(name, revision, trust_remote_code)
        if (adapter := saved_adapter(origin)) is not None:
            return load_config(
                adapter.base, revision=adapter.base_revision, trust_remote_code=trust_remote_code
            )
        return read_config(origin)
    return embedded_reader(name)(AutoConfig)


def load_tokenizer(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The tokenizer of a model alone, the one that `load` would take; None if there is none."""
    from transformers import AutoTokenizer

    name = _name(source)
    _check_revision(name, revision)
    if is_embedded(name):
        return embedded_reader(name)(AutoTokenizer)
    if is_local(name):
        check_folder(name, weights=False)
    origin = Origin.find(name, revision, trust_remote_code)
    adapter = saved_adapter(origin)
    if adapter is None:
        return tokenizer_of(origin)
    base = Origin.find(adapter.base, adapter.base_revision, trust_remote_code)
    return tokenizer_of(adapter.origin) or tokenizer_of(base)


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
        raise InputError(
            "load takes a name, a folder, a model, or an object that holds one (a pipeline, a "
            f"SentenceTransformer, a CrossEncoder, a Trainer), not {type(source).__name__}"
        )
    name = DEFAULT if source is None else os.fspath(source)
    if not name.strip():
        raise InputError(
            "the model's name is empty; give a hub name, a folder, or an embedded model "
            f"({', '.join(EMBEDDED)})"
        )
    return name


def _from_object(
    held: Held,
    tokenizer: Tokenizer | Literal[False] | None,
    device: str | torch.device,
    dtype: str | torch.dtype,
    revision: str | None,
    name: str | None,
) -> Lens:
    model = held.model
    try:
        if device != "auto":
            model = model.to(pick_device(device))
        if dtype not in (AUTO, CHECKPOINT):
            model = model.to(pick_dtype(dtype))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if isinstance(error, NormLensError) or is_out_of_memory(error):
            raise
        # Weights that are offloaded or quantised stay what they are.
        raise InputError(
            f"{type(model).__name__} cannot be moved or converted ({reason_of(error)}); leave "
            "device and dtype out, or load it anew where and how you want it"
        ) from error
    return Lens(
        model,
        held.tokenizer if tokenizer is None else tokenizer,
        name=name,
        revision=revision,
        pooling=held.pooling,
        max_tokens=held.max_tokens,
    )


def _check_revision(name: str, revision: str | None) -> None:
    if revision is not None and (is_embedded(name) or is_local(name)):
        raise InputError(
            f"revision {revision!r} is for models on the hub; {name!r} is "
            f"{'an embedded model' if is_embedded(name) else 'a folder'}, so leave it out"
        )

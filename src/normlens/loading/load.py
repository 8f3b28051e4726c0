"""Load a lens from a name, a folder or a model, in the precision and on the device that fit."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from normlens.errors import (
    InputError,
    MissingDependencyError,
    ModelLoadError,
    NormLensError,
    check_choice,
    is_out_of_memory,
    reason_of,
    shortage_explained,
    valid_choice,
)
from normlens.inputs.text import Tokenizer
from normlens.lens import Lens
from normlens.loading.embedded import DEFAULT, EMBEDDED
from normlens.loading.hub import Origin, explained, named_tokenizer, shown_name, tokenizer_of
from normlens.loading.objects import (
    CONFIG,
    Held,
    SavedAdapter,
    complete_part,
    headed_class,
    held_by,
    processor_of,
    saved_adapter,
)
from normlens.loading.sentences import read_pooling
from normlens.models import adapter_class
from normlens.models.base import bring_installed_families
from normlens.models.parts import SignalEncoder
from normlens.models.unwrapping import inner_models, unwrapped
from normlens.options import AUTO, CHECKPOINT, DTYPES, HALF
from normlens.plan.costs import GIB, free_memory

# Devices and dtypes by their names.


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name, which must be here; "auto" is the fastest that is."""
    if device == AUTO:
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    place = _named_device(device)
    try:
        # A device without memory, such as "meta", is no place for a model either.
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device {str(device)!r} is not available here ({reason_of(error)}); "
            "use 'auto' or 'cpu'"
        ) from error
    return place


def device_anywhere(device: str) -> torch.device:
    """The same, or a GPU that another machine has, where this one has none."""
    if device == AUTO:
        return pick_device(device)
    place = _named_device(device)
    return place if is_elsewhere(place) else pick_device(place)


def is_elsewhere(device: torch.device) -> bool:
    """Whether a device is of a kind that other machines have and this one has not."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return not here.get(device.type, True)


def _named_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InputError(
            f"there is no device {str(device)!r}; use 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from error


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    """The dtype of this name, or "auto" or "checkpoint" as they are (`normlens.loading.load`)."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    name = valid_choice(dtype, (AUTO, CHECKPOINT, *DTYPES), "dtype")
    return name if name in (AUTO, CHECKPOINT) else getattr(torch, name)


# The precision that a checkpoint is loaded in: float32 where it fits, unless another is asked for.
#
# In half precision the parts of a layer add up to its vectors within a per cent at best, because
# the model itself rounds; float32 is worth its memory where there is enough.


#: The share of the free memory that weights may take; the rest is for what is computed with them.
_SHARE = 0.8


def dtype_to_load(
    asked: torch.dtype | str,
    config: Any,
    device: torch.device,
    name: str,
    free: int | None = None,
) -> torch.dtype | str:
    """The dtype in which transformers reads a checkpoint; its "auto" is the checkpoint's own.

    `asked` is a dtype, "checkpoint" or "auto". Quantised checkpoints stay in the precision that
    they were made for. `free` is the memory there is, by default that of `device`.
    """
    if isinstance(asked, torch.dtype):
        return asked
    if asked == CHECKPOINT or getattr(config, "quantization_config", None) is not None:
        return AUTO
    own = str(getattr(config, "dtype", None)).removeprefix("torch.")
    if own not in HALF or is_elsewhere(device):
        return torch.float32
    needed = 4 * count_parameters(config)
    free = free_memory(device) if free is None else free
    if needed <= _SHARE * free:
        return torch.float32
    warnings.warn(
        f"{name} would take {needed / GIB:.1f} GiB in float32 and {free / GIB:.1f} GiB are free on "
        f"{device}, so it stays in {own}, where completeness is about {HALF[own]:.0e} (in float32 "
        'about 1e-06); dtype="float32" loads it in float32 all the same',
        stacklevel=3,
    )
    return AUTO


def count_parameters(config: Any) -> int:
    """The parameters of a model of this configuration, with any head that it names."""
    import transformers

    name = (getattr(config, "architectures", None) or ["AutoModel"])[0]
    kind: Any = getattr(transformers, name, transformers.AutoModel)
    try:
        with torch.device("meta"):
            model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    # Whatever a model of foreign code raises here, loading it says it better.
    except Exception:
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


# Models that accelerate spreads over several devices while it loads them (`device_map`).


#: A way of spreading by its name, or the device of each module by the module's path.
DeviceMap = str | dict[str, str | int | torch.device]


#: Ways of spreading that accelerate has names for.
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")


def _check_device_map(
    device_map: DeviceMap, source: object, device: str | torch.device, part: str | None
) -> None:
    """Raise unless a model from `source` can be spread while it is loaded."""
    if isinstance(device_map, str) and device_map not in _SPREAD:
        try:
            torch.device(device_map)
        except RuntimeError:
            check_choice(device_map, (*_SPREAD, "a device"), "device_map")
    if held_by(source) is not None:
        raise InputError(
            "device_map is for models that are loaded by name; load the object with "
            "from_pretrained(…, device_map=…) and give it as it is"
        )
    if device != AUTO:
        raise InputError(
            f"give device or device_map, not both: a device_map says where all of a model lies, "
            f"and device is {str(device)!r}"
        )
    if part is not None:
        raise InputError("device_map spreads whole models; leave it out, or leave out part")
    if importlib.util.find_spec("accelerate") is None:
        raise MissingDependencyError("device_map needs accelerate; run: pip install accelerate")


def _free_everywhere() -> int:
    """Bytes that are free on all GPUs together, or in memory where there is none."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return sum(map(free_memory, gpus)) if gpus else free_memory(torch.device("cpu"))


# Checkpoints as models: what lies in a folder or on the hub, read with its head.


_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """A model's files, and the precision and the place that it is to have."""

    origin: Origin
    dtype: torch.dtype | str
    place: torch.device
    device_map: DeviceMap | None = None

    def model(self) -> Any:
        """All of the model that is there, with its head if it has one."""
        model, report = self.read()
        return complete_part(self.origin.name, model, report)

    def part(self, path: str) -> Any:
        """The model at a path inside one that is made of several."""
        from transformers import AutoModel

        whole, report = self.read(AutoModel, composite=True)
        inner = inner_model(whole, path)
        keys = [*report.get("missing_keys", ())]
        keys += [key for key, *_ in report.get("mismatched_keys", ())]
        lacking = next((key for key in keys if key.startswith(f"{path}.")), None)
        if lacking is not None:
            raise ModelLoadError(
                f"the weights of {self.origin.name!r} do not hold {lacking!r} as this model has "
                "it; another class saved them"
            )
        return inner

    def read(
        self, kind: Any = None, *, composite: bool = False, **settings: Any
    ) -> tuple[Any, dict[str, Any]]:
        """A model, and what transformers says of its weights.

        `kind` is the class to load, by default the one that the checkpoint names; `settings`
        replace some of the configuration. A `composite` model is made of several, of which one is
        wanted.
        """
        origin = self.origin
        # An unsupported architecture is refused before its weights are fetched.
        config = read_config(origin)
        if not composite:
            adapter_class(config)
        named = [origin.architecture] if origin.architecture else config.architectures or []
        packed = getattr(config, "quantization_config", None) is not None
        free = None if self.device_map is None else _free_everywhere()
        # Quantised weights are put in their place as they are read; many cannot be moved.
        spread = {"": self.place} if packed and self.device_map is None else self.device_map
        with explained(origin):
            model, report = origin.read(
                kind or headed_class(named, config),
                dtype=dtype_to_load(self.dtype, config, self.place, origin.name, free),
                attn_implementation="eager",
                weights_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `complete_part` says which ones do not match
                **settings,
                **({} if spread is None else {"device_map": spread}),
            )
        return model.to(self.place) if spread is None else model, report


def adapted_model(adapter: SavedAdapter, dtype: torch.dtype | str, place: torch.device) -> Any:
    """An adapter on its base model."""
    try:
        base, _ = _found(
            adapter.base,
            adapter.base_revision,
            adapter.origin.options["trust_remote_code"],
            weights=True,
        )
        settings = adapter.head_settings if adapter.task in ("SEQ_CLS", "TOKEN_CLS") else {}
        model, report = Checkpoint(base, dtype, place).read(adapter.model_class, **settings)
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
    is_whole = complete_part(adapter.base, model, lacking) is model
    return wrapped if is_whole else unwrapped(wrapped).base_model


def read_config(origin: Origin) -> Any:
    """The configuration of a checkpoint, whatever family it is of."""
    from transformers import AutoConfig

    try:
        with explained(origin):
            return origin.read(AutoConfig)
    except ModelLoadError as error:
        # transformers does not know this model type, but an installed family may teach it.
        if not isinstance(error.__cause__, ValueError) or not bring_installed_families():
            raise
        with explained(origin):
            return origin.read(AutoConfig)


def inner_model(model: Any, part: str) -> Any:
    """The model at a path inside another one."""
    try:
        inner = unwrapped(model).get_submodule(part)
    except AttributeError:
        inner = None
    if getattr(inner, "config", None) is None:
        inside = list(inner_models(model))
        known = f"those inside are {', '.join(inside)}" if inside else "there are none inside it"
        raise InputError(f"{part!r} is no model inside this {type(model).__name__}; {known}")
    return inner


def _found(
    source: object, revision: str | None, trust_remote_code: bool, *, weights: bool
) -> tuple[Origin, SavedAdapter | None]:
    """Where a model's files are, and the adapter that lies there where no whole model does.

    A folder must hold either; with `weights`, all of a model.
    """
    name = _name(source)
    origin = Origin.find(name, revision, trust_remote_code)
    if origin.local and origin.architecture is None:
        _check_folder(name, weights=weights)
    return origin, saved_adapter(origin)


def _check_folder(name: str, *, weights: bool) -> None:
    path = Path(name).expanduser()
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelLoadError(
            f"{name!r} {what}; give a folder that save_pretrained wrote, or a hub name"
        )
    if not (path / "config.json").is_file():
        if (path / CONFIG).is_file():
            return  # an adapter, whose base model is looked for next
        raise ModelLoadError(
            f"the folder {name!r} holds no config.json, so it is not a model; save one there with "
            "model.save_pretrained(…), or give another folder"
        )
    if weights and not any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelLoadError(
            f"the folder {name!r} holds no weights (model.safetensors or "
            "pytorch_model.bin); save the model there with model.save_pretrained(…)"
        )


# From a name, a folder or a model to a lens, with errors that say what to do.


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
        _check_device_map(device_map, source, device, part)
    if (held := held_by(source)) is not None:
        held = held if part is None else replace(held, model=inner_model(held.model, part))
        return _from_object(held, named, device, dtype, revision, name)
    place, precision = pick_device(device), pick_dtype(dtype)
    origin, adapter = _found(source, revision, trust_remote_code, weights=True)
    if adapter is not None and (part is not None or device_map is not None):
        asked = "part" if part is not None else "device_map"
        raise InputError(
            f"{origin.name!r} is an adapter; give `{asked}` with its base model merged in"
        )
    if adapter is not None:
        model = adapted_model(adapter, precision, place)
    else:
        checkpoint = Checkpoint(origin, precision, place, device_map)
        model = checkpoint.model() if part is None else checkpoint.part(part)
    if named is None:
        named = _reader_beside(origin, adapter, unwrapped(model).config)
    inside = "" if part is None else f" ({part})"
    return Lens(
        model,
        named,
        name=name or f"{shown_name(_name(source))}{inside}",
        source=f"{_name(source)}{inside}",
        revision=revision,
        pooling=partial(read_pooling, origin.file),
    )


def _reader_beside(origin: Origin, adapter: SavedAdapter | None, config: Any) -> Any:
    """What makes the model's input, if it comes with the model: a tokenizer or a processor."""
    kind = adapter_class(config)
    if adapter is None and issubclass(kind, SignalEncoder):
        return processor_of(origin, kind)
    return _tokenizer(origin, adapter)


def _tokenizer(origin: Origin, adapter: SavedAdapter | None) -> Any:
    """The tokenizer of a model, of an adapter its own or its base's; None if there is none."""
    found = tokenizer_of(origin)
    if found is not None or adapter is None:
        return found
    trust = origin.options["trust_remote_code"]
    return tokenizer_of(Origin.find(adapter.base, adapter.base_revision, trust))


def load_config(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The configuration of a model alone, found where `load` would find the model."""
    origin, adapter = _found(source, revision, trust_remote_code, weights=False)
    if adapter is None:
        return read_config(origin)
    return load_config(
        adapter.base, revision=adapter.base_revision, trust_remote_code=trust_remote_code
    )


def load_tokenizer(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The tokenizer of a model alone, the one that `load` would take; None if there is none."""
    return _tokenizer(*_found(source, revision, trust_remote_code, weights=False))


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

"""Load a lens from a name, a folder or a model, in the precision and on the device that fit."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from normlens import errors
from normlens.inputs.text import Tokenizer
from normlens.lens import Lens
from normlens.loading import hub
from normlens.loading.embedded import DEFAULT, EMBEDDED
from normlens.loading.sentences import Pooling, pooling_of, read_pooling, route, saved_router
from normlens.models import adapter_class
from normlens.models.base import bring_installed_families, head_method
from normlens.models.parts import ImageEncoder, SignalEncoder
from normlens.models.unwrapping import body, body_class, inner_models, unwrapped
from normlens.options import AUTO, CHECKPOINT, DTYPES, HALF
from normlens.plan.costs import GIB, free_memory

# Devices and dtypes by their names.


def pick_device(device: str | torch.device, *, anywhere: bool = False) -> torch.device:
    """The device of this name, which must be here; "auto" is the fastest that is.

    With `anywhere` it may be a GPU that another machine has, where this one has none.
    """
    if device == AUTO:
        places = map(torch.device, ("cuda", "mps", "cpu"))
        return next(place for place in places if not is_elsewhere(place))
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise errors.InputError(
            f"there is no device {str(device)!r}; use 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'"
        ) from error
    try:
        if not (anywhere and is_elsewhere(place)):
            # A device without memory, such as "meta", is no place for a model either.
            torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise errors.InputError(
            f"device {str(device)!r} is not available here ({errors.reason_of(error)}); "
            "use 'auto' or 'cpu'"
        ) from error
    return place


def is_elsewhere(device: torch.device) -> bool:
    """Whether a device is of a kind that other machines have and this one has not."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return not here.get(device.type, True)


def pick_dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    """The dtype of this name, or "auto" or "checkpoint" as they are (`normlens.loading.load`)."""
    name = str(dtype).removeprefix("torch.")
    errors.valid_choice(name, (AUTO, CHECKPOINT, *DTYPES), "dtype")
    return name if name in (AUTO, CHECKPOINT) else getattr(torch, name)


# The precision that a checkpoint is loaded in: float32 where it fits, unless another is asked for.
#
# In half precision the parts of a layer add up to its vectors within a per cent at best, because
# the model itself rounds; float32 is worth its memory where there is enough.


#: The share of the free memory that weights may take; the rest is for what is computed with them.
_SHARE = 0.8


def dtype_to_load(
    asked: torch.dtype | str, config: Any, device: torch.device, name: str, free: int | None = None
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
    kind = headed_class(config)
    try:
        with torch.device("meta"):
            model = getattr(kind, "from_config", kind)(config)
    # Whatever a model of foreign code raises here, loading it says it better.
    except Exception:
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def headed_class(config: Any, architecture: str | None = None) -> Any:
    """The class that loads a checkpoint, with the head that it names if an adapter may describe it.

    A class that comes with a checkpoint as code has no head that could be described.
    """
    import transformers

    named = [architecture] if architecture else getattr(config, "architectures", None) or []
    if len(named) == 1 and head_method(named[0]) is not None:
        return getattr(transformers, named[0], transformers.AutoModel)
    return body_class(config)


# Checkpoints as models: what lies in a folder or on the hub, read with its head.


#: How accelerate spreads a model over several devices while it loads it: a way by its name, or the
#: device of each module by the module's path.
DeviceMap = str | dict[str, str | int | torch.device]
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")


def read_checkpoint(
    origin: hub.Origin,
    dtype: torch.dtype | str,
    place: torch.device,
    device_map: DeviceMap | None = None,
    *,
    kind: Any = None,
    **settings: Any,
) -> tuple[Any, dict[str, list[str]]]:
    """A model in this precision and place, and the weights that its files lack or that do not fit.

    `kind` is the class to load, by default the one that the checkpoint names; `settings` replace
    some of the configuration.
    """
    from transformers import AutoModel

    # An unsupported architecture is refused before its weights are fetched, unless it is made of
    # several models, of which one is wanted.
    config = read_config(origin)
    if kind is not AutoModel:
        adapter_class(config)
    free = None
    if device_map is not None:
        gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        free = sum(map(free_memory, gpus or [torch.device("cpu")]))
        settings["device_map"] = device_map
    elif getattr(config, "quantization_config", None) is not None:
        # Quantised weights are put in their place as they are read; many cannot be moved.
        settings["device_map"] = {"": place}
    model, report = origin.read(
        kind or headed_class(config, origin.architecture),
        dtype=dtype_to_load(dtype, config, place, origin.name, free),
        attn_implementation="eager",
        weights_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `is_incomplete` says which ones do not match
        **settings,
    )
    lacking = {
        "lack": list(report.get("missing_keys", ())),
        "have the wrong shape for": [key for key, *_ in report.get("mismatched_keys", ())],
    }
    return model if "device_map" in settings else model.to(place), lacking


def is_incomplete(name: str, lacking: dict[str, list[str]], inside: str) -> bool:
    """Whether a checkpoint lacks some of a model; raise if that is in the module `inside`.

    Weights that the files lack, or that do not fit, would silently be random numbers.
    """
    for what, keys in lacking.items():
        # No map needs the pooler; a classifier does.
        wrong = sorted(key for key in keys if key.startswith(inside) and "pooler" not in key)
        if wrong:
            raise errors.ModelLoadError(
                f"the weights of {name!r} {what} {len(wrong)} of the model's tensors (the first is "
                f"{wrong[0]!r}); the checkpoint is incomplete or of another model, get it again"
            )
    return any(lacking.values())


def complete_part(name: str, model: Any, lacking: dict[str, list[str]]) -> Any:
    """The model if its checkpoint holds all of it, else its body if it holds that."""
    inner = body(model)
    inside = f"{model.base_model_prefix}." if inner is not model else ""
    return inner if is_incomplete(name, lacking, inside) else model


def adapted_model(adapter: hub.SavedAdapter, dtype: torch.dtype | str, place: torch.device) -> Any:
    """An adapter on its base model."""
    try:
        model, lacking = read_checkpoint(_base_of(adapter), dtype, place, **adapter.base_settings)
    except errors.ModelLoadError as error:
        raise errors.ModelLoadError(
            f"{adapter.origin.name!r} is an adapter for the model {adapter.base!r}, which cannot "
            f"be loaded: {error}"
        ) from error
    # A head that the base lacks is the adapter's, or it is random numbers and left out.
    saved = {name.removeprefix("base_model.model.") for name in adapter.shapes}
    others = {what: [key for key in keys if key not in saved] for what, keys in lacking.items()}
    wrapped = adapter.applied_to(model)
    is_whole = complete_part(adapter.base, model, others) is model
    return wrapped if is_whole else unwrapped(wrapped).base_model


def read_config(origin: hub.Origin) -> Any:
    """The configuration of a checkpoint, whatever family it is of."""
    from transformers import AutoConfig

    try:
        return origin.read(AutoConfig)
    except errors.ModelLoadError as error:
        # transformers does not know this model type, but an installed family may teach it.
        if not isinstance(error.__cause__, ValueError) or not bring_installed_families():
            raise
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
        raise errors.InputError(f"{part!r} is no model inside this {type(model).__name__}; {known}")
    return inner


def _found(
    source: object, revision: str | None, trust_remote_code: bool
) -> tuple[hub.Origin, hub.SavedAdapter | None]:
    """Where a model's files are, and the adapter that lies there where no whole model does."""
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise errors.InputError(
            "load takes a name, a folder, a model, or an object that holds one (a pipeline, a "
            f"SentenceTransformer, a CrossEncoder, a Trainer), not {type(source).__name__}"
        )
    name = DEFAULT if source is None else os.fspath(source)
    errors.require(
        name.strip(),
        "the model's name is empty; give a hub name, a folder, or an embedded model "
        f"({', '.join(EMBEDDED)})",
    )
    origin = hub.Origin.find(name, revision, trust_remote_code)
    if origin.local and origin.architecture is None:
        path = Path(name).expanduser()
        if not path.is_dir():
            what = "is a file, not a folder" if path.exists() else "does not exist"
            raise errors.ModelLoadError(
                f"{name!r} {what}; give a folder that save_pretrained wrote, or a hub name"
            )
        # An adapter has a base model, which is looked for next.
        if not any((path / file).is_file() for file in ("config.json", hub.CONFIG)):
            raise errors.ModelLoadError(
                f"the folder {name!r} holds no config.json, so it is not a model; save one there "
                "with model.save_pretrained(…), or give another folder"
            )
    return origin, hub.saved_adapter(origin)


def _base_of(adapter: hub.SavedAdapter) -> hub.Origin:
    """Where the files of an adapter's base model are."""
    trust = adapter.origin.options["trust_remote_code"]
    return _found(adapter.base, adapter.base_revision, trust)[0]


# From a name, a folder or a model to a lens, with errors that say what to do.


@errors.shortage_explained(
    "this model", 'load it in half precision (dtype="bfloat16"), or a smaller one'
)
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
    errors.require(
        name is None or name.strip(), "the name that results shall call the model by is empty"
    )
    reader: Any = tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        reader = hub.named_tokenizer(os.fspath(tokenizer), trust_remote_code)
    errors.require(
        reader is None or reader is False or callable(reader),
        f"tokenizer is a tokenizer, the name or folder of one, or False for none, not {reader!r}",
    )
    if (whole := saved_router(source, trust_remote_code)) is not None:
        source, name = whole, name or hub.shown_name(str(source))
        device, dtype = pick_device(device), torch.float32 if dtype == AUTO else dtype
    held = held_by(source)
    if device_map is not None:
        _check_device_map(device_map, held, device, part)
    if held is not None:
        held = held if part is None else replace(held, model=inner_model(held.model, part))
        return Lens(
            _moved(held.model, device, dtype),
            held.tokenizer if reader is None else reader,
            name=name,
            revision=revision,
            pooling=held.pooling,
            max_tokens=held.max_tokens,
        )
    place, precision = pick_device(device), pick_dtype(dtype)
    origin, adapter = _found(source, revision, trust_remote_code)
    if adapter is not None:
        for option, value in {"part": part, "device_map": device_map}.items():
            errors.require(
                value is None,
                f"{origin.name!r} is an adapter; give `{option}` with its base model merged in",
            )
        model = adapted_model(adapter, precision, place)
    elif part is None:
        model, lacking = read_checkpoint(origin, precision, place, device_map)
        model = complete_part(origin.name, model, lacking)
    else:
        from transformers import AutoModel

        whole, lacking = read_checkpoint(origin, precision, place, kind=AutoModel)
        model = inner_model(whole, part)
        is_incomplete(origin.name, lacking, f"{part}.")
    if reader is None:
        family = adapter_class(unwrapped(model).config)
        if adapter is None and issubclass(family, SignalEncoder):
            reader = hub.processor_of(origin, sees=issubclass(family, ImageEncoder))
        else:
            reader = _tokenizer(origin, adapter)
    inside = "" if part is None else f" ({part})"
    return Lens(
        model,
        reader,
        name=name or f"{hub.shown_name(origin.name)}{inside}",
        source=f"{origin.name}{inside}",
        revision=revision,
        pooling=partial(read_pooling, origin),
    )


def _check_device_map(
    device_map: DeviceMap, held: Held | None, device: str | torch.device, part: str | None
) -> None:
    """Raise unless a model can be spread while it is loaded."""
    if isinstance(device_map, str) and device_map not in _SPREAD:
        try:
            torch.device(device_map)
        except RuntimeError:
            errors.check_choice(device_map, (*_SPREAD, "a device"), "device_map")
    errors.require(
        held is None,
        "device_map is for models that are loaded by name; load the object with "
        "from_pretrained(…, device_map=…) and give it as it is",
    )
    errors.require(
        device == AUTO,
        "give device or device_map, not both: a device_map says where all of a model lies, and "
        f"device is {str(device)!r}",
    )
    errors.require(part is None, "device_map spreads whole models; leave it out, or leave out part")
    if find_spec("accelerate") is None:
        raise errors.MissingDependencyError(
            "device_map needs accelerate; run: pip install accelerate"
        )


def _tokenizer(origin: hub.Origin, adapter: hub.SavedAdapter | None) -> Any:
    """The tokenizer of a model, of an adapter its own or its base's; None if there is none."""
    found = hub.tokenizer_of(origin)
    return found if found is not None or adapter is None else hub.tokenizer_of(_base_of(adapter))


def load_config(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The configuration of a model alone, found where `load` would find the model."""
    origin, adapter = _found(source, revision, trust_remote_code)
    return read_config(origin if adapter is None else _base_of(adapter))


def load_tokenizer(
    source: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """The tokenizer of a model alone, the one that `load` would take; None if there is none."""
    return _tokenizer(*_found(source, revision, trust_remote_code))


def _moved(model: Any, device: str | torch.device, dtype: str | torch.dtype) -> Any:
    """A user's model where and in what it is asked for; by default as it is."""
    try:
        if device != AUTO:
            model = model.to(pick_device(device))
        if dtype not in (AUTO, CHECKPOINT):
            model = model.to(pick_dtype(dtype))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if isinstance(error, errors.NormLensError) or errors.is_out_of_memory(error):
            raise
        # Weights that are offloaded or quantised stay what they are.
        raise errors.InputError(
            f"{type(model).__name__} cannot be moved or converted ({errors.reason_of(error)}); "
            "leave device and dtype out, or load it anew where and how you want it"
        ) from error
    return model


# Objects of other libraries that hold a model: what of them a lens takes over.
#
# They are told by the names of their classes, because none of these libraries has to be installed.


@dataclass(frozen=True)
class Held:
    """The model inside an object, with what the object does to texts."""

    model: Any
    tokenizer: Any = None
    pooling: Callable[[], Pooling] = Pooling
    max_tokens: int | None = None  # where the object cuts a text, if before the model's own limit


def held_by(source: Any) -> Held | None:
    """What a user's object holds; None if it is no model and nothing that is known to hold one."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    if "sentence_transformers.CrossEncoder" in kinds:
        model = source.model
        limit = getattr(source, "max_seq_length", None) or getattr(source, "max_length", None)
        modules = [type(module).__name__ for module in route(source)]
        if modules[1:] not in ([], ["LogitScore"]):
            # Other modules make the score, so it is not the one of the model's own head.
            model = getattr(model, "base_model", model)
        held = Held(model, source.tokenizer, partial(pooling_of, source), limit)
    elif {"sentence_transformers.SentenceTransformer", "sentence_transformers.BaseModel"} & kinds:
        # A Transformer module, then what makes one vector of it, or several.
        model = getattr(route(source)[0], "auto_model", None) if len(source) else None
        held = Held(model, getattr(source, "tokenizer", None), partial(pooling_of, source))
    elif "transformers.Pipeline" in kinds:
        # It may cut texts as it was told to.
        settings = dict(getattr(source, "_preprocess_params", {}))
        settings |= settings.pop("tokenizer_kwargs", None) or {}
        limit = settings.get("max_length") if settings.get("truncation") else None
        names = ("tokenizer", "image_processor", "feature_extractor")
        readers = (getattr(source, name, None) for name in names)
        reader = next((each for each in readers if each is not None), None)
        held = Held(source.model, reader, max_tokens=limit)
    elif "transformers.Trainer" in kinds:
        reader = getattr(source, "processing_class", None) or getattr(source, "tokenizer", None)
        held = Held(source.model, reader if hasattr(reader, "get_vocab") else None)
    elif isinstance(source, nn.Module):
        held = Held(source)
    else:
        return None
    if not isinstance(held.model, nn.Module):
        raise errors.UnsupportedModelError(
            f"this {type(source).__name__} holds no transformers model in torch, so it has no "
            "layers to look into; load a model by its name"
        )
    return held

"""From a name, a folder or a model to a lens, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normlens.embedded import DEFAULT, EMBEDDED, EmbeddedModel
from normlens.errors import InputError, ModelLoadError, reason_of, valid_choice
from normlens.hub import (
    Origin,
    explained,
    is_local,
    known_cause,
    quiet_transformers,
)
from normlens.lens import Lens
from normlens.models import adapter_class
from normlens.models.base import bring_installed_families
from normlens.precisions import DTYPES
from normlens.sentences import Finder, read_pooling

#: Files of which every tokenizer has at least one.
_TOKENIZER_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.gguf")


def load(
    source: str | os.PathLike[str] | nn.Module | None = None,
    tokenizer: Any = None,
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
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = _named_tokenizer(os.fspath(tokenizer), trust_remote_code)
    elif not (tokenizer is None or tokenizer is False or callable(tokenizer)):
        raise InputError(
            "tokenizer is a tokenizer, the name or folder of one, or False for none, not "
            f"{tokenizer!r}"
        )
    if isinstance(source, nn.Module):
        return _from_object(source, tokenizer, device, dtype, revision)
    name = _name(source)
    _check_revision(name, revision)
    place = pick_device(device)
    precision = pick_dtype(dtype, place)
    if _is_embedded(name):
        model, own = _embedded(EMBEDDED[name], precision)
        tokenizer = own if tokenizer is None else tokenizer
        find: Finder = partial(_beside, EMBEDDED[name].locate().parent)
    else:
        if is_local(name):
            _check_folder(name, weights=True)
        origin = Origin.find(name, revision, trust_remote_code)
        model = _pretrained(origin, precision)
        tokenizer = _tokenizer(origin) if tokenizer is None else tokenizer
        find = partial(_file_of, origin)
    pooling = partial(read_pooling, find)
    return Lens(model.to(place), tokenizer, name=name, revision=revision, pooling=pooling)


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
    if not _is_embedded(name):
        if is_local(name):
            _check_folder(name, weights=False)
        return _config(Origin.find(name, revision, trust_remote_code))
    return _embedded_reader(EMBEDDED[name])(AutoConfig)


def _name(source: Any) -> str:
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise InputError(f"load takes a name, a folder or a model, not {type(source).__name__}")
    name = DEFAULT if source is None else os.fspath(source)
    if not name.strip():
        raise InputError(
            "the model's name is empty; give a hub name, a folder, or an embedded model "
            f"({', '.join(EMBEDDED)})"
        )
    return name


def _is_embedded(name: str) -> bool:
    # A model in a folder of that name comes first.
    return name in EMBEDDED and not (Path(name) / "config.json").is_file()


def _from_object(
    model: nn.Module, tokenizer: Any, device: Any, dtype: Any, revision: str | None
) -> Lens:
    if device != "auto":
        model = model.to(pick_device(device))
    if dtype != "auto":
        model = model.to(pick_dtype(dtype, torch.device("cpu")))
    return Lens(model, tokenizer, revision=revision)


def _embedded_reader(embedded: EmbeddedModel) -> Callable[..., Any]:
    """What lets one of transformers' classes read an embedded model's files."""
    weights = embedded.locate()
    own = {"gguf_file": weights.name} if embedded.gguf else {}

    def read(kind: Any, **options: Any) -> Any:
        # Reading GGUF draws a progress bar that no setting turns off.
        with quiet_transformers(), redirect_stderr(StringIO()):
            return kind.from_pretrained(
                str(weights.parent), local_files_only=True, **own, **options
            )

    return read


def _embedded(embedded: EmbeddedModel, dtype: Any) -> tuple[Any, Any]:
    read = _embedded_reader(embedded)
    from transformers import AutoModel, AutoTokenizer

    return read(AutoModel, dtype=dtype, attn_implementation="eager"), read(AutoTokenizer)


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
    from transformers import AutoModel

    # An unsupported architecture is refused before its weights are fetched.
    adapter_class(_config(origin))
    with quiet_transformers(), explained(origin):
        model, report = AutoModel.from_pretrained(
            origin.name,
            dtype=dtype,
            attn_implementation="eager",
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_check_complete` says which ones do not match
            **origin.options,
        )
    _check_complete(origin.name, report)
    return model


def _tokenizer(origin: Origin) -> Any:
    """The tokenizer that comes with a model; None where none does: `input_ids` need none."""
    try:
        return _read_tokenizer(origin)
    except _UnusableTokenizerError:
        if _has_tokenizer_files(origin):
            raise
        return None


class _UnusableTokenizerError(ModelLoadError):
    """Files that give no tokenizer, or none at all."""


def _beside(folder: Path, name: str) -> Path | None:
    """A file in a model's folder, if it is there."""
    path = folder / name
    return path if path.is_file() else None


def _file_of(origin: Origin, name: str) -> Path | None:
    """A file that belongs to a model here or on the hub, if there is one."""
    from transformers.utils import cached_file

    quietly: dict[str, Any] = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
        "_raise_exceptions_for_gated_repo": False,
    }
    options = {key: value for key, value in origin.options.items() if key != "trust_remote_code"}
    path = cached_file(origin.name, name, **options, **quietly)
    return None if path is None else Path(path)


def _has_tokenizer_files(origin: Origin) -> bool:
    return any(_file_of(origin, name) is not None for name in _TOKENIZER_FILES)


def _read_tokenizer(origin: Origin) -> Any:
    from transformers import AutoTokenizer

    advice = (
        "save one beside the model with tokenizer.save_pretrained(…), name another one "
        "(load(…, tokenizer=…) or --tokenizer), or load the model without any (tokenizer=False) "
        "and pass input_ids=…"
    )
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(origin.name, **origin.options)
    # Whatever the many tokenizer classes raise, the user's next step is the same.
    except Exception as error:
        if (known := known_cause(origin, error)) is not None:
            raise known from error
        raise _UnusableTokenizerError(
            f"{origin.name!r} has no usable tokenizer ({reason_of(error)}); {advice}"
        ) from error
    # Where the files are missing, transformers makes a tokenizer that calls every word unknown.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) <= 2:
        raise _UnusableTokenizerError(
            f"{origin.name!r} has no tokenizer (its vocabulary is empty); {advice}"
        )
    return tokenizer


def _named_tokenizer(name: str, trust_remote_code: bool) -> Any:
    if _is_embedded(name):
        from transformers import AutoTokenizer

        return _embedded_reader(EMBEDDED[name])(AutoTokenizer)
    if is_local(name) and not Path(name).expanduser().is_dir():
        raise ModelLoadError(
            f"there is no tokenizer folder at {name!r}; give a folder that "
            "tokenizer.save_pretrained wrote, or a hub name"
        )
    return _read_tokenizer(Origin.find(name, None, trust_remote_code))


def _check_revision(name: str, revision: str | None) -> None:
    if revision is not None and (_is_embedded(name) or is_local(name)):
        raise InputError(
            f"revision {revision!r} is for models on the hub; {name!r} is "
            f"{'an embedded model' if _is_embedded(name) else 'a folder'}, so leave it out"
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


def _check_complete(name: str, report: Any) -> None:
    """Weights that the file lacks, or that do not fit, would silently be random numbers."""
    for what, keys in (
        ("lack", report.get("missing_keys", ())),
        ("have the wrong shape for", [key for key, *_ in report.get("mismatched_keys", ())]),
    ):
        wrong = sorted(key for key in keys if "pooler" not in key)
        if wrong:
            raise ModelLoadError(
                f"the weights of {name!r} {what} {len(wrong)} of the model's tensors (the first is "
                f"{wrong[0]!r}); the checkpoint is incomplete or of another model, get it again"
            )


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name, which must be here; "auto" is the fastest that is."""
    if device == "auto":
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
    if device == "auto":
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


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> Any:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, valid_choice(dtype, DTYPES, "dtype"))

"""From a name, a folder or a model to a lens, with errors that say what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

from normlens.embedded import DEFAULT, EMBEDDED, EmbeddedModel
from normlens.errors import InputError, ModelLoadError, NormLensError, valid_choice
from normlens.lens import Lens
from normlens.models import adapter_class

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", "*.gguf")
_OFFLINE_WAYS = (
    f"offline, use an embedded model (load() or --model {DEFAULT}), a local folder that holds one, "
    "or a model that the Hugging Face cache holds already"
)


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

    Without `source` it is the embedded default. `device` "auto" takes a GPU where there is one and
    leaves a model object where it is. `dtype` "auto" is float32 on a CPU, the checkpoint's own
    on a GPU, and a model object's own; the algebra runs in float32 at least. Code from the hub
    runs only with `trust_remote_code`; pickled weights are read with ``weights_only=True``.
    """
    if isinstance(source, nn.Module):
        return _from_object(source, tokenizer, device, dtype, revision)
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise InputError(f"load takes a name, a folder or a model, not {type(source).__name__}")
    name = DEFAULT if source is None else os.fspath(source)
    place = _device(device)
    precision = _dtype(dtype, place)
    if name in EMBEDDED and not Path(name).is_dir():
        model, own_tokenizer = _embedded(EMBEDDED[name], precision)
    else:
        model, own_tokenizer = _pretrained(name, precision, revision, trust_remote_code)
    return Lens(model.to(place), tokenizer or own_tokenizer, name=name, revision=revision)


def _from_object(
    model: nn.Module, tokenizer: Any, device: Any, dtype: Any, revision: str | None
) -> Lens:
    if device != "auto":
        model = model.to(_device(device))
    if dtype != "auto":
        model = model.to(_dtype(dtype, torch.device("cpu")))
    return Lens(model, tokenizer, revision=revision)


def _embedded(embedded: EmbeddedModel, dtype: Any) -> tuple[Any, Any]:
    weights = embedded.locate()
    from transformers import AutoModel, AutoTokenizer

    options: dict[str, Any] = {"local_files_only": True}
    if embedded.gguf:
        options["gguf_file"] = weights.name
    folder = str(weights.parent)
    # Reading GGUF draws a progress bar that no setting turns off.
    with _quiet_transformers(), redirect_stderr(StringIO()):
        model = AutoModel.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", **options
        )
        return model, AutoTokenizer.from_pretrained(folder, **options)


def _pretrained(
    name: str, dtype: Any, revision: str | None, trust_remote_code: bool
) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    local = _is_local(name)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if local:
        _check_folder(Path(name).expanduser())
        name = str(Path(name).expanduser())
    elif not _hub_reachable():
        options["local_files_only"] = True
    with _quiet_transformers(), _explained(name, local):
        adapter_class(AutoConfig.from_pretrained(name, **options))
        model, report = AutoModel.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation="eager",
            weights_only=True,
            output_loading_info=True,
            **options,
        )
        _check_complete(name, report)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelLoadError(
                f"{name!r} has no usable tokenizer ({_first_line(error)}); save one beside the "
                "model with tokenizer.save_pretrained(…), or pass load(model, tokenizer)"
            ) from error
    return model, tokenizer


def _is_local(name: str) -> bool:
    path = Path(name).expanduser()
    return path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelLoadError(
            f"{str(path)!r} {what}; give a folder that save_pretrained wrote, or a hub name"
        )
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"the folder {str(path)!r} holds no config.json; it is not a model")
    if not any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
        raise ModelLoadError(
            f"the folder {str(path)!r} holds no weights (model.safetensors or "
            "pytorch_model.bin); save the model there with model.save_pretrained(…)"
        )


def _check_complete(name: str, report: Any) -> None:
    """Weights that the file lacks would silently be random numbers."""
    missing = [key for key in report.get("missing_keys", ()) if "pooler" not in key]
    if missing:
        raise ModelLoadError(
            f"the weights of {name!r} lack {len(missing)} tensors that the model needs, "
            f"{sorted(missing)[0]!r} among them; the checkpoint is incomplete or of another model"
        )


@contextmanager
def _explained(name: str, local: bool) -> Iterator[None]:
    """Turn the many ways in which loading fails into one line each."""
    try:
        yield
    except NormLensError:
        raise
    except Exception as error:
        line = _first_line(error)
        if local:
            raise ModelLoadError(f"cannot load the model in {name!r}: {line}") from error
        if "couldn't connect" in line.lower() or "offline" in line.lower():
            raise ModelLoadError(
                f"cannot load {name!r}: the Hugging Face hub is unreachable and the model is not "
                f"in the local cache; {_OFFLINE_WAYS}"
            ) from error
        raise ModelLoadError(
            f"cannot load {name!r} from the Hugging Face hub: {line} (check the name; "
            f"{_OFFLINE_WAYS})"
        ) from error


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 240 else text[:237] + "…"


def _hub_reachable(timeout: float = 3.0) -> bool:
    """Whether the hub answers at all: its client alone would retry for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # only the proxy can tell
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading reports and progress bars are for a terminal that asked for them."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {str(device)!r} is not available here ({_first_line(error)}); "
            "use 'auto' or 'cpu'"
        ) from error
    return place


def _dtype(dtype: str | torch.dtype, device: torch.device) -> Any:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return DTYPES[valid_choice(dtype, tuple(DTYPES), "dtype")]

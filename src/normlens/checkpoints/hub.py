"""Models from folders and the Hugging Face hub: whether it answers, and what its errors mean."""

from __future__ import annotations

import os
import pickle
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from normlens.checkpoints.embedded import DEFAULT
from normlens.errors import ModelLoadError, NormLensError, reason_of
from normlens.memory_shortage import is_out_of_memory
from normlens.model_names import is_local

PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_YES = ("1", "TRUE", "YES", "ON")
_OFFLINE_ALTERNATIVES = (
    f"without the hub, use an embedded model (load() or --model {DEFAULT}), a folder that "
    "save_pretrained wrote, or a model that is in the cache already"
)


@dataclass(frozen=True)
class Origin:
    """The origin of a model's files, and the options with which transformers loads them."""

    name: str
    local: bool
    options: dict[str, Any]

    @classmethod
    def find(cls, name: str, revision: str | None, trust_remote_code: bool) -> Origin:
        """The origin of a model's name: a folder, the hub, or only the cache if that is offline."""
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        local = is_local(name)
        if local:
            name = str(Path(name).expanduser())
        elif not reachable():
            options["local_files_only"] = True
        return cls(name, local, options)


def file_of(origin: Origin, name: str) -> Path | None:
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


def is_cached(name: str, revision: str | None) -> bool:
    """Whether a model of the hub, or an adapter, lies in the local cache."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        return any(
            isinstance(try_to_load_from_cache(name, file, revision=revision), str)
            for file in ("config.json", "adapter_config.json")
        )
    except errors.HFValidationError:
        return False


# Whether it answers ------------------------------------------------------------------------------


def reachable(timeout: float = 3.0) -> bool:
    """Whether the hub answers at all; its client would retry for half a minute."""
    if _set_offline():
        return False
    if _has_proxy():
        return True  # only the proxy can tell
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


def state() -> str:
    """Whether models can be fetched from the hub, in words."""
    if _set_offline():
        return "switched off (HF_HUB_OFFLINE is set)"
    if not reachable():
        return "unreachable; embedded models, local folders and cached models work"
    return "behind a proxy; not tried" if _has_proxy() else "reachable"


def _has_proxy() -> bool:
    return any(os.environ.get(key) for key in PROXIES)


def _set_offline() -> bool:
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in _YES for name in variables)


# What went wrong ---------------------------------------------------------------------------------


@contextmanager
def explained(origin: Origin) -> Iterator[None]:
    """Turn any error of loading into one line that says what to do."""
    try:
        yield
    except NormLensError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise  # no fault of the model's
        clearer = known_cause(origin, error)
        if clearer is not None:
            raise clearer from error
        line = reason_of(error)
        if origin.local:
            raise ModelLoadError(
                f"cannot load the model in {origin.name!r}: {line} (a file there may be damaged; "
                "save or download the model again)"
            ) from error
        raise ModelLoadError(
            f"cannot load {origin.name!r} from the Hugging Face hub: {line}; check the name, or, "
            f"{_OFFLINE_ALTERNATIVES}"
        ) from error


def known_cause(origin: Origin, error: BaseException) -> ModelLoadError | None:
    """A clearer error where the libraries' message would mislead, or None."""
    from huggingface_hub import errors

    name, text = origin.name, str(error).lower()
    if "trust_remote_code" in text:
        return ModelLoadError(
            f"{name!r} brings Python code of its own, which NormLens does not run unless told to; "
            "if you trust its author, pass trust_remote_code=True (--trust-remote-code)"
        )
    if "`model_type` key" in text:
        return ModelLoadError(
            f'the config.json of {name!r} has no "model_type", which says what architecture it is; '
            'add it there (for example "model_type": "bert"), or save the model again with '
            "model.save_pretrained(…)"
        )
    if "does not recognize this architecture" in text:
        return ModelLoadError(
            f"the transformers that is installed does not know the architecture of {name!r} "
            f"({reason_of(error).split(' but ')[0]}); upgrade it, or check "
            '"model_type" in the config.json'
        )
    chain = list(_chain(error))

    def due_to(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in chain)

    if due_to(pickle.UnpicklingError):
        return ModelLoadError(
            f"the weights in {name!r} are a pickle that holds more than tensors, or are damaged; "
            "NormLens does not load such files, because they can run code; use safetensors weights"
        )
    if due_to(ImportError):
        return ModelLoadError(
            f"loading {name!r} needs a package that is not installed ({reason_of(error)}); "
            "install it, or load the model without quantisation"
        )
    if any("invalid credentials" in str(cause).lower() for cause in chain):
        return ModelLoadError(
            f"the Hugging Face hub does not accept the token that {name!r} was asked for with; set "
            "HF_TOKEN to a valid one on every machine, or log in with `hf auth login`"
        )
    if due_to(errors.GatedRepoError):
        return ModelLoadError(
            f"{name!r} is open only to those who accepted its terms; accept them on its page, log "
            "in with `hf auth login`, and try again"
        )
    if due_to(errors.RevisionNotFoundError):
        return ModelLoadError(
            f"{name!r} has no revision {origin.options.get('revision')!r}; give a branch, a tag or "
            "a commit of it"
        )
    if due_to(errors.HFValidationError):
        return ModelLoadError(
            f"{name!r} is neither a folder here nor a possible name on the Hugging Face hub; names "
            "look like 'bert-base-uncased' or 'openai-community/gpt2'"
        )
    if due_to(errors.RepositoryNotFoundError):
        return ModelLoadError(
            f"the Hugging Face hub has no model {name!r}; check the name (or, if it is private, "
            "log in with `hf auth login`)"
        )
    unreached = due_to(errors.LocalEntryNotFoundError)
    if not origin.local and (unreached or "couldn't connect" in text):
        why = " (HF_HUB_OFFLINE is set)" if _set_offline() else ""
        return ModelLoadError(
            f"cannot load {name!r}: the Hugging Face hub is unreachable{why} and the model is not "
            f"in the local cache; {_OFFLINE_ALTERNATIVES}"
        )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch off the reports, warnings and progress bars of transformers."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

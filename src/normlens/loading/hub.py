"""Models, tokenizers and peft's adapters from folders and the hub, and what its errors mean."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from normlens.errors import (
    MissingDependencyError,
    ModelLoadError,
    NormLensError,
    is_out_of_memory,
    reason_of,
    require,
    system_reason,
)
from normlens.loading.embedded import (
    DEFAULT,
    EMBEDDED,
    EmbeddedModel,
    cache_folder,
    is_whole,
    writing_whole,
)

# Names of models: which mean folders, and what results call the models in them.


#: How the hub's cache calls the folder of a model: models--someone--name/snapshots/COMMIT
_CACHED = "models--"


def is_local(name: str) -> bool:
    """Whether a name means a local folder rather than a model on the hub."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return True
    try:
        return Path(name).exists()
    except OSError:  # longer than a file's name can be
        return False


def is_embedded(name: str) -> bool:
    """Whether a name is that of an embedded model."""
    # A model in a folder of that name comes first.
    return name in EMBEDDED and not (Path(name) / "config.json").is_file()


def shown_name(name: str) -> str:
    """What results call a model: the last part of a folder's path, any other name as it is.

    Results are passed on, and where a folder lies is nobody else's business.
    """
    if not is_local(name):
        return name
    path = Path(name).expanduser()
    for part in path.parts:
        if part.startswith(_CACHED):
            return part.removeprefix(_CACHED).replace("--", "/")
    # "." and ".." have a name only once they are resolved.
    last = path.name if path.name not in ("", "..") else path.absolute().resolve().name
    return last or "model"


def hush() -> None:
    """Silence import-time log messages of other libraries; for processes that are NormLens's own.

    What transformers imports says things (torchao, about kernels for other GPUs) that are nothing
    about the user's question.
    """
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


# Models from folders and the Hugging Face hub: whether it answers, and what its errors mean.


PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_OFFLINE_ALTERNATIVES = (
    f"without the hub, use an embedded model (load() or --model {DEFAULT}), a folder that "
    "save_pretrained wrote, or a model that is in the cache already"
)


#: What is said where the libraries' own message has to do.
_DAMAGED = (
    "cannot load the model in {name}: {reason} (a file there may be damaged; save or download the "
    "model again)"
)
_NOT_LOADED = (
    "cannot load {name} from the Hugging Face hub: {reason}; check the name, or, "
    + _OFFLINE_ALTERNATIVES
)


@dataclass(frozen=True)
class Origin:
    """The origin of a model's files, and how transformers reads them."""

    name: str  # as errors call it
    place: str  # what transformers is given: a folder, or a name on the hub
    local: bool
    options: dict[str, Any]
    architecture: str | None = None  # of an embedded model, whose configuration may not name it

    @classmethod
    def find(cls, name: str, revision: str | None, trust_remote_code: bool) -> Origin:
        """The origin of a model's name: an embedded one, a folder, the hub, or its cache alone."""
        embedded, local = is_embedded(name), is_local(name)
        require(
            revision is None or not (embedded or local),
            f"revision {revision!r} is for models on the hub; {name!r} is "
            f"{'an embedded model' if embedded else 'a folder'}, so leave it out",
        )
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        if embedded:
            model = EMBEDDED[name]
            weights = model.locate()
            options |= {"local_files_only": True}
            origin = cls(name, str(weights.parent), True, options, model.architecture)
            return origin if weights.suffix != ".gguf" else _converted(origin, model, weights)
        if local:
            name = str(Path(name).expanduser())
        elif not reachable():
            options["local_files_only"] = True
        return cls(name, name, local, options)

    def read(self, kind: Any, otherwise: str = "", **options: Any) -> Any:
        """Have one of transformers' classes read the files; errors are `explained`."""
        # Reading GGUF draws a progress bar that no setting turns off.
        hidden = redirect_stderr(StringIO()) if "gguf_file" in self.options else nullcontext()
        with explained(self, otherwise), quiet_transformers(), hidden:
            return kind.from_pretrained(self.place, **self.options, **options)

    def file(self, name: str) -> Path | None:
        """A file that belongs to the model, if there is one."""
        from transformers.utils import cached_file

        path = cached_file(
            self.place,
            name,
            revision=self.options["revision"],
            local_files_only=self.options.get("local_files_only", False),
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        return None if path is None else Path(path)


def _converted(origin: Origin, model: EmbeddedModel, weights: Path) -> Origin:
    """A GGUF model as a checked copy in safetensors, which loads in a fraction of the time.

    The copy is made once, in the user's cache folder; where it cannot be kept, the GGUF is read.
    """
    gguf = replace(origin, options=origin.options | {"gguf_file": weights.name})
    copy = cache_folder() / f"{model.name}-{model.sha256[:12]}"
    if not is_whole(copy):
        import transformers
        from safetensors import SafetensorError

        print(
            f"normlens: converting {model.name} once; the copy (540 MB) stays in {copy}",
            file=sys.stderr,
        )
        whole = gguf.read(getattr(transformers, model.architecture), dtype="float32")
        tokenizer = gguf.read(transformers.AutoTokenizer)
        # The numbers are float32 now, and the copy is of a plain model.
        whole.hf_quantizer, whole.is_quantized = None, False
        del whole.config.quantization_config
        try:
            with quiet_transformers(), writing_whole(copy) as folder:
                whole.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            reason = system_reason(error)
            print(f"normlens: cannot keep the copy in {copy}: {reason}", file=sys.stderr)
            return gguf
    return replace(origin, place=str(copy))


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
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    if any(map(os.environ.get, PROXIES)):
        return True  # only the proxy can tell

    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout).close()
    except OSError:
        return False
    return True


def state() -> str:
    """Whether models can be fetched from the hub, in words."""
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        return "switched off (HF_HUB_OFFLINE is set)"
    if not reachable():
        return "unreachable; embedded models, local folders and cached models work"
    return "behind a proxy; not tried" if any(map(os.environ.get, PROXIES)) else "reachable"


# What went wrong ---------------------------------------------------------------------------------


class UnexplainedError(ModelLoadError):
    """A failure whose cause only the libraries' own message tells."""


@contextmanager
def explained(origin: Origin, otherwise: str = "") -> Iterator[None]:
    """Turn any error of loading into one line that says what to do.

    Where its cause is not known, `otherwise` is that line, with ``{name}`` and ``{reason}`` in it.
    """
    try:
        yield
    except NormLensError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise  # no fault of the model's
        known = _known_cause(origin, error)
        line = known or otherwise or (_DAMAGED if origin.local else _NOT_LOADED)
        line = line.replace("{name}", repr(origin.name)).replace("{reason}", reason_of(error))
        raise (UnexplainedError(line) if known is None else ModelLoadError(line)) from error


def _known_cause(origin: Origin, error: BaseException) -> str | None:
    """A line for an error of which the libraries' message would mislead, or None."""
    from huggingface_hub import errors, is_offline_mode

    text = str(error).lower()
    chain = [error]  # it and those that led to it
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    said = "\n".join(str(cause).lower() for cause in chain)

    def due_to(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in chain)

    unreached = due_to(errors.LocalEntryNotFoundError) or "couldn't connect" in text
    why = " (HF_HUB_OFFLINE is set)" if is_offline_mode() else ""
    nearest = get_close_matches(origin.name, EMBEDDED, n=1)
    meant = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    causes = {
        "{name} brings Python code of its own, which NormLens does not run unless told to; if you "
        "trust its author, pass trust_remote_code=True (--trust-remote-code)": (
            "trust_remote_code" in text
        ),
        'the config.json of {name} has no "model_type", which says what architecture it is; add it '
        'there (for example "model_type": "bert"), or save the model again with '
        "model.save_pretrained(…)": "`model_type` key" in text,
        "the transformers that is installed does not know the architecture of {name} "
        f'({reason_of(error).split(" but ")[0]}); upgrade it, or check "model_type" in the '
        "config.json": "does not recognize this architecture" in text,
        "the folder {name} holds no weights (model.safetensors or pytorch_model.bin); save the "
        "model there with model.save_pretrained(…)": origin.local and "no file named" in text,
        "the weights in {name} are a pickle that holds more than tensors, or are damaged; NormLens "
        "does not load such files, because they can run code; use safetensors weights": (
            due_to(pickle.UnpicklingError)
        ),
        "loading {name} needs a package that is not installed ({reason}); install it, or load the "
        "model without quantisation": due_to(ImportError),
        "the Hugging Face hub does not accept the token that {name} was asked for with; set "
        "HF_TOKEN to a valid one on every machine, or log in with `hf auth login`": (
            "invalid credentials" in said
        ),
        "{name} is open only to those who accepted its terms; accept them on its page, log in with "
        "`hf auth login`, and try again": due_to(errors.GatedRepoError),
        f"{{name}} has no revision {origin.options.get('revision')!r}; give a branch, a tag or a "
        "commit of it": due_to(errors.RevisionNotFoundError),
        "{name} is neither a folder here nor a possible name on the Hugging Face hub; names look "
        "like 'bert-base-uncased' or 'openai-community/gpt2'": due_to(errors.HFValidationError),
        f"the Hugging Face hub has no model {{name}}{meant}; check the name (or, if it is private, "
        "log in with `hf auth login`)": due_to(errors.RepositoryNotFoundError),
        f"cannot load {{name}}{meant}: the Hugging Face hub is unreachable{why} and the model is "
        f"not in the local cache; {_OFFLINE_ALTERNATIVES}": not origin.local and unreached,
    }
    return next((line for line, holds in causes.items() if holds), None)


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


# Tokenizers and processors: a model's own, or another tokenizer by its name or folder.


#: Files that some tokenizers read with the package sentencepiece.
_SENTENCEPIECE_FILES = [
    *("tokenizer.model", "spiece.model", "spm.model", "source.spm", "sentencepiece.bpe.model")
]
#: Files of which every tokenizer has at least one, and every processor.
_TOKENIZER_FILES = [
    *("tokenizer_config.json", "tokenizer.json", "vocab.txt", "vocab.json"),
    *_SENTENCEPIECE_FILES,
]
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def processor_of(origin: Origin, *, sees: bool) -> Any:
    """What makes a model's input of a picture or a sound; None where nothing does."""
    import transformers

    if not _has_file(origin, _PROCESSOR_FILES) or (sees and find_spec("PIL") is None):
        return None  # whoever gives a picture is told to install Pillow
    return origin.read(
        transformers.AutoImageProcessor if sees else transformers.AutoFeatureExtractor,
        "{name} has no usable processor ({reason}); pass another one (load(model, processor)), or "
        "load it without any (tokenizer=False) and pass tensors",
    )


def tokenizer_of(origin: Origin, *, required: bool = False) -> Any:
    """The tokenizer that comes with a model; None where none does and none is `required`."""
    from transformers import AutoTokenizer

    advice = (
        "save one beside the model with tokenizer.save_pretrained(…), name another one "
        "(load(…, tokenizer=…)), or load the model without any (tokenizer=False) "
        "and pass input_ids=…"
    )
    try:
        tokenizer = origin.read(
            AutoTokenizer, f"{{name}} has no usable tokenizer ({{reason}}); {advice}"
        )
        # Where the files are missing, transformers makes a tokenizer that calls every word unknown.
        if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) > 2:
            return tokenizer
        raise UnexplainedError(
            f"{origin.name!r} has no tokenizer (its vocabulary is empty); {advice}"
        )
    except UnexplainedError as error:
        if find_spec("sentencepiece") is None and _has_file(origin, _SENTENCEPIECE_FILES):
            raise MissingDependencyError(
                f"the tokenizer of {origin.name!r} needs the sentencepiece package; run: pip "
                "install sentencepiece"
            ) from error
        if required or _has_file(origin, _TOKENIZER_FILES):
            raise
        return None


def _has_file(origin: Origin, names: Sequence[str]) -> bool:
    return any(origin.file(name) is not None for name in names)


def named_tokenizer(name: str, trust_remote_code: bool) -> Any:
    """The tokenizer of this name: a hub name, a folder or an embedded model's."""
    if is_local(name) and not is_embedded(name) and not Path(name).expanduser().is_dir():
        raise ModelLoadError(
            f"there is no tokenizer folder at {name!r}; give a folder that "
            "tokenizer.save_pretrained wrote, or a hub name"
        )
    return tokenizer_of(Origin.find(name, None, trust_remote_code), required=True)


# Adapters that peft has saved, alone, and the base model that they belong to.


CONFIG = "adapter_config.json"
#: The classes of transformers for the tasks that peft names.
_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
}
#: The last modules of classifiers; as many classes as their weights have rows.
_CLASSIFIERS = ("classifier.weight", "score.weight", "classifier.out_proj.weight")


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter on the disk or the hub: where it lies, and which model it is for."""

    origin: Origin
    folder: Path
    base: str
    base_revision: str | None
    task: str | None

    @property
    def base_settings(self) -> dict[str, Any]:
        """How the base is read: with the head of the task, whose size the weights tell."""
        import transformers

        kind = getattr(transformers, _CLASSES[self.task]) if self.task in _CLASSES else None
        classes = [size[0] for name, size in self.shapes.items() if name.endswith(_CLASSIFIERS)]
        sized = self.task in ("SEQ_CLS", "TOKEN_CLS") and classes
        return {"kind": kind, **({"num_labels": classes[-1]} if sized else {})}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the adapter's tensors; none where they are no safetensors."""
        from safetensors.torch import load_file  # brings torch, which is slow to import

        path = self.origin.file("adapter_model.safetensors")
        with explained(self.origin):
            tensors = {} if path is None else load_file(path)
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def applied_to(self, model: Any) -> Any:
        """The model with this adapter inside, checked to be all there."""
        # Whatever peft raises, the user's next step is the same.
        unfit = (
            f"the adapter {{name}} does not go onto {self.base!r} ({{reason}}); it may be of "
            "another model, or need another peft"
        )
        with explained(self.origin, unfit), quiet_transformers():
            peft = importlib.import_module("peft")
            wrapped = peft.PeftModel.from_pretrained(model, str(self.folder))
            parts = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        missing = sorted(set(parts) - set(self.shapes)) if self.shapes else []
        if missing:
            raise ModelLoadError(
                f"the adapter {self.origin.name!r} lacks {len(missing)} of its tensors (the first "
                f"is {missing[0]!r}); get it again"
            )
        return wrapped


def saved_adapter(origin: Origin) -> SavedAdapter | None:
    """The adapter that lies under a name, if no whole model does."""
    if origin.local and not (Path(origin.place) / CONFIG).is_file():
        return None
    try:
        whole, path = origin.file("config.json"), origin.file(CONFIG)
    except OSError:  # no name that the hub could have, which loading the model says better
        return None
    if whole is not None or path is None:
        return None
    unread = f"the {CONFIG} of {{name}} cannot be read ({{reason}}); get the adapter again"
    with explained(origin, unread):
        settings = json.loads(path.read_text(encoding="utf-8"))
        base = str(settings["base_model_name_or_path"] or "")
    if not base:
        raise ModelLoadError(
            f"the adapter {origin.name!r} does not name its base model; load that, put the adapter "
            "on it (peft.PeftModel.from_pretrained(model, folder)) and pass the model"
        )
    if find_spec("peft") is None:
        raise MissingDependencyError(
            f"{origin.name!r} is an adapter, which needs the peft package; run: pip install peft"
        )
    beside = path.parent / base
    base = str(beside) if not Path(base).exists() and beside.is_dir() else base
    revision = None if is_local(base) else settings.get("revision")
    return SavedAdapter(origin, path.parent, base, revision, settings.get("task_type"))

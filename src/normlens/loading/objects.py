"""Models inside objects of other libraries, peft adapters, heads and processors."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from normlens.errors import MissingDependencyError, ModelLoadError, UnsupportedModelError, reason_of
from normlens.loading.hub import Origin, is_local, known_cause, quiet_transformers
from normlens.loading.sentences import Pooling, pooling_of
from normlens.models.base import head_method
from normlens.models.parts import ImageEncoder, SignalEncoder
from normlens.models.unwrapping import body as body_of
from normlens.models.unwrapping import body_class

# Objects of other libraries that hold a model: what of them a lens takes over.
#
# They are told by the names of their classes, because none of these libraries has to be installed.


@dataclass(frozen=True)
class Held:
    """The model inside an object, with what the object does to texts."""

    model: nn.Module
    tokenizer: Any = None
    pooling: Callable[[], Pooling] = Pooling
    max_tokens: int | None = None  # where the object cuts a text, if before the model's own limit


def held_by(source: Any) -> Held | None:
    """What a user's object holds; None if it is no model and nothing that is known to hold one."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    if "sentence_transformers.CrossEncoder" in kinds:
        return _cross_encoder(source)
    if {"sentence_transformers.SentenceTransformer", "sentence_transformers.BaseModel"} & kinds:
        return _sentence_encoder(source)
    if "transformers.Pipeline" in kinds:
        return _pipeline(source)
    if "transformers.Trainer" in kinds:
        reads = getattr(source, "processing_class", None) or getattr(source, "tokenizer", None)
        return Held(source.model, reads if hasattr(reads, "get_vocab") else None)
    return Held(source) if isinstance(source, nn.Module) else None


def _sentence_encoder(sentences: Any) -> Held:
    """sentence-transformers' models: a Transformer module, then what makes one vector of it."""
    model = getattr(next(iter(sentences), None), "auto_model", None)
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"this {type(sentences).__name__} begins with no transformers model in torch, so it "
            "has no layers to look into"
        )
    return Held(model, sentences.tokenizer, partial(pooling_of, sentences))


def _cross_encoder(encoder: Any) -> Held:
    """sentence-transformers' classifiers of pairs."""
    model = encoder.model
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError("this CrossEncoder holds no transformers model in torch")
    limit = getattr(encoder, "max_seq_length", None) or getattr(encoder, "max_length", None)
    if isinstance(encoder, nn.Sequential) and len(encoder) > 1:
        # Other modules make the score, so it is not the one of the model's own head.
        model = getattr(model, "base_model", model)
    return Held(model, encoder.tokenizer, max_tokens=limit)


def _pipeline(pipeline: Any) -> Held:
    """transformers' pipelines, which may cut texts as they were told to."""
    if not isinstance(pipeline.model, nn.Module):
        raise UnsupportedModelError(
            f"the model of this {type(pipeline).__name__} is no torch module; load it by its name"
        )
    settings = dict(getattr(pipeline, "_preprocess_params", {}))
    settings |= settings.pop("tokenizer_kwargs", None) or {}
    limit = settings.get("max_length") if settings.get("truncation") else None
    names = ("tokenizer", "image_processor", "feature_extractor")
    readers = (getattr(pipeline, name, None) for name in names)
    return Held(pipeline.model, next((r for r in readers if r is not None), None), max_tokens=limit)


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
    def model_class(self) -> Any:
        """The class that loads the base with the head of the adapter's task; None: not named."""
        import transformers

        return getattr(transformers, _CLASSES[self.task]) if self.task in _CLASSES else None

    @property
    def head_settings(self) -> dict[str, Any]:
        """The settings of the base's head that only the adapter's weights tell."""
        classes = [shape[0] for name, shape in self.shapes().items() if name.endswith(_CLASSIFIERS)]
        return {"num_labels": classes[-1]} if classes else {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The adapter's tensors; none where they are no safetensors."""
        path = self.origin.file("adapter_model.safetensors")
        if path is None:
            return {}
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                return {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"the weights of the adapter {self.origin.name!r} cannot be read "
                f"({reason_of(error)}); get it again"
            ) from error

    def applied_to(self, model: Any) -> Any:
        """The model with this adapter inside, checked to be all there."""
        peft = _peft(self.origin.name)
        try:
            with quiet_transformers():
                wrapped = peft.PeftModel.from_pretrained(model, str(self.folder))
                parts = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        # Whatever peft raises, the user's next step is the same.
        except Exception as error:
            raise ModelLoadError(
                f"the adapter {self.origin.name!r} does not go onto {self.base!r} "
                f"({reason_of(error)}); it may be of another model, or need another peft"
            ) from error
        held = self.shapes()
        missing = sorted(set(parts) - set(held)) if held else []
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
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        base = str(settings["base_model_name_or_path"] or "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(
            f"the {CONFIG} of {origin.name!r} cannot be read ({reason_of(error)}); get the adapter "
            "again"
        ) from error
    if not base:
        raise ModelLoadError(
            f"the adapter {origin.name!r} does not name its base model; load that, put the adapter "
            "on it (peft.PeftModel.from_pretrained(model, folder)) and pass the model"
        )
    _peft(origin.name)
    beside = path.parent / base
    base = str(beside) if not Path(base).exists() and beside.is_dir() else base
    revision = None if is_local(base) else settings.get("revision")
    return SavedAdapter(origin, path.parent, base, revision, settings.get("task_type"))


def _peft(name: str) -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingDependencyError(
            f"{name!r} is an adapter, which needs the peft package; run: pip install peft"
        ) from error


# Which class of transformers loads a checkpoint with its head, and whether all of it was there.


def headed_class(architectures: Sequence[str], config: Any = None) -> Any:
    """The class with the head that a checkpoint names, or the body's where that is not described.

    A class that comes with a checkpoint as code has no head that an adapter could describe.
    """
    import transformers

    if len(architectures) == 1 and head_method(architectures[0]) is not None:
        return getattr(transformers, architectures[0], transformers.AutoModel)
    return transformers.AutoModel if config is None else body_class(config)


def complete_part(name: str, model: Any, report: Any) -> Any:
    """The model if its checkpoint holds all of it, else its body if it holds that.

    Weights that the files lack, or that do not fit, would silently be random numbers.
    """
    body = body_of(model)
    inside = f"{model.base_model_prefix}." if body is not model else ""
    headless = False
    for what, keys in (
        ("lack", report.get("missing_keys", ())),
        ("have the wrong shape for", [key for key, *_ in report.get("mismatched_keys", ())]),
    ):
        # No map needs the pooler; a classifier does.
        wrong = sorted(key for key in keys if key.startswith(inside) and "pooler" not in key)
        if wrong:
            raise ModelLoadError(
                f"the weights of {name!r} {what} {len(wrong)} of the model's tensors (the first is "
                f"{wrong[0]!r}); the checkpoint is incomplete or of another model, get it again"
            )
        headless = headless or bool(list(keys))
    return body if headless else model


# Processors: what makes a model's input of a picture or a sound.


#: Files of which every processor has at least one.
_FILES = ("preprocessor_config.json", "processor_config.json")


def processor_of(origin: Origin, adapter: type[SignalEncoder]) -> Any:
    """The processor that comes with a model; None where none does: tensors need none."""
    import transformers

    sees = issubclass(adapter, ImageEncoder)
    if not origin.has_file(_FILES):
        return None
    if sees and find_spec("PIL") is None:
        return None  # whoever gives a picture is told to install it
    kind = transformers.AutoImageProcessor if sees else transformers.AutoFeatureExtractor
    try:
        return origin.read(kind)
    # Whatever the many classes raise, the user's next step is the same.
    except Exception as error:
        if (explained := known_cause(origin, error)) is not None:
            raise explained from error
        raise ModelLoadError(
            f"{origin.name!r} has no usable processor ({reason_of(error)}); pass another one "
            "(load(model, processor)), or load it without any (tokenizer=False) and pass tensors"
        ) from error

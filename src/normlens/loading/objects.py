"""Models inside objects of other libraries, and adapters that peft has saved."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from normlens.errors import MissingDependencyError, ModelLoadError, UnsupportedModelError
from normlens.loading.hub import Origin, explained, is_local, quiet_transformers
from normlens.loading.sentences import Pooling, pooling_of

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
        if isinstance(source, nn.Sequential) and len(source) > 1:
            # Other modules make the score, so it is not the one of the model's own head.
            model = getattr(model, "base_model", model)
        held = Held(model, source.tokenizer, max_tokens=limit)
    elif {"sentence_transformers.SentenceTransformer", "sentence_transformers.BaseModel"} & kinds:
        # A Transformer module, then what makes one vector of it.
        model = getattr(next(iter(source), None), "auto_model", None)
        held = Held(model, getattr(source, "tokenizer", None), partial(pooling_of, source))
    elif "transformers.Pipeline" in kinds:
        held = _pipeline(source)
    elif "transformers.Trainer" in kinds:
        reader = getattr(source, "processing_class", None) or getattr(source, "tokenizer", None)
        held = Held(source.model, reader if hasattr(reader, "get_vocab") else None)
    elif isinstance(source, nn.Module):
        held = Held(source)
    else:
        return None
    if not isinstance(held.model, nn.Module):
        raise UnsupportedModelError(
            f"this {type(source).__name__} holds no transformers model in torch, so it has no "
            "layers to look into; load a model by its name"
        )
    return held


def _pipeline(pipeline: Any) -> Held:
    """transformers' pipelines, which may cut texts as they were told to."""
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

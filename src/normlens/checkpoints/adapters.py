"""Adapters that peft has saved, alone, and the base model that they belong to."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from normlens.checkpoints.hub import Origin, file_of, quiet_transformers
from normlens.errors import MissingDependencyError, ModelLoadError, reason_of
from normlens.model_names import is_local

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
        path = file_of(self.origin, "adapter_model.safetensors")
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
    if origin.local and not (Path(origin.name) / CONFIG).is_file():
        return None
    try:
        whole, path = file_of(origin, "config.json"), file_of(origin, CONFIG)
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

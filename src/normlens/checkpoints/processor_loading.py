"""Processors: what makes a model's input of a picture or a sound."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from normlens.checkpoints.hub import Origin, file_of, known_cause, quiet_transformers
from normlens.errors import ModelLoadError, reason_of
from normlens.models.signals import ImageEncoder, SignalEncoder

#: Files of which every processor has at least one.
_FILES = ("preprocessor_config.json", "processor_config.json")


def processor_of(origin: Origin, adapter: type[SignalEncoder]) -> Any:
    """The processor that comes with a model; None where none does: tensors need none."""
    import transformers

    sees = issubclass(adapter, ImageEncoder)
    if not any(file_of(origin, name) is not None for name in _FILES):
        return None
    if sees and find_spec("PIL") is None:
        return None  # whoever gives a picture is told to install it
    kind = transformers.AutoImageProcessor if sees else transformers.AutoFeatureExtractor
    try:
        with quiet_transformers():
            return kind.from_pretrained(origin.name, **origin.options)
    # Whatever the many classes raise, the user's next step is the same.
    except Exception as error:
        if (explained := known_cause(origin, error)) is not None:
            raise explained from error
        raise ModelLoadError(
            f"{origin.name!r} has no usable processor ({reason_of(error)}); pass another one "
            "(load(model, processor)), or load it without any (tokenizer=False) and pass tensors"
        ) from error

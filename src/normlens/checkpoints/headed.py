"""Which class of transformers loads a checkpoint with its head, and whether all of it was there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.errors import ModelLoadError
from normlens.models.classes import body_class
from normlens.models.heads import has_known_head, is_generating
from normlens.models.unwrapping import body as body_of


def headed_class(architectures: Sequence[str], config: Any = None) -> Any:
    """The class with the head that a checkpoint names, or the body's where that is not described.

    A class that comes with a checkpoint as code has no head that an adapter could describe.
    """
    import transformers

    if len(architectures) == 1 and (
        has_known_head(architectures[0]) or is_generating(architectures[0])
    ):
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

"""Objects of other libraries that hold a model: what of them a lens takes over.

They are told by the names of their classes, because none of these libraries has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from normlens.checkpoints.sentences import Pooling, pooling_of
from normlens.errors import UnsupportedModelError


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

"""Which head a model has on top, and how an adapter's description of it is asked for.

transformers names a model by its task. An adapter describes the heads of its family, one method for
each task; decoders share theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from normlens.components import Norm
from normlens.errors import UnsupportedModelError
from normlens.heads import Dense, Elementwise, Head, HeadStep
from normlens.models.modules import scaled
from normlens.models.reading import UnreadableModule, read_linear

if TYPE_CHECKING:
    from normlens.models.base import Adapter

#: How the name of a model's class ends, and the adapter's method that describes such a head.
_METHODS = {
    "ForCausalLM": "causal_head",
    "LMHeadModel": "causal_head",
    "ForMaskedLM": "masked_head",
    "ForPreTraining": "masked_head",
    "ForSequenceClassification": "sequence_head",
    "ForTokenClassification": "token_head",
    "ForImageClassification": "image_head",
    "ForImageClassificationWithTeacher": "teacher_head",
    "ForAudioFrameClassification": "token_head",
    "ForCTC": "ctc_head",
}


#: How the names of encoder–decoders with a head end.
_GENERATING = ("ForConditionalGeneration", "MTModel")


class NoHead(UnsupportedModelError):
    """A model whose scores cannot be explained, because nothing on top of it gives any."""


def read_head(adapter: Adapter) -> Head:
    """The head of an adapter's model, or an error that says what is in the way."""
    whole = adapter.whole
    name = type(whole).__name__
    # A T5 with its head is no body with a head on top, but one module.
    if whole is adapter.model and not (adapter.two_stacks and is_generating(name)):
        other = "ask for its vectors (direction=…), compare two texts (cosine), or "
        raise NoHead(
            f"{name} has no head, so it says nothing that could be explained; "
            f"{'' if adapter.two_stacks else other}load a model with a head"
        )
    with torch.no_grad():
        try:
            head = adapter.head(whole)
        except UnreadableModule as error:
            path = next((n for n, m in whole.named_modules() if m is error.module), "a module")
            raise UnsupportedModelError(error.line(path)) from error
        except AttributeError as error:
            raise _undescribed(adapter, f"{name} does not look as expected: {error}") from error
    if head is None:
        raise _undescribed(adapter, f"the head of {name} is not described")
    return head


def described_by_task(adapter: Adapter, whole: Any) -> Head | None:
    """The head that the adapter's method for the task of this class describes."""
    for kind in type(whole).__mro__:
        for ending, method in _METHODS.items():
            if kind.__name__.endswith(ending):
                describe = getattr(adapter, method, None)  # few families see or hear
                return None if describe is None else describe(whole)
    return None


def has_known_head(class_name: str) -> bool:
    """Whether a class of this name has a head of a task that adapters describe."""
    return class_name.endswith(tuple(_METHODS))


def is_generating(class_name: str) -> bool:
    """Whether a class of this name is an encoder–decoder with a head, which can generate."""
    return class_name.endswith(_GENERATING)


def _undescribed(adapter: Adapter, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{why}; write `head` in {type(adapter).__name__} or a subclass of it, which returns a "
        "normlens.heads.Head (`normlens help adapters` has an example)"
        + ("" if adapter.two_stacks else ", or explain a vector (direction=…)")
    )


# Helpers that heads are written with --------------------------------------------------------------


def dense(module: Any) -> Dense:
    """A dense map."""
    return Dense(read_linear(module))


def transform(module: Any, activation: str, norm: Norm) -> tuple[HeadStep, ...]:
    """What most masked language models do before they compare with words."""
    return (dense(module), Elementwise(activation), norm)


def scaled_scores(head: Head | None, factor: float) -> Head | None:
    """A head whose scores the model multiplies by `factor`."""
    if head is None or head.output is None:
        return head
    return replace(head, output=scaled(head.output, factor))


def class_names(config: Any) -> dict[int, str]:
    """The names of a classifier's classes."""
    return {int(index): str(name) for index, name in (config.id2label or {}).items()}

"""Sentence encoders: how a model's vectors become one, as sentence-transformers' files say.

``modules.json`` lists what stands behind the model: Pooling, Dense maps with an activation, and
Normalize, which a cosine does anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from normlens.errors import ModelLoadError, UnsupportedModelError, reason_of
from normlens.layers import FIRST, LAST, MEAN, SENTENCES, Dense, Elementwise, Head, HeadStep, Linear
from normlens.models.reading import linear

#: Finds a file that lies beside a model's weights; None where there is none.
Finder = Callable[[str], Path | None]

#: What sentence-transformers calls the ways of pooling that are linear in the vectors.
_MODES = {"mean": MEAN, "mean_tokens": MEAN, "cls": FIRST, "cls_token": FIRST, "lasttoken": LAST}
_ACTIVATIONS = {
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_NOT_SAID = (
    "the mean of all tokens' vectors is taken, because the model does not say how it makes one "
    "vector of them (it has no modules.json)"
)
#: Parts of a description that a cosine passes by: it divides by the length itself.
_PASSED = ("Transformer", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """From the vectors of a text to its one vector."""

    reads: str = MEAN
    steps: tuple[HeadStep, ...] = ()
    max_tokens: int | None = None  # where sentence-transformers cuts a text
    lower_case: bool = False  # whether it puts a text into lower case first
    note: str | None = _NOT_SAID  # what a user should know about it

    def head(self, end: Sequence[HeadStep], device: torch.device) -> Head:
        """The same as a head behind a body that ends with the steps `end`."""
        steps = tuple(_moved(step, device) for step in self.steps)
        return Head(SENTENCES, self.reads, tuple(end), steps, note=self.note)


def read_pooling(find: Finder) -> Pooling:
    """What the files beside a model say of its sentence vectors; the mean where there are none."""
    listed = find("modules.json")
    if listed is None:
        return Pooling()

    def parts() -> Iterator[Part]:
        for folder, kind in _modules(listed):
            settings = _json(_needed(find, f"{folder}/config.json")) if kind not in _PASSED else {}
            yield Part(kind, settings, partial(_weights, find, folder))

    reads, steps = _behind(parts(), str(listed))
    return Pooling(reads, steps, *_transformer(find))


def pooling_of(sentences: Any) -> Pooling:
    """What a `SentenceTransformer` does with the vectors of its model."""
    first, *behind = sentences
    parts = [
        Part(
            type(module).__name__,
            module.get_config_dict() if hasattr(module, "get_config_dict") else {},
            partial(_linear_of, module),
        )
        for module in behind
    ]
    reads, steps = _behind(parts, type(sentences).__name__)
    if (width := getattr(sentences, "truncate_dim", None)) is not None:
        dense = [step.linear.weight.shape[1] for step in steps if isinstance(step, Dense)]
        whole = (dense or [first.auto_model.config.hidden_size])[-1]
        steps = (*steps, Dense(Linear(torch.eye(whole, min(width, whole)))))
    name = getattr(sentences, "default_prompt_name", None)
    return Pooling(
        reads,
        steps,
        getattr(sentences, "max_seq_length", None),
        bool(getattr(first, "do_lower_case", False)),
        _about_prompt(name if getattr(sentences, "prompts", {}).get(name) else None),
    )


def _linear_of(module: Any) -> Linear:
    return linear(module.linear)


class Part(NamedTuple):
    """A module of a sentence encoder: its kind, its settings, and its linear map if it has one."""

    kind: str
    settings: Mapping[str, Any]
    linear: Callable[[], Linear]


def _behind(parts: Iterable[Part], whose: str) -> tuple[str, tuple[HeadStep, ...]]:
    """Which vectors are read, and the steps behind; what a cosine does anyway is left out."""
    reads: str | None = None
    steps: list[HeadStep] = []
    normalised = False
    for part in parts:
        if part.kind == "Pooling":
            reads = _mode(part.settings)
        elif part.kind == "Dense" and reads is not None:
            if normalised:
                raise UnsupportedModelError(
                    "Normalize stands before Dense in this sentence encoder, which is not described"
                )
            steps += _dense(part)
        elif part.kind not in _PASSED:
            raise UnsupportedModelError(
                f"the module {part.kind!r} of this sentence encoder ({whose}) is not "
                "described there; cosines go through Pooling, then Dense, then Normalize"
            )
        normalised = normalised or part.kind == "Normalize"
    if reads is None:
        raise UnsupportedModelError(f"{whose} names no Pooling, so the model gives no one vector")
    return reads, tuple(steps)


def _modules(path: Path) -> list[tuple[str, str]]:
    """The folder and the kind of every module, in order."""
    modules = _json(path)
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise ModelLoadError(f"{str(path)!r} does not list modules; get the model again")
    return [
        (str(one.get("path", "")), str(one.get("type", "")).rpartition(".")[2]) for one in modules
    ]


def _mode(settings: Mapping[str, Any]) -> str:
    """Which vectors are pooled; newer files name the mode, older ones have a flag for each."""
    named = settings.get("pooling_mode")
    if named is None:
        modes = [name for name, on in settings.items() if name.startswith("pooling_mode_") and on]
        modes = [name.removeprefix("pooling_mode_") for name in modes]
    else:
        modes = named if isinstance(named, list) else str(named).split("+")
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedModelError(
            f"this sentence encoder pools by {' and '.join(map(str, modes)) or 'nothing'}; cosines "
            "are taken apart for mean, cls and lasttoken, one of them alone"
        )
    return _MODES[modes[0]]


def _dense(part: Part) -> list[HeadStep]:
    """A Dense module as a map and its activation."""
    if part.settings.get("use_residual"):
        raise UnsupportedModelError(
            "a Dense module of this sentence encoder has a residual connection, which is not "
            "described"
        )
    reads = part.settings.get("module_input_name") or "sentence_embedding"
    if reads != "sentence_embedding":
        raise UnsupportedModelError(
            f"a Dense module of this sentence encoder reads {reads!r}, which is not described; "
            "cosines go through Pooling, then Dense"
        )
    linear = part.linear()
    name = str(part.settings.get("activation_function", "")).rpartition(".")[2]
    if name == "Identity":
        return [Dense(linear)]
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"the activation {name!r} of this sentence encoder's Dense module is not described; "
            f"described are {', '.join(_ACTIVATIONS)} and Identity"
        )
    return [Dense(linear), Elementwise(_ACTIVATIONS[name])]


def _weights(find: Finder, folder: str) -> Linear:
    """The linear map of a Dense module in its file."""
    safe = find(f"{folder}/model.safetensors")
    path = safe or _needed(find, f"{folder}/pytorch_model.bin")
    try:
        weights = load_file(path) if safe else torch.load(path, "cpu", weights_only=True)
        return Linear(weights["linear.weight"].T, weights.get("linear.bias"))
    except (SafetensorError, OSError, KeyError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"cannot read the weights in {str(path)!r} ({reason_of(error)})"
        ) from error


def _transformer(find: Finder) -> tuple[int | None, bool, str | None]:
    """Where a text is cut, whether it is lower-cased, and what is said about prompts."""
    path, about = find("sentence_bert_config.json"), find("config_sentence_transformers.json")
    settings = _json(path) if path is not None else {}
    name = _json(about).get("default_prompt_name") if about is not None else None
    lower = bool(settings.get("do_lower_case"))
    return settings.get("max_seq_length"), lower, _about_prompt(name)


def _about_prompt(name: str | None) -> str | None:
    if name is None:
        return None
    return f"the default prompt {name!r} of this sentence encoder is not put before the texts"


def _needed(find: Finder, name: str) -> Path:
    path = find(name)
    if path is None:
        raise ModelLoadError(
            f"this sentence encoder names {name!r} in its modules.json, but the file is not there; "
            "get the model again"
        )
    return path


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {str(path)!r} ({reason_of(error)})") from error


def _moved(step: HeadStep, device: torch.device) -> HeadStep:
    if not isinstance(step, Dense):
        return step
    bias = step.linear.bias
    return Dense(Linear(step.linear.weight.to(device), None if bias is None else bias.to(device)))

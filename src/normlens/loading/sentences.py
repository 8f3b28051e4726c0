"""Sentence encoders: how a model's vectors become one, as sentence-transformers' files say.

``modules.json`` lists what stands behind the model: Pooling, Dense maps with an activation, and
Normalize, which a cosine does anyway; the files beside it name prompts and a similarity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from normlens.errors import ModelLoadError, UnsupportedModelError
from normlens.layers import FIRST, LAST, MEAN, SENTENCES, Dense, Elementwise, Head, HeadStep, Linear
from normlens.loading.hub import Origin, explained
from normlens.models.reading import linear

#: A module of a sentence encoder: its kind, its settings, and its linear map if it has one.
Module = tuple[str, Mapping[str, Any], Callable[[], Linear]]

#: What sentence-transformers calls the ways of pooling that are linear in the vectors.
_MODES = {"mean": MEAN, "mean_tokens": MEAN, "cls": FIRST, "cls_token": FIRST, "lasttoken": LAST}
#: Activations behind a Dense module that are described, beside Identity, which is none.
_ACTIVATIONS = ("Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
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
    normalized: bool = False  # whether the vector is divided by its length
    cut: Dense | None = None  # what keeps the first numbers of the vector alone
    similarity: str = "cosine"  # of two vectors, as sentence-transformers calls it
    query_prompt: str = ""
    document_prompt: str = ""
    pools_prompt: bool = True  # whether a prompt's tokens are pooled, too

    @property
    def truncate_dim(self) -> int | None:
        """How many numbers of the vector are kept; None: all."""
        return None if self.cut is None else self.cut.linear.weight.shape[1]

    def head(self, end: Sequence[HeadStep], device: torch.device) -> Head:
        """The same as a head behind a body that ends with the steps `end`."""
        steps: list[HeadStep] = []
        for step in (*self.steps, self.cut):
            if isinstance(step, Dense):
                weight, bias = step.linear.weight, step.linear.bias
                step = Dense(Linear(weight.to(device), None if bias is None else bias.to(device)))
            if step is not None:
                steps.append(step)
        return Head(SENTENCES, self.reads, tuple(end), tuple(steps), note=self.note)


def read_pooling(origin: Origin) -> Pooling:
    """What the files beside a model say of its sentence vectors; the mean where there are none."""
    if origin.file("modules.json") is None:
        return Pooling()
    modules: list[Module] = []
    unread = "the modules.json of {name} does not list modules ({reason}); get the model again"
    with explained(origin, unread):
        for one in _json(origin, "modules.json"):
            folder, kind = str(one.get("path", "")), str(one.get("type", "")).rpartition(".")[2]
            settings = {} if kind in _PASSED else _json(origin, f"{folder}/config.json")
            modules.append((kind, settings, partial(_weights, origin, folder)))
    settings = _json(origin, "sentence_bert_config.json", {})
    return _described(
        modules,
        "modules.json",
        settings | _json(origin, "config_sentence_transformers.json", {}),
    )


def pooling_of(sentences: Any) -> Pooling:
    """What a `SentenceTransformer` does with the vectors of its model."""
    first, *behind = sentences
    modules: list[Module] = []
    for module in behind:
        settings = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        modules.append(
            (type(module).__name__, settings, partial(linear, getattr(module, "linear", None)))
        )
    names = ("max_seq_length", "default_prompt_name", "prompts", "similarity_fn_name")
    settings = {name: getattr(sentences, name, None) for name in names}
    settings["do_lower_case"] = getattr(first, "do_lower_case", False)
    pooling = _described(modules, type(sentences).__name__, settings)
    if (width := getattr(sentences, "truncate_dim", None)) is not None:
        dense = [step.linear.weight.shape[1] for step in pooling.steps if isinstance(step, Dense)]
        whole = (dense or [first.auto_model.config.hidden_size])[-1]
        pooling = replace(pooling, cut=Dense(Linear(torch.eye(whole, min(width, whole)))))
    return pooling


def _described(modules: Sequence[Module], whose: str, settings: Mapping[str, Any]) -> Pooling:
    """The pooling that modules and the settings beside them describe."""
    reads, steps = _behind(modules, whose)
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    pooling = next(own for kind, own, _ in modules if kind == "Pooling")
    return Pooling(
        reads,
        steps,
        settings.get("max_seq_length"),
        bool(settings.get("do_lower_case")),
        _about_prompt(default if prompts.get(default) else None),
        normalized=any(kind == "Normalize" for kind, *_ in modules),
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
        # As encode_query and encode_document choose them: a saved "passage" is not among these.
        query_prompt=str(prompts.get("query") or ""),
        document_prompt=str(prompts.get("document") or ""),
        pools_prompt=bool(pooling.get("include_prompt", True)),
    )


def _behind(modules: Iterable[Module], whose: str) -> tuple[str, tuple[HeadStep, ...]]:
    """Which vectors are read, and the steps behind; what a cosine does anyway is left out."""
    reads: str | None = None
    steps: list[HeadStep] = []
    passed: list[str] = []
    for kind, settings, linear_map in modules:
        if kind == "Pooling":
            reads = _mode(settings)
        elif kind == "Dense" and reads is not None:
            if "Normalize" in passed:
                raise _undescribed("Normalize before Dense")
            steps += _dense(settings, linear_map)
        elif kind not in _PASSED:
            raise _undescribed(f"a module {kind!r} in this place")
        passed.append(kind)
    if reads is None:
        raise UnsupportedModelError(f"{whose} names no Pooling, so the model gives no one vector")
    return reads, tuple(steps)


def _mode(settings: Mapping[str, Any]) -> str:
    """Which vectors are pooled; newer files name the mode, older ones have a flag for each."""
    named = settings.get("pooling_mode")
    if named is None:
        modes = [name for name, on in settings.items() if name.startswith("pooling_mode_") and on]
        modes = [name.removeprefix("pooling_mode_") for name in modes]
    else:
        modes = named if isinstance(named, list) else str(named).split("+")
    if len(modes) != 1 or modes[0] not in _MODES:
        raise _undescribed(f"a pooling by {' and '.join(map(str, modes)) or 'nothing'}")
    return _MODES[modes[0]]


def _dense(settings: Mapping[str, Any], linear_map: Callable[[], Linear]) -> list[HeadStep]:
    """A Dense module as a map and its activation."""
    if settings.get("use_residual"):
        raise _undescribed("a Dense module with a residual connection")
    reads = settings.get("module_input_name") or "sentence_embedding"
    if reads != "sentence_embedding":
        raise _undescribed(f"a Dense module that reads {reads!r}")
    name = str(settings.get("activation_function", "")).rpartition(".")[2]
    if name not in (*_ACTIVATIONS, "Identity"):
        raise _undescribed(f"a Dense module with the activation {name!r}")
    dense = Dense(linear_map())
    return [dense] if name == "Identity" else [dense, Elementwise(name.lower())]


def _undescribed(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"this sentence encoder has {what}, which is not described; cosines go through Pooling "
        "(mean, cls or lasttoken, one of them alone), then Dense (with "
        f"{', '.join(_ACTIVATIONS)} or Identity), then Normalize"
    )


def _weights(origin: Origin, folder: str) -> Linear:
    """The linear map of a Dense module in its file."""
    path = _needed(origin, f"{folder}/model.safetensors", f"{folder}/pytorch_model.bin")
    with explained(origin, f"cannot read the weights in {str(path)!r} ({{reason}})"):
        is_safe = path.suffix == ".safetensors"
        weights = load_file(path) if is_safe else torch.load(path, "cpu", weights_only=True)
        return Linear(weights["linear.weight"].T, weights.get("linear.bias"))


def _about_prompt(name: str | None) -> str | None:
    if name is None:
        return None
    return f"the default prompt {name!r} of this sentence encoder is not put before the texts"


def _needed(origin: Origin, *names: str) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (path := origin.file(name)) is not None:
            return path
    raise ModelLoadError(
        f"this sentence encoder names {names[-1]!r} in its modules.json, but the file is not "
        "there; get the model again"
    )


def _json(origin: Origin, name: str, default: Any = None) -> Any:
    """What a file holds; without a `default` it has to be there."""
    if default is not None and origin.file(name) is None:
        return default
    path = _needed(origin, name)
    with explained(origin, f"cannot read {str(path)!r} ({{reason}})"):
        return json.loads(path.read_text(encoding="utf-8"))

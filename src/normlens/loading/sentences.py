"""Search models: what is made of a model's vectors, as sentence-transformers' files say.

``modules.json`` lists what stands behind the model: Pooling, Dense maps with an activation, and
Normalize, which a cosine does anyway; SpladePooling of a sparse model, MultiVectorMask of one with
a vector per token. The files beside it name prompts and a similarity. An object of
sentence-transformers or pylate says the same by its modules.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from normlens.errors import MissingDependencyError, ModelLoadError, UnsupportedModelError
from normlens.layers import (
    ANY,
    FIRST,
    LAST,
    MEAN,
    SENTENCES,
    Dense,
    Elementwise,
    Head,
    HeadStep,
    Linear,
)
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
_POOLED = "sentence_embedding"


@dataclass(frozen=True)
class SparseVectors:
    """Vectors over the vocabulary, as SPLADE makes them: ``max_i log(1 + relu(z_i))``."""

    pools: str = "max"  # or "sum"
    twice: bool = False  # whether the logarithm is taken twice
    #: of an inference-free query side: each word's weight, instead of what the model says
    query_weights: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TokenVectors:
    """A vector per token, as ColBERT makes them; each token of a query takes its best match."""

    skipped: tuple[str, ...] = ()  # tokens that are not scored
    skipped_in: tuple[str, ...] = ("document",)
    expansion: Mapping[str, Any] | None = None  # of queries: length, attend, token, strategy
    mean: bool = False  # whether the score is divided by the number of the query's tokens


@dataclass(frozen=True)
class BothTexts:
    """One score of both texts at once: a classifier's, or that of two next tokens."""

    true_id: int | None = None  # the next token whose logit is the score
    false_id: int | None = None  # another one, whose logit is taken away
    chat: Mapping[str, Any] = field(default_factory=dict)  # options of the chat template


@dataclass(frozen=True)
class Pooling:
    """From the vectors of a text to its one vector, or to what `search` says."""

    reads: str = MEAN
    steps: tuple[HeadStep, ...] = ()
    max_tokens: int | None = None  # where sentence-transformers cuts a text
    max_query_tokens: int | None = None  # where that is elsewhere in a query
    lower_case: bool = False  # whether it puts a text into lower case first
    note: str | None = _NOT_SAID  # what a user should know about it
    normalized: bool = False  # whether the vector is divided by its length
    cut: Dense | None = None  # what keeps the first numbers of the vector alone
    similarity: str = "cosine"  # of two vectors, as sentence-transformers calls it
    query_prompt: str = ""
    document_prompt: str = ""
    pools_prompt: bool = True  # whether a prompt's tokens are pooled, too
    search: SparseVectors | TokenVectors | BothTexts | None = None  # None: one vector

    @property
    def truncate_dim(self) -> int | None:
        """How many numbers of the vector are kept; None: all."""
        return None if self.cut is None else self.cut.linear.weight.shape[1]

    def head(self, end: Sequence[HeadStep], device: torch.device) -> Head:
        """The same as a head behind a body that ends with the steps `end`."""
        if self.search is not None:
            raise UnsupportedModelError(
                "this search model does not make one vector of a text, so there is no cosine; ask "
                "for the score of a query and a document: lens.score(query, document)"
            )
        return Head(SENTENCES, self.reads, tuple(end), self.steps_on(device), note=self.note)

    def steps_on(self, device: torch.device) -> tuple[HeadStep, ...]:
        """The steps behind the model, on its device."""
        steps: list[HeadStep] = []
        for step in (*self.steps, self.cut):
            if isinstance(step, Dense):
                weight, bias = step.linear.weight, step.linear.bias
                step = Dense(Linear(weight.to(device), None if bias is None else bias.to(device)))
            if step is not None:
                steps.append(step)
        return tuple(steps)


def read_pooling(origin: Origin) -> Pooling:
    """What the files beside a model say of its sentence vectors; the mean where there are none."""
    if origin.file("modules.json") is None:
        if _json(origin, "config.json", {}).get("architectures") == ["HF_ColBERT"]:
            raise UnsupportedModelError(
                f"{origin.name} is a ColBERT in Stanford's files; give it as an object of "
                f"sentence-transformers: normlens.load(MultiVectorEncoder({origin.name!r}))"
            )
        return Pooling()
    modules: list[Module] = []
    unread = "the modules.json of {name} does not list modules ({reason}); get the model again"
    with explained(origin, unread):
        for one in _json(origin, "modules.json"):
            folder, kind = str(one.get("path", "")), str(one.get("type", "")).rpartition(".")[2]
            settings: dict[str, Any] = {}
            if kind != "Transformer":
                optional = settings if kind == "Normalize" else None
                settings = _json(origin, f"{folder}/config.json", optional)
            modules.append((kind, settings, partial(_weights, origin, folder)))
    settings = _json(origin, "sentence_bert_config.json", {})
    settings |= _json(origin, "config_sentence_transformers.json", {})
    return _described(modules, "modules.json", settings)


def saved_router(source: object, trust_remote_code: bool = False) -> Any:
    """The object that sentence-transformers makes of a folder with a `Router`; None of others."""
    folder = Path(source).expanduser() if isinstance(source, str | os.PathLike) else None
    if folder is None or not os.path.isfile(folder / "router_config.json"):
        return None
    if find_spec("sentence_transformers") is None:
        raise MissingDependencyError(
            f"{folder.name!r} holds a Router of sentence-transformers, which loads it; run: pip "
            "install sentence-transformers"
        )
    import sentence_transformers

    origin = Origin.find(str(folder), None, trust_remote_code)
    kind = str(_json(origin, "config_sentence_transformers.json", {}).get("model_type"))
    make = getattr(sentence_transformers, kind, sentence_transformers.SentenceTransformer)
    with explained(origin, "sentence-transformers cannot load {name} ({reason})"):
        return make(str(folder), device="cpu", trust_remote_code=trust_remote_code)


def route(sentences: Any, task: str = "document") -> list[Any]:
    """The modules that a text passes, by its side where the sides have modules of their own."""
    first, *behind = sentences if isinstance(sentences, nn.Sequential) else [sentences.model]
    sides = getattr(first, "sub_modules", None)
    if type(first).__name__ != "Router" or sides is None:
        return [first, *behind]
    if task not in sides:
        raise _undescribed(f"a Router without a route for {task!r}")
    return [*sides[task], *behind]


def pooling_of(sentences: Any) -> Pooling:
    """What an object of sentence-transformers or pylate does with the vectors of its model."""
    first, *behind = route(sentences)
    names = [kind.__name__ for kind in type(sentences).__mro__]
    whose = next((name for name in names if name in _KINDS), names[0])
    modules: list[Module] = [(type(first).__name__, {}, partial(linear, None))]
    for module in behind:
        settings = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        settings = {"pooling_mode": getattr(module, "pooling_mode", None)} | settings
        modules.append(
            (type(module).__name__, settings, partial(linear, getattr(module, "linear", None)))
        )
    held = [(name, getattr(first, name, None)) for name in _OF_FIRST]
    held += [(name, getattr(sentences, name, None)) for name in _SAID]
    settings = {name: value for name, value in held if value is not None}
    if whose == _PYLATE:
        # It has one prompt for both sides, and skips unknown words with those that it cannot spell.
        prompt = sentences.prompts.get(sentences.default_prompt_name)
        settings["prompts"] = dict.fromkeys(("query", "document"), prompt)
        skipped = sentences.tokenizer.convert_ids_to_tokens(sentences.skiplist)
        settings["skiplist_words"] = list(dict.fromkeys(skipped))
    pooling = _described(modules, whose, {"model_type": whose} | settings)
    if (query := route(sentences, "query"))[0] is not first:
        static = type(query[0]).__name__ == "SparseStaticEmbedding"
        if not static or not isinstance(pooling.search, SparseVectors):
            raise UnsupportedModelError(
                f"the Router of this {whose} reads queries with a model of their own "
                f"({type(query[0]).__name__}); load the modules of either side as an object, and "
                "compare with query_side.rank(…, document_lens=document_side)"
            )
        search = replace(pooling.search, query_weights=query[0].weight)
        pooling = replace(pooling, search=search)
    if (width := getattr(sentences, "truncate_dim", None)) is not None:
        dense = [step.linear.weight.shape[1] for step in pooling.steps if isinstance(step, Dense)]
        whole = (dense or [first.auto_model.config.hidden_size])[-1]
        pooling = replace(pooling, cut=Dense(Linear(torch.eye(whole, min(width, whole)))))
    return pooling


#: What objects and files say of a model beside its modules; the second line is pylate's.
_SAID = (
    *("max_seq_length", "default_prompt_name", "prompts", "similarity_fn_name"),
    *("query_prefix", "document_prefix", "skiplist_words", "do_query_expansion"),
    *("query_length", "document_length", "attend_to_expansion_tokens"),
)
_OF_FIRST = (
    *("do_lower_case", "query_expansion", "processing_kwargs"),
    *("query_length", "document_length"),
)


def _described(modules: Sequence[Module], whose: str, settings: Mapping[str, Any]) -> Pooling:
    """The pooling that modules and the settings beside them describe."""
    kinds = {kind: own for kind, own, _ in modules}
    search = _search(kinds, settings)
    reads, steps = (MEAN, ()) if isinstance(search, BothTexts) else _behind(modules, whose, search)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    # As encode_query and encode_document choose them: a saved "passage" is not among these.
    query, document = (str(prompts.get(side) or "") for side in ("query", "document"))
    if isinstance(search, BothTexts):
        query, document = str(prompts.get(default) or ""), ""
    elif isinstance(search, TokenVectors):
        # Prefixes of pylate, which stand before any prompt.
        marks = [settings.get(f"{side}_prefix") or "" for side in ("query", "document")]
        query, document = (
            mark + text.removeprefix(mark)
            for mark, text in zip(marks, (query, document), strict=True)
        )
    of_query, of_document = (settings.get(f"{side}_length") for side in ("query", "document"))
    if isinstance(search, TokenVectors) and search.expansion is not None:
        fixed = search.expansion.get("strategy") != "min"
        of_query = search.expansion["length"] if fixed else of_query
    note = f"the default prompt {default!r} of this sentence encoder is not put before the texts"
    return Pooling(
        reads,
        steps,
        of_document or settings.get("max_seq_length"),
        of_query,
        bool(settings.get("do_lower_case")),
        note if search is None and prompts.get(default) else None,
        normalized="Normalize" in kinds or settings.get("model_type") == _PYLATE,
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
        query_prompt=query,
        document_prompt=document,
        pools_prompt=bool(kinds.get("Pooling", {}).get("include_prompt", True)),
        search=search,
    )


_PYLATE = "ColBERT"  # as it calls its models
_KINDS = ("CrossEncoder", "MultiVectorEncoder", "SparseEncoder", _PYLATE)


def _search(
    kinds: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> SparseVectors | TokenVectors | BothTexts | None:
    """What stands behind a model that does not make one vector of a text."""
    if (sparse := kinds.get("SpladePooling")) is not None:
        twice = sparse.get("activation_function") == "log1p_relu"
        return SparseVectors(str(sparse.get("pooling_strategy") or "max"), twice)
    model_type = settings.get("model_type")
    if model_type == "CrossEncoder":
        others = [kind for kind in kinds if kind not in ("Transformer", "LogitScore")]
        if others:
            raise _undescribed(f"a module {others[0]!r} in this place")
        score = kinds.get("LogitScore", {})
        chat = (settings.get("processing_kwargs") or {}).get("chat_template") or {}
        return BothTexts(score.get("true_token_id"), score.get("false_token_id"), chat)
    if model_type not in ("MultiVectorEncoder", _PYLATE):
        return None
    mask, expansion = kinds.get("MultiVectorMask", {}), settings.get("query_expansion")
    skipped, is_pylate = mask.get("skiplist_words"), model_type == _PYLATE
    if mask.get("keep_only_token_ids"):
        raise _undescribed("a MultiVectorMask with keep_only_token_ids")
    if is_pylate:
        skipped = settings.get("skiplist_words", list(string.punctuation))
        if not isinstance(expansion, Mapping) and settings.get("do_query_expansion") is not False:
            attend = bool(settings.get("attend_to_expansion_tokens"))
            expansion = {"length": settings.get("query_length") or 32, "attend": attend}
    mean = str(settings.get("similarity_fn_name")).lower() in ("meanmaxsim", "mean_maxsim")
    tasks = mask.get("skiplist_tasks") or ("document",)
    return TokenVectors(tuple(skipped or ()), tuple(tasks), expansion or None, mean)


def _behind(
    modules: Iterable[Module], whose: str, search: object = None
) -> tuple[str, tuple[HeadStep, ...]]:
    """Which vectors are read, and the steps behind; what a cosine does anyway is left out."""
    reads: str | None = None
    steps: list[HeadStep] = []
    passed: list[str] = []
    each = isinstance(search, TokenVectors)
    for kind, settings, linear_map in modules:
        if kind == "Pooling" and not each:
            reads = _mode(settings)
        elif kind == "Dense" and (reads is not None or each):
            if "Normalize" in passed:
                raise _undescribed("Normalize before Dense")
            steps += _dense(settings, linear_map, "token_embeddings" if each else _POOLED)
        elif kind == "SpladePooling" or (kind == "MultiVectorMask" and each):
            reads = ANY
        elif kind not in _PASSED:
            raise _undescribed(f"a module {kind!r} in this place")
        passed.append(kind)
    if reads is None and not each:
        raise UnsupportedModelError(f"{whose} names no Pooling, so the model gives no one vector")
    return reads or ANY, tuple(steps)


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


def _dense(
    settings: Mapping[str, Any], linear_map: Callable[[], Linear], of: str
) -> list[HeadStep]:
    """A Dense module of these vectors as a map and its activation."""
    if settings.get("use_residual"):
        raise _undescribed("a Dense module with a residual connection")
    reads = settings.get("module_input_name") or of
    if reads != of:
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

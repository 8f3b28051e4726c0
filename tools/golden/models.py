"""Tiny models of every family and what they are given: a tokenizer, texts, pictures and sounds."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

LONG, SHORT = "the cats sat on a mat", "a dog ran"
MASKED = "the cat [MASK] on a mat"
#: Ids of the vocabulary, the special tokens first: no text below uses one of them for a word.
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "and", "is", "##s", "."]

#: The heads of each kind of model; the first that transformers has for a configuration comes first.
TASKS = {
    "text": ("MaskedLM", "CausalLM", "SequenceClassification", "TokenClassification"),
    "pair": ("Seq2SeqLM", "SpeechSeq2Seq"),
    "picture": ("ImageClassification",),
    "sound": ("CTC", "AudioFrameClassification"),
}
#: Weights and biases move by this much, so that no bias is 0, no γ is 1 and attention is not even.
NOISE = 0.3


def settings_of_families() -> dict[str, dict[str, Any]]:
    """The tiny configuration of every family, as keywords: the one place that knows the package.

    `make` stores what this returns, and `compare` reads it from there.
    """
    from normlens.models import supported_families
    from normlens.models.base import tiny_settings

    return {name: tiny_settings(name) or {} for name in sorted(supported_families())}


def config_of(family: str, settings: dict[str, Any]) -> Any:
    """The configuration of a tiny model."""
    config = transformers.AutoConfig.for_model(family, **{"num_labels": 3, **settings})
    config.architectures = []  # one of several classes is chosen by its place
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # classifiers ask for it
    return config


def kind_of(config: Any) -> str:
    """What a model reads: a text, a pair, a picture or a sound."""
    if config.is_encoder_decoder:
        return "pair"
    if hasattr(config, "image_size"):
        return "picture"
    return "sound" if hasattr(config, "conv_stride") else "text"


def tasks_of(config: Any) -> list[str]:
    """The tasks of which transformers has a model with a head for a configuration."""
    named = {task: getattr(transformers, f"AutoModelFor{task}") for task in TASKS[kind_of(config)]}
    return [task for task, kind in named.items() if type(config) in kind._model_mapping]


def build(config: Any, task: str | None = None) -> Any:
    """A model, with the head of a task if given, whose random weights are fixed by a seed."""
    torch.manual_seed(0)
    kind = getattr(transformers, "AutoModel" if task is None else f"AutoModelFor{task}")
    make = kind.from_config
    if task is None and type(config) not in kind._model_mapping:  # a part of a larger model
        make = getattr(transformers, type(config).__name__[:-6] + "Model")._from_config
    model = make(config, attn_implementation="eager", experts_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    buffers = [b for name, b in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        for weight in [*model.parameters(), *buffers]:
            weight += NOISE * torch.randn(weight.shape, generator=generator).to(weight)
    return model


def tokenizer() -> Any:
    """A WordPiece tokenizer of a few words and all letters."""
    vocabulary = [*SPECIAL, *WORDS, *(c for c in string.ascii_lowercase if c not in WORDS)]
    ids = {token: number for number, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Fixed pixel values, samples or a direction."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def save(folder: Path, family: str, settings: dict[str, Any], task: str | None = None) -> Path:
    """A tiny model and its tokenizer in a folder, for the command line and runs."""
    build(config_of(family, settings), task).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder

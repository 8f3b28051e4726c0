"""Tiny checkpoints with heads and small files of data for whole evaluations."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from run_examples import FRAME, tiny_checkpoint, tiny_tokenizer

from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import scramble, tiny_config

N = 9
#: Methods of every sort that are quick.
METHODS = "normlens,rollout-weights,gradient-x-input,leave-one-out,random,first-token"
CLASSIFIED: dict[str, Any] = {
    "methods": METHODS,
    "label_column": "label",
    "block_size": 4,
    "device": "cpu",
    "page": False,
}
PREFERRED: dict[str, Any] = {"methods": METHODS, "block_size": 4, "device": "cpu", "page": False}


@dataclass(frozen=True)
class Places:
    """Where the tests' models and data lie."""

    folder: Path
    classifier: Path
    causal: Path
    encoder: Path
    labelled: Path
    evidence: Path
    pairs: Path

    @classmethod
    def make(cls, folder: Path) -> Places:
        return cls(
            folder,
            _classifier(folder / "classifier"),
            _causal(folder / "causal"),
            tiny_checkpoint(folder / "encoder"),
            _labelled(folder / "labelled.tsv"),
            _evidence(folder / "evidence.csv"),
            _pairs(folder / "pairs.tsv"),
        )


def causal_tokenizer() -> Any:
    """WordPiece on single letters without special tokens around the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_letters
    # A word's first letter and its others are different tokens.
    vocabulary = [*FRAME, *letters[:29], *(f"##{letter}" for letter in letters[:29])]
    backend = Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]"
    )


def _saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    scramble(model.eval(), 5)
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _classifier(folder: Path) -> Path:
    config = tiny_config(
        "bert", pad_token_id=0, num_labels=3, id2label={0: "bad", 1: "fair", 2: "good"}
    )
    return _saved(transformers.BertForSequenceClassification(config), tiny_tokenizer(), folder)


def _causal(folder: Path) -> Path:
    config = tiny_config("llama")
    return _saved(transformers.LlamaForCausalLM(config), causal_tokenizer(), folder)


def _words(chance: random.Random, least: int, most: int) -> list[str]:
    count = chance.randint(least, most)
    return ["".join(chance.choices("abcdefgh", k=chance.randint(1, 3))) for _ in range(count)]


def _labelled(path: Path) -> Path:
    chance = random.Random(1)
    rows = [
        f"{' '.join(_words(chance, 2, 8))}\t{chance.choice(['0', '1', '2', 'good', 'BAD'])}"
        for _ in range(N)
    ]
    path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return path


def _evidence(path: Path) -> Path:
    """BLiMP's columns; the last text but one lacks its evidence, and the last has one word."""
    chance = random.Random(2)
    rows = []
    for index in range(N):
        words = _words(chance, 3, 7)
        words[0] = f"A{words[0]}"
        good, bad = chance.sample("abcdefgh", 2)
        evidence = "NA" if index == N - 2 else words[index % len(words)]
        if index == N - 1:
            words, evidence = ["Abc"], "Abc"
        rows.append(f"{index},{' '.join(words)},{good},{bad},{evidence}")
    header = ",one_prefix_prefix,one_prefix_word_good,one_prefix_word_bad,target"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def _pairs(path: Path) -> Path:
    chance = random.Random(3)
    rows = [f"{' '.join(_words(chance, 2, 6))}\t{' '.join(_words(chance, 2, 6))}" for _ in range(N)]
    path.write_text("\n".join(["sentence\tother", *rows]) + "\n")
    return path

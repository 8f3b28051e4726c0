"""Tiny checkpoints with every head, and small corpora for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "corpus"))
sys.path.append(str(Path(__file__).parents[1] / "explain"))

import run_examples as examples
from heads import headed

from normlens.loading.hub import quiet_transformers

SEQUENCES = 18


def saved(folder: Path, family: str, task: str) -> Path:
    """A tiny model with the head of a task, and its tokenizer, saved."""
    with quiet_transformers():
        headed(family, task, torch.float32).save_pretrained(folder)
        examples.tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A model for every loss, by the loss's name."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "next-token": saved(folder / "tiny-gpt2", "gpt2", "CausalLM"),
        "masked": saved(folder / "tiny-bert-mlm", "bert", "MaskedLM"),
        "classes": saved(folder / "tiny-bert-classes", "bert", "SequenceClassification"),
        "drift": examples.tiny_checkpoint(folder / "tiny-bert"),
    }


@pytest.fixture(scope="session")
def corpora(tmp_path_factory):
    """Data for every loss, and pairs with and without gold scores."""
    folder = tmp_path_factory.mktemp("data")
    lines = examples.corpus_file(folder / "lines.txt", SEQUENCES).read_text().splitlines()
    texts = [f"{line} ab" for line in lines]  # two tokens at least
    (folder / "lines.txt").write_text("\n".join(texts) + "\n")
    rows = [f"{text}\t{number % 3}" for number, text in enumerate(texts)]
    (folder / "labelled.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    pairs = [
        f"genre\tfile\t2012\t{number:04d}\t{number % 6}.0\t{first}\t{second}"
        for number, (first, second) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))
    ]
    (folder / "sts.csv").write_text("\n".join(pairs) + "\n")
    return {
        "next-token": folder / "lines.txt",
        "masked": folder / "lines.txt",
        "classes": folder / "labelled.tsv",
        "drift": folder / "lines.txt",
        "pairs": folder / "sts.csv",
    }

"""Small models, corpora and finished runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "corpus"))

import run_examples as examples


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """A corpus of 24 lines; words of several letters are split."""
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 24)

"""Small models, corpora and finished runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "corpus"))

import run_examples as examples
from quick_reports import drawing_nothing, rendering_nothing


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 24 lines; words of several letters are split."""
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 24)


@pytest.fixture
def sketched() -> Iterator[None]:
    """Every figure is drawn but not rendered: the files of pictures are empty ones.

    For tests of what is computed, kept or refused; rendering takes most of a report's time.
    """
    with rendering_nothing():
        yield


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Figures are not even drawn, for reports like others whose figures are."""
    with drawing_nothing():
        yield

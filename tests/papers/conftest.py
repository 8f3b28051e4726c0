"""Small models, corpora and finished runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "corpus"))

import run_examples as examples

from normlens.reports import pictures


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 24 lines; words of several letters are split."""
    return examples.corpus_file(tmp_path_factory.mktemp("data") / "letters.txt", 24)


@contextmanager
def sketching() -> Iterator[None]:
    """Draw every figure but render none: the files of pictures are empty ones.

    For tests of what is computed, kept or refused; rendering takes most of a report's time.
    """
    empty = {
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt"/>',
        "png": b"",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "_saved", lambda _, kind, **options: empty[kind])
        yield


@pytest.fixture
def sketched() -> Iterator[None]:
    with sketching():
        yield


@pytest.fixture(scope="module")
def sketched_module() -> Iterator[None]:
    """The same for a whole file of tests."""
    with sketching():
        yield

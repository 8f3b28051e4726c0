"""The helpers of corpus runs, which evaluations are; tiny models, data for them, and one run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "corpus"))

import evaluation_examples as examples

from normlens.corpus.runs.folder import SomeFailedWarning
from normlens.studies.faithfulness.evaluate import evaluate


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """Tiny checkpoints and data files."""
    pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
    return examples.Places.make(tmp_path_factory.mktemp("evaluate"))


@pytest.fixture(scope="session")
def classified(places):
    """A classifier's evaluation, in blocks."""
    return evaluate(
        places.classifier, places.labelled, places.folder / "classified", **examples.CLASSIFIED
    )


@pytest.fixture(scope="session")
def preferred(places):
    """A causal model's evaluation on two next words with the word that must decide."""
    with pytest.warns(SomeFailedWarning):  # one text cannot be asked about
        return evaluate(
            places.causal, places.evidence, places.folder / "preferred", **examples.PREFERRED
        )

"""A real translation model on the Hansards: the error rates of its cross-attention.

NORMLENS_TEST_MARIAN names a folder with opus-mt-en-fr; the pairs and their gold links are in
NORMLENS_TEST_DATA/alignment.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import normlens
from normlens.studies.alignment.gold import error_rates

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
#: AER in per cent by layer, from an implementation of its own that uses no code of the package.
EXPECTED = {
    ("CROSS-W", "input"): [63.1, 64.2, 19.5, 37.5, 82.9, 83.8],
    ("CROSS-N", "input"): [16.6, 11.0, 13.4, 39.6, 71.2, 78.0],
    ("CROSS-W", "output"): [96.2, 96.6, 87.6, 54.8, 24.8, 43.6],
    ("CROSS-N", "output"): [82.9, 74.4, 71.5, 45.4, 25.1, 33.1],
}


@pytest.fixture
def hansards():
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", root.parent / "shared" / "data"))
    if not (folder / "alignment").is_dir():
        pytest.skip(f"needs alignment in NORMLENS_TEST_DATA (looked in {folder})")
    return folder / "alignment"


@pytest.fixture
def marian():
    pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
    folder = os.environ.get("NORMLENS_TEST_MARIAN")
    if folder is None:
        pytest.skip("NORMLENS_TEST_MARIAN does not name a folder with opus-mt-en-fr")
    return normlens.load(folder, device="cpu")


def test_error_rates_of_weights_and_norms(marian, hansards, tmp_path):
    run = normlens.align(
        marian,
        hansards / "hansards.en-fr.txt",
        tmp_path / "run",
        gold=hansards / "hansards.en-fr.gold",
    )
    status = run.status()
    assert (status.done, status.failures) == (447, 0)
    rates = error_rates(run, resamples=200).table
    for (scope, way), expected in EXPECTED.items():
        some = rates[(rates["scope"] == scope) & (rates["way"] == way)].sort_values("layer")
        assert (100 * some["aer"]).tolist() == pytest.approx(expected, abs=0.06), (scope, way)

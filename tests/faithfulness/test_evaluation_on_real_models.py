"""Small evaluations of the embedded models on real data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import normlens

pytestmark = pytest.mark.slow


def real_data(name: str) -> Path:
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("NORMLENS_TEST_DATA", root.parent / "shared" / "data"))
    if not (folder / name).is_file():
        pytest.skip(f"needs {name} in NORMLENS_TEST_DATA (looked in {folder})")
    return folder / name


def means(run: Any, protocol: str, first: str = "most") -> dict[str, float]:
    table = run.sql(
        "SELECT method, avg(value) AS mean FROM faithfulness "
        f"WHERE protocol = '{protocol}' AND \"first\" = '{first}' GROUP BY 1"
    )
    return dict(zip(table["method"], table["mean"], strict=True))


def test_cosines_of_sts_b(minilm, tmp_path):
    """The frozen network costs the cosine more than a random order, and less from its end."""
    data = real_data("stsb/sts-dev.csv")
    run = normlens.evaluate(
        minilm, data, tmp_path / "run", methods="normlens,random", limit=12, page=False
    )
    most, least = means(run, "cosine-aopc"), means(run, "cosine-aopc", "least")
    assert most["normlens"] > most["random"] + 0.05
    assert least["normlens"] < least["random"] - 0.05
    assert most["normlens"] > least["normlens"] + 0.15


def test_evidence_of_blimp(smollm2, tmp_path):
    """BLiMP's own columns are recognised; leaving the subject out costs the right word most."""
    data = real_data("evidence/anaphor_gender_agreement.csv")
    run = normlens.evaluate(
        smollm2, data, tmp_path / "run", methods="leave-one-out,first-token",
        protocols="evidence,contrast-drop-end", limit=6, page=False,
    )  # fmt: skip
    examples = run.table("examples")
    assert len(examples) == 6
    assert examples["correct"].sum() >= 5
    assert set(examples["target"]) <= {"␣herself", "␣himself"}
    assert means(run, "evidence")["leave-one-out"] > 0.7
    assert means(run, "contrast-drop-end")["leave-one-out"] > 0

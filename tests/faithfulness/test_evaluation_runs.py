"""Evaluations on the corpus engine: stopped, resumed, shared by workers, repeated with a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import evaluation_examples as examples
import pytest
from forking import run_python
from run_examples import assert_same_tables

from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.studies.faithfulness.evaluate import evaluate, resume_evaluation

KILLED = Path(__file__).parents[1] / "corpus" / "runs" / "killed_runs.py"


def again(places: examples.Places, out: Path, **changed: Any) -> Run:
    return evaluate(places.classifier, places.labelled, out, **{**examples.CLASSIFIED, **changed})


class Interrupting(Progress):
    """Stops the run after its first block."""

    def advance(self, sequences: int, failures: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_kill_9_at_any_moment(places, classified, tmp_path):
    options = {
        "measures": "faithfulness",
        "settings": classified.manifest.options.settings,
        "extra_columns": ["label"],
        "block_size": 4,
    }
    arguments = [tmp_path / "killed", places.classifier, places.labelled, 6, 0]
    done = run_python(KILLED, *arguments, json.dumps(options))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0, done.stderr
    assert report["killed"] > 0
    assert_same_tables(Run.open(tmp_path / "killed"), classified, tolerance=0)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ray")
def test_ray_gives_the_same_tables(places, classified, tmp_path):
    ray = pytest.importorskip("ray", reason="needs Ray (pip install 'normlens[ray]')")
    try:
        done = again(places, tmp_path / "ray", engine="ray", address="local", resources="gpu=0")
        assert done.manifest.execution["engine"] == "ray"
        assert_same_tables(done, classified)
    finally:
        ray.shutdown()


def test_the_seed_moves_what_is_random_and_nothing_else(places, classified, tmp_path):
    seeded = again(places, tmp_path / "seeded", seed=7)
    value = "SELECT value FROM faithfulness WHERE method = '{}' ORDER BY ALL"
    a, b = (run.sql(value.format("random"))["value"] for run in (seeded, classified))
    assert abs(a - b).max() > 1e-4
    for method in ("normlens", "leave-one-out", "first-token"):
        a, b = (run.sql(value.format(method))["value"] for run in (seeded, classified))
        # Other variants are in a batch, which changes last digits.
        assert a.to_numpy() == pytest.approx(b.to_numpy(), abs=1e-6)
    assert seeded.manifest.options.seed == 7


def test_the_manifest_says_what_was_chosen(preferred, classified):
    settings = preferred.manifest.options.settings["faithfulness"]
    assert settings["methods"] == examples.METHODS.split(",")
    assert settings["protocols"] == ["evidence", "contrast-drop-end", "contrast-drop-random"]
    assert settings["evidence_column"] == "target"
    assert preferred.manifest.options.column == "one_prefix_prefix"
    assert preferred.manifest.options.truncate is False
    protocols = classified.manifest.options.settings["faithfulness"]["protocols"]
    assert protocols == ["aopc", "comprehensiveness", "sufficiency"]
    assert classified.manifest.measures["faithfulness"]["options"]["label_column"] == "label"


OWN = """
import numpy as np

def last(lens, question):
    return np.arange(len(question.encoded.ids), dtype=float) * FACTOR
"""


def test_a_users_method_is_in_the_manifest_and_named_again(places, tmp_path, monkeypatch):
    module = tmp_path / "own_scores.py"
    module.write_text(OWN.replace("FACTOR", "1"))
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    methods = "random,own_scores:last"
    with pytest.raises(KeyboardInterrupt):
        again(places, out, methods=methods, progress=Interrupting())
    manifest = Run.open(out).manifest
    (sources,) = manifest.measures["faithfulness"]["methods"].values()
    assert list(sources) == ["own_scores"]
    with pytest.raises(InputError):
        resume_evaluation(out)
    done = resume_evaluation(out, methods=methods, page=False)
    scores = done.sql("SELECT position, score FROM attributions WHERE method = 'own_scores:last'")
    assert (scores["position"] == scores["score"]).all()
    # Other code under the same name is another evaluation.
    module.write_text(OWN.replace("FACTOR", "2"))
    with pytest.raises(RunError):
        resume_evaluation(out, methods=methods)

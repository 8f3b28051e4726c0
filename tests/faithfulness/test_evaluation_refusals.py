"""What cannot be evaluated is refused in one line, before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import normlens
from normlens.corpus import measures
from normlens.corpus.data.readers import open_data
from normlens.corpus.runs.folder import AllFailedError, SomeFailedWarning
from normlens.corpus.runs.progress import Progress
from normlens.errors import MissingDependencyError, NormLensError
from normlens.studies.faithfulness import methods as integrated_gradients
from normlens.studies.faithfulness.evaluate import evaluate
from normlens.studies.faithfulness.measure import FaithfulnessMeasure

BASE: dict[str, Any] = {"device": "cpu", "methods": "random", "page": False}


def refused(model: Path, data: Any, out: Path, **options: Any) -> str:
    with pytest.raises(NormLensError) as caught:
        evaluate(model, data, out, **{**BASE, **options})
    assert not (out / "manifest.json").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("causal", "labelled", {"protocols": "aopc"}),
    ("classifier", "labelled", {"protocols": "contrast-drop-end"}),
    ("encoder", "labelled", {}),
    ("encoder", "labelled", {"protocols": "cosine-aopc"}),
    ("classifier", "labelled", {"protocols": "aopk"}),
    ("classifier", "labelled", {"protocols": "aopc,cosine-aopc"}),
    ("causal", "labelled", {"protocols": "cosine-aopc", "pair_column": "label"}),
    ("classifier", "labelled", {"methods": "norm"}),
    ("classifier", "labelled", {"methods": "random,random"}),
    ("classifier", "labelled", {"methods": ()}),
    ("classifier", "labelled", {"methods": "no_such_module:scores"}),
    ("classifier", "labelled", {"methods": "rollout-ln7"}),
    ("causal", "evidence", {"methods": "globenc"}),
    ("classifier", "labelled", {"label_column": "score"}),
    ("causal", "labelled", {"label_column": "label"}),
    ("causal", "evidence", {"good_column": "one_prefix_word_good"}),
    ("causal", "evidence", {"evidence_column": "target"}),
    (
        "causal",
        "labelled",
        {"good_column": "label", "bad_column": "label", "protocols": "evidence"},
    ),
    ("causal", "evidence", {"truncate": True}),
    ("classifier", "labelled", {"limit": 1}),
]


def test_what_cannot_be_evaluated(places, tmp_path):
    for model, data, options in REFUSED:
        refused(getattr(places, model), getattr(places, data), tmp_path / "out", **options)
    opened = open_data(places.labelled)
    said = refused(places.classifier, opened, tmp_path / "out", label_column="label")
    assert "extra=" in said


def test_a_first_label_that_the_model_does_not_know(places, tmp_path):
    rows = ["sentence\tlabel", "ab cd\tsuperb", "cd ef\tgood", "ef gh\tfair"]
    data = tmp_path / "labels.tsv"
    data.write_text("\n".join(rows) + "\n")
    said = refused(places.classifier, data, tmp_path / "out", label_column="label")
    assert "superb" in said
    # Later ones are failures of their texts.
    data.write_text("\n".join([rows[0], rows[2], rows[1], rows[3]]) + "\n")
    with pytest.warns(SomeFailedWarning):
        run = evaluate(
            places.classifier, data, tmp_path / "out", **{**BASE, "label_column": "label"}
        )
    (failure,) = run.table("failures").to_dict("records")
    assert failure["index"] == 1
    assert "superb" in failure["reason"]


def test_a_missing_package_leaves_its_method_out_with_a_note(places, tmp_path, monkeypatch):
    def missing() -> None:
        raise MissingDependencyError("integrated-gradients needs Captum; run: pip install …")

    monkeypatch.setattr(integrated_gradients, "_captum", missing)
    notes: list[str] = []

    class Noting(Progress):
        def say(self, text: str) -> None:
            notes.append(text)

    given = (places.classifier, places.labelled, tmp_path / "out")
    assert "Captum" in refused(*given, methods="integrated-gradients")
    run = evaluate(*given, **{**BASE, "methods": None, "limit": 2}, progress=Noting())
    assert "note: integrated-gradients needs Captum; run: pip install …" in notes
    methods = run.manifest.options.settings["faithfulness"]["methods"]
    assert "integrated-gradients" not in methods
    assert {"normlens", "alti", "globenc", "rollout-ln2", "first-token"} <= set(methods)


def test_the_measure_alone(places, tmp_path):
    """`normlens.run` takes it, too; what is left out is chosen by the model."""
    measure = measures.get("faithfulness", methods="random,leave-one-out")
    assert isinstance(measure, FaithfulnessMeasure)
    assert FaithfulnessMeasure(**measure.options).options == measure.options
    run = normlens.run(
        places.causal, places.labelled, tmp_path / "run", measures=[measure], limit=3
    )
    table = run.sql("SELECT DISTINCT protocol FROM faithfulness ORDER BY 1")
    assert table["protocol"].tolist() == ["contrast-drop-end", "contrast-drop-random"]
    best = run.table("examples")
    assert (best["score"] >= 0).all()  # the most probable next token against the second
    assert best["correct"].isna().all()
    settings = {"faithfulness": {"methods": ["random"], "protocols": ["cosine-aopc"]}}
    options: dict[str, Any] = {"measures": "faithfulness", "settings": settings, "limit": 2}
    with pytest.raises(AllFailedError):
        normlens.run(places.encoder, places.labelled, tmp_path / "texts", **options)

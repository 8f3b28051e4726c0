"""What cannot be evaluated is refused in one line, before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import evaluation_examples as examples
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


def test_protocols_that_the_model_does_not_allow(places: examples.Places, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = places.labelled
    said = refused(places.causal, text, out, protocols="aopc")
    assert "aopc is for classifiers" in said
    assert "causal language model" in said
    said = refused(places.classifier, text, out, protocols="contrast-drop-end")
    assert "contrast-drop-end is for causal language models" in said
    said = refused(places.encoder, text, out)
    assert "model without a head" in said
    assert "pairs of texts" in said
    assert "needs pairs" in refused(places.encoder, text, out, protocols="cosine-aopc")
    assert "unknown protocol 'aopk'" in refused(places.classifier, text, out, protocols="aopk")
    said = refused(places.classifier, text, out, protocols="aopc,cosine-aopc")
    assert "different kinds of models" in said
    said = refused(places.causal, text, out, protocols="cosine-aopc", pair_column="label")
    assert "has no mask token" in said


def test_methods_that_cannot_be_taken(places: examples.Places, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = (places.classifier, places.labelled, out)
    assert "unknown method 'norm'" in refused(*given, methods="norm")
    assert "named twice" in refused(*given, methods="random,random")
    assert "no method is chosen" in refused(*given, methods=())
    assert "no module" in refused(*given, methods="no_such_module:scores")
    assert "unknown scope" in refused(*given, methods="rollout-ln7")
    assert "globenc" in refused(places.causal, places.evidence, out, methods="globenc").lower()


def test_columns_that_do_not_fit(places: examples.Places, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = refused(places.classifier, places.labelled, out, label_column="score")
    assert "no column 'score'" in said
    said = refused(places.causal, places.labelled, out, label_column="label")
    assert "labels are for classifiers" in said
    said = refused(places.causal, places.evidence, out, good_column="one_prefix_word_good")
    assert "--bad-column" in said
    said = refused(
        places.causal, places.labelled, out, good_column="label", bad_column="label",
        protocols="evidence",
    )  # fmt: skip
    assert "--evidence-column" in said
    said = refused(places.causal, places.evidence, out, truncate=True)
    assert "--truncate" in said
    opened = open_data(places.labelled)
    said = refused(places.classifier, opened, out, label_column="label")
    assert "extra=('label',)" in said


def test_a_first_label_that_the_model_does_not_know(
    places: examples.Places, tmp_path: Path
) -> None:
    rows = ["sentence\tlabel", "ab cd\tsuperb", "cd ef\tgood", "ef gh\tfair"]
    data = tmp_path / "labels.tsv"
    data.write_text("\n".join(rows) + "\n")
    said = refused(places.classifier, data, tmp_path / "out", label_column="label")
    assert said.startswith("unknown label 'superb'; this model's labels are: bad, fair, good")
    # Later ones are failures of their texts.
    data.write_text("\n".join([rows[0], rows[2], rows[1], rows[3]]) + "\n")
    with pytest.warns(SomeFailedWarning):
        run = evaluate(
            places.classifier, data, tmp_path / "out", **{**BASE, "label_column": "label"}
        )
    (failure,) = run.table("failures").to_dict("records")
    assert failure["index"] == 1
    assert "unknown label 'superb'" in failure["reason"]


def test_too_few_sequences_for_an_interval(places: examples.Places, tmp_path: Path) -> None:
    said = refused(places.classifier, places.labelled, tmp_path / "out", limit=1)
    assert "at least 2 sequences" in said


def test_a_missing_package_leaves_its_method_out_with_a_note(
    places: examples.Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("integrated-gradients needs Captum; run: pip install …")

    monkeypatch.setattr(integrated_gradients, "_captum", missing)
    notes: list[str] = []

    class Noting(Progress):
        def say(self, text: str) -> None:
            notes.append(text)

    given = (places.classifier, places.labelled, tmp_path / "out")
    assert "needs Captum" in refused(*given, methods="integrated-gradients")
    run = evaluate(*given, **{**BASE, "methods": None, "limit": 2}, progress=Noting())
    assert "note: integrated-gradients needs Captum; run: pip install …" in notes
    methods = run.manifest.options.settings["faithfulness"]["methods"]
    assert "integrated-gradients" not in methods
    assert {"normlens", "alti", "globenc", "rollout-ln2", "first-token"} <= set(methods)


def test_the_measure_alone(places: examples.Places, tmp_path: Path) -> None:
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
    with pytest.raises(AllFailedError, match="one text where a pair is needed"):
        normlens.run(places.encoder, places.labelled, tmp_path / "texts", **options)

"""Evaluations and ablations as optional parts of a reproduction."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import run_examples as examples
import torch
from quick_reports import drawing_nothing
from run_records import forget
from shell import Shell

sys.path.append(str(Path(__file__).parents[1] / "explain"))

from heads import headed

from normlens.corpus import Run
from normlens.errors import InputError
from normlens.loading.hub import quiet_transformers
from normlens.options import from_json
from normlens.studies.ablation.ablate import ablate
from normlens.studies.faithfulness.evaluate import evaluate
from normlens.studies.papers.reporting import build_report, describe, load_settings
from normlens.studies.papers.reproduce import reproduce
from normlens.studies.papers.settings import Settings, parse_kinds

METHODS = "gradient-x-input,leave-one-out,random"
OPTIONS: dict[str, Any] = {
    "methods": METHODS,
    "label_column": "label",
    "components": ("FF", "LN2"),
    "ablation_kinds": "zero,mean,lowest-gamma",
    "resamples": 100,
    "execution": {"device": "cpu"},
}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny-classifier"
    with quiet_transformers():
        headed("bert", "SequenceClassification", torch.float32).save_pretrained(folder)
        examples.tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Thirteen texts with one of three labels each."""
    folder = tmp_path_factory.mktemp("data")
    lines = examples.corpus_file(folder / "lines.txt", 13).read_text().splitlines()
    rows = [f"{line} ab\t{number % 3}" for number, line in enumerate(lines)]
    (folder / "labelled.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder / "labelled.tsv"


@pytest.fixture(scope="module")
def results(tmp_path_factory, classifier, labelled):
    """A paper's experiments, an evaluation and ablations of a tiny classifier in one folder."""
    out = tmp_path_factory.mktemp("results") / "out"
    with drawing_nothing():
        reproduce("ff,evaluate,ablate", classifier, labelled, out, **OPTIONS)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    """What a report has written, by file."""
    names = json.loads((folder / "results.json").read_text())["files"]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture
def computing_fails(monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr("normlens.corpus.engines.worker.Worker.analyse", fail)


# One folder and one report ---------------------------------------------------------------------


def test_the_numbers_are_those_of_the_two_commands(results, classifier, labelled, tmp_path):
    how = {"device": "cpu"}
    alone = evaluate(
        classifier,
        labelled,
        tmp_path / "evaluation",
        methods=METHODS,
        label_column="label",
        max_length=128,
        page=False,
        **how,
    )
    joint = Run.open(results / "evaluate" / "labelled")
    pd.testing.assert_frame_equal(joint.table("faithfulness"), alone.table("faithfulness"))
    folder = ablate(
        classifier,
        labelled,
        tmp_path / "ablation",
        components=("FF", "LN2"),
        kinds=("zero", "mean", "lowest-gamma"),
        page=False,
        execution=how,
    )
    for name in ("runs/ablation", "runs/maps"):
        mine, theirs = Run.open(folder / name), Run.open(results / "ablate" / "labelled" / name)
        assert set(mine.tables) == set(theirs.tables)
        for table in set(mine.tables) - {"sequences"}:
            pd.testing.assert_frame_equal(mine.table(table), theirs.table(table))


@pytest.mark.usefixtures("computing_fails", "undrawn")
def test_the_same_again_computes_nothing_and_keeps_the_options(
    results, classifier, labelled, tmp_path
):
    out = Path(shutil.copytree(results, tmp_path / "out"))
    before = contents(out)
    execution = {"device": "cpu"}
    reproduce("ff", classifier, labelled, out, resamples=100, execution=execution)
    assert contents(out) == before
    assert load_settings(out).kinds == ("ff", "evaluate", "ablate")
    assert load_settings(out).methods == tuple(METHODS.split(","))
    reproduce(("ff", "evaluate", "ablate"), classifier, labelled, out, **OPTIONS)
    assert contents(out) == before


@pytest.mark.usefixtures("undrawn")
def test_a_part_may_stand_alone_on_several_data_sets_and_be_stopped(classifier, labelled, tmp_path):
    other = Path(shutil.copy(labelled, tmp_path / "other.tsv"))
    options: dict[str, Any] = {"methods": ("random", "first-token"), "limit": 4}
    how: dict[str, Any] = {"resamples": 100, "execution": {"device": "cpu"}}
    out = tmp_path / "out"
    reproduce("evaluate", classifier, (labelled, other), out, **options, **how)
    assert not (out / "runs").exists()
    report = describe(out)
    assert [run.purpose for run in report.header.runs] == ["evaluation"] * 2
    assert "mask" not in report.header.settings
    assert not report.header.decomposed
    for section in report.sections:
        assert [data for data, _ in section.results] == ["labelled", "other"]
    before = contents(out)
    forget(out / "evaluate" / "other", 0)
    with pytest.raises(InputError):
        build_report(out)
    reproduce("evaluate", classifier, (labelled, other), out, **options, **how)
    after = contents(out)
    assert set(after) == set(before)
    # All but the measured times is the same.
    timeless = [name for name in after if name.startswith("tables/") and "costs" not in name]
    assert len(timeless) > 4
    assert [after[name] for name in timeless] == [before[name] for name in timeless]


# Settings --------------------------------------------------------------------------------------


def test_options_of_a_part_stay_with_the_folder():
    def settings(kinds: str, **options: Any) -> Settings:
        return Settings(parse_kinds(kinds), "m", ("a.txt",), **options)

    begun = settings("ff,evaluate", methods=("random",))
    assert from_json(Settings, json.loads(json.dumps(vars(begun)))) == begun
    joined = settings("ablate", components=("FF",)).joined(begun)
    assert joined.kinds == ("ff", "evaluate", "ablate")
    assert (joined.methods, joined.components) == (("random",), ("FF",))
    assert settings("evaluate").joined(begun) == begun
    with pytest.raises(InputError):
        settings("evaluate", methods=("first-token",)).joined(begun)
    with pytest.raises(InputError):
        settings("ablate", label_column="label").joined(begun)
    assert settings("ablate", label_column="label").joined(settings("ff")).label_column == "label"
    with_code = settings("evaluate", methods=("mine:scores", "random"))
    assert with_code.joined(with_code) == with_code
    with pytest.raises(InputError):  # code is imported only if it is named again
        settings("ff").joined(with_code)


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("ff,evaluate",),
        ("ff,ablate", "--components", "FF2"),
        ("ff,ablate", "--limit", "8"),
        ("ff,ablate", "--label-column", "label"),
        ("ff", "--methods", "random"),
        ("ff,evaluate", "--methods", ","),
        ("ff,tables",),
    ],
)
def test_what_model_or_data_does_not_allow_is_refused_first(
    words, tiny_bert, letters, tmp_path, capsys
):
    out = tmp_path / "out"
    given = ("--model", tiny_bert, "--data", letters, "--out", out, "--quiet")
    Shell(capsys).error("reproduce", *words, *given)
    assert not out.exists()


def test_a_classifiers_methods_and_labels_are_looked_at_first(
    classifier, labelled, letters, tmp_path
):
    out = tmp_path / "out"
    how: dict[str, Any] = {"execution": {"device": "cpu"}}
    with pytest.raises(InputError):
        reproduce("ff,evaluate", classifier, labelled, out, methods="guess", **how)
    with pytest.raises(InputError):
        reproduce("ff,ablate", classifier, letters, out, **how)
    with pytest.raises(InputError):
        reproduce("ff,evaluate", classifier, labelled, out, label_column="class", **how)
    assert not out.exists()

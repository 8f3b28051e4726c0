"""From a model and data to a report, and what the experiments' numbers are made of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import run_examples as examples
from frame_runs import FrameRun, evidence_of
from quick_reports import rendering_nothing

import normlens
from normlens.corpus import Run
from normlens.errors import InputError, NormLensError
from normlens.options import from_json
from normlens.studies.papers.feed_forward import (
    figure_10,
    figure_11,
    figure_12,
    section_6_2,
    table_1_figure_5,
    tables_2_3,
)
from normlens.studies.papers.published import Evidence, compare, published
from normlens.studies.papers.reporting import EXPERIMENTS, build_report, describe, load_settings
from normlens.studies.papers.reproduce import plan, reproduce
from normlens.studies.papers.settings import KINDS, Settings
from normlens.studies.reports.words import Comparison

FEW = {"resamples": 200}
#: What a report is written as, apart from pictures of pixels.
REPORTED = (".html", ".json", ".csv", ".tex", ".md", ".svg")


@pytest.fixture(scope="module")
def results(tmp_path_factory, tiny_bert, letters):
    """Both papers' experiments with a tiny BERT."""
    out = tmp_path_factory.mktemp("results") / "bert"
    with rendering_nothing():
        reproduce(KINDS, tiny_bert, letters, out, **FEW)
    return out


@pytest.fixture(scope="module")
def described(results):
    return describe(results)


@pytest.fixture(scope="module")
def masked(results):
    settings = load_settings(results)
    return Evidence("letters", Run.open(results / "runs" / "letters-masked"), settings=settings)


@pytest.fixture(scope="module")
def plain(results):
    settings = load_settings(results)
    return Evidence("letters", Run.open(results / "runs" / "letters-plain"), settings=settings)


# The plan --------------------------------------------------------------------------------------


def test_masked_for_similarity_and_mixing_unmasked_for_amplification():
    both = Settings(("ff",), "m", ("a.txt", "sst2:x/dev.tsv"))
    found = [(p.name, p.masked, p.measures) for p in plan(both, causal=False)]
    assert found == [
        ("a-masked", True, "similarity,mixing,norms"),
        ("a-plain", False, "amplification"),
        ("sst2-masked", True, "similarity,mixing,norms"),
        ("sst2-plain", False, "amplification"),
    ]
    mixing = Settings(("mixing",), "m", ("a.txt",))
    assert [p.name for p in plan(mixing, causal=False)] == ["a-masked"]
    (only,) = plan(mixing, causal=True)
    assert (only.name, only.masked) == ("a-plain", False)
    assert set(only.measures.split(",")) == {"similarity", "mixing", "amplification", "norms"}


def test_more_data_may_join_with_a_limit_of_its_own():
    first = Settings(("ff",), "m", ("a.txt",), limits={"a.txt": 3})
    joined = Settings(("mixing",), "m", ("b.txt",)).joined(first)
    assert (joined.kinds, joined.data) == (("ff", "mixing"), ("a.txt", "b.txt"))
    assert joined.limits == {"a.txt": 3}
    assert from_json(Settings, json.loads(json.dumps(vars(joined)))) == joined


def test_the_report_names_no_folder(results, tiny_bert, letters):
    """What is passed on says what the model and the data are called, not where they lie."""
    written = [path for path in results.rglob("*") if path.suffix in REPORTED]
    assert len(written) > 10
    for path in written:
        if "runs" not in path.relative_to(results).parts and path.name != "settings.json":
            text = path.read_text("utf-8")
            assert str(tiny_bert.parent) not in text, path
            assert str(letters.parent) not in text, path
    assert f"{letters.stem} ({letters.name})" in (results / "report.html").read_text("utf-8")


@pytest.mark.usefixtures("undrawn")
def test_ranks_are_checked_first_and_kept(tmp_path, tiny_bert, letters):
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("one two\n")
    with pytest.raises(InputError):
        reproduce("mixing", tiny_bert, letters, tmp_path / "out", ranks=str(ranks), **FEW)
    assert not (tmp_path / "out").exists()
    ranks.write_text("".join(f"{n} {1000 - n} {n + 4}\n" for n in range(1, 53)))
    out = tmp_path / "out"
    reproduce("mixing", tiny_bert, letters, out, limit=6, ranks=str(ranks), **FEW)
    before = (out / "tables" / "frequency.csv").read_bytes()
    ranks.unlink()
    build_report(out)
    assert (out / "tables" / "frequency.csv").read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_causal_models_have_one_run_and_their_own_components(tmp_path, letters):
    checkpoint = examples.tiny_checkpoint(tmp_path / "gpt2", model_type="gpt2")
    out = tmp_path / "out"
    reproduce(KINDS, checkpoint, letters, out, limit=8, **FEW)
    assert [path.name for path in (out / "runs").iterdir()] == ["letters-plain"]
    table = pd.read_csv(out / "tables" / "similarity.csv")
    assert list(table["component"]) == ["ATTN", "RES1", "LN", "FF", "RES2"]


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma2"])
def test_other_architectures(tmp_path, letters, model_type):
    checkpoint = examples.tiny_checkpoint(tmp_path / model_type, model_type=model_type)
    report = reproduce(KINDS, checkpoint, letters, tmp_path / "out", limit=6, **FEW)
    assert report.is_file()
    found = {
        section.experiment.name: [result for _, result in section.results]
        for section in describe(tmp_path / "out").sections
    }
    if model_type == "gpt_neox":  # a parallel block mixes nothing
        assert found["cancellation"] == [None]
    else:
        assert found["cancellation"] != [None]


def test_experiments_without_their_tables_have_no_result(tmp_path):
    bare: Any = SimpleNamespace(tables=["similarity"])
    evidence = Evidence("x", bare, tmp_path, settings=Settings(KINDS, "m", ("x",)))
    for experiment in EXPERIMENTS["mixing"]:
        assert experiment(evidence) is None


def test_what_cannot_go_into_one_folder(results, tmp_path, tiny_bert, letters):
    (tmp_path / "mine.txt").write_text("mine")
    new, nowhere = tmp_path / "new", str(tmp_path / "nowhere.txt")
    for kinds, data, out, given in (
        ("ff", letters, results, {"seed": 1}),
        ("ff", letters, results, {"limit": 5}),
        ("ff", letters, tmp_path, {}),
        ("ff", letters, new, {"seeds": 1}),
        ("tables", letters, new, {}),
        ("ff", letters, new, {"resamples": 3}),
        ("ff", letters, new, {"layer": 0}),
        ("ff", nowhere, new, {}),
    ):
        with pytest.raises(NormLensError):
            reproduce(kinds, tiny_bert, data, out, **given)
    with pytest.raises(InputError):
        build_report(tmp_path)
    assert not new.exists()
    for name, written in {
        "damaged": "{",
        "another": json.dumps({"report": "ablation"}),
        "unfinished": (results / "settings.json").read_text(),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.json").write_text(written)
        with pytest.raises(InputError):
            build_report(tmp_path / name)
    with pytest.raises(InputError):
        Settings((), "m", ("a.txt",))


@pytest.mark.usefixtures("undrawn")
def test_a_loaded_lens_and_a_users_own_relation(tmp_path, tiny_bert, letters, monkeypatch):
    (tmp_path / "far_relations.py").write_text(
        "import numpy as np\n\ndef three_apart(item):\n"
        "    return np.abs(np.subtract.outer(range(len(item)), range(len(item)))) == 3\n"
    )
    monkeypatch.chdir(tmp_path)
    lens = normlens.load(tiny_bert, device="cpu")
    out = tmp_path / "out"
    own = ("far_relations:three_apart",)
    reproduce("ff", lens, letters, out, relations=own, limit=8, **FEW)
    results = json.loads((out / "results.json").read_text())
    assert "three_apart" in json.dumps(results) or any(
        "three" in path.name for path in (out / "tables").iterdir()
    )


# Numbers ---------------------------------------------------------------------------------------


def test_table_1_is_the_mean_over_sequences_and_layers(masked):
    result = table_1_figure_5(masked)
    assert result is not None
    rows = masked.run.table("similarity")
    table = result.tables["similarity"].frame
    assert list(table["component"]) == ["ATTN", "RES1", "LN1", "FF", "RES2", "LN2"]
    for row in table.itertuples():
        own = rows[(rows["scope_a"] == row.before) & (rows["scope_b"] == row.after)]
        assert len(own)
        expected = own.groupby("index")["rho"].mean().mean()
        assert row.rho == pytest.approx(expected, abs=1e-12)
        assert row.low <= row.rho <= row.high
    layers = result.tables["similarity-layers"].frame
    own = rows[(rows["scope_a"] == "ATTNRESLN-N") & (rows["scope_b"] == "ATTNRESLNFF-N")]
    expected = own.groupby("layer")["rho"].mean().to_numpy()
    found = layers[layers["component"] == "FF"]
    assert list(found["layer"]) == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(found["rho"], expected, atol=1e-12)


def test_the_matrix_of_scopes_is_symmetric(masked):
    result = figure_12(masked)
    assert result is not None
    square = result.tables["similarity-matrix"].frame.set_index("scope")
    np.testing.assert_array_equal(square, square.T)
    rows = masked.run.table("similarity")
    own = rows[(rows["scope_a"] == "ATTN-W") & (rows["scope_b"] == "ATTNRESLN-N")]
    assert square.loc["ATTNRESLN-N", "ATTN-W"] == pytest.approx(own["rho"].mean(), abs=1e-12)


def test_top_pairs_are_those_with_the_largest_mean(plain):
    result = tables_2_3(plain)
    assert result is not None
    rows = plain.run.table("amplification_pairs")
    types = ["layer", "source_id", "target_id", "source_token", "target_token"]
    rows = rows[rows["after"] == "ATTNRESLNFF-N"]
    assert rows.duplicated(types).any()  # pairs of subwords that occur in several relations
    rows = rows.astype({"source_token": str, "target_token": str})
    rows = rows.groupby(types, as_index=False)[["count", "sum"]].sum()
    rows = rows[rows["count"] >= 2].assign(amp=lambda all: all["sum"] / all["count"])
    table = result.tables["amplified-by-ff"].frame
    for layer, own in table.groupby("layer"):
        best = rows[rows["layer"] == layer - 1].nlargest(10, "amp")
        np.testing.assert_allclose(own["amplification"], best["amp"], atol=1e-12)
        np.testing.assert_allclose(own["after"] - own["before"], own["amplification"], atol=1e-9)
        assert list(own["source"]) == list(best["source_token"])
        assert list(own["rank"]) == list(range(1, len(own) + 1))
    both = result.tables["amplified-by-layer"].frame
    keys = [set(zip(f["layer"], f["source"], f["target"], strict=True)) for f in (table, both)]
    assert set(map(tuple, table.loc[table["in both"], ["layer", "source", "target"]].values)) == (
        keys[0] & keys[1]
    )


@pytest.mark.parametrize(
    ("experiment", "column"),
    [(figure_10, "ff_output_norm"), (section_6_2, "rho_without")],
)
def test_means_by_layer(masked, experiment, column):
    ((name, table),) = experiment(masked).tables.items()
    rows = masked.run.table(name.replace("-", "_"))
    np.testing.assert_allclose(table.frame[column], rows.groupby("layer")[column].mean(), atol=1e-9)


def test_dimensions(masked):
    own = masked.run.table("norms_dimensions")
    table = figure_11(masked).tables["dimensions"].frame
    np.testing.assert_allclose(table["output"], own["sum_output_abs"] / own["count"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_experiment_has_an_answer_and_its_pictures_can_be_drawn(described, kind):
    sections = {s.experiment.name: s for s in described.sections}
    for experiment in EXPERIMENTS[kind]:
        assert experiment.question.endswith("?")
        assert experiment.method
        assert experiment.read
        for _, result in sections[experiment.name].results:
            if result is None:
                assert experiment.absent
                continue
            for figure in result.figures.values():
                assert figure.caption
                assert figure.draw().axes
            for table in result.tables.values():
                assert table.caption
                assert table.text().shape == table.frame.shape
                assert not (table.text() == "nan").any(axis=None)


# Against the papers ----------------------------------------------------------------------------


def test_published_figures():
    values = {(p.model, p.key): p.value for p in published()}
    base = "bert-base-uncased"
    table = {"ATTN": 0.48, "RES1": 0.41, "LN1": 0.91, "FF": 0.79, "RES2": 0.96, "LN2": 0.73}
    assert {name: values[base, f"table1/{name}"] for name in table} == table
    rates = [values[base, f"expansion/layer-{layer}"] for layer in range(1, 13)]
    assert np.mean(rates) == pytest.approx(values[base, "expansion/mean"], abs=1e-3)
    significant = [values[base, f"significance/same_word/layer-{n}"] for n in range(1, 13)]
    assert [n for n, s in enumerate(significant, 1) if s] == [3, 4, 5, 6, 7, 9, 10, 11]


def compared(measured: dict[str, float], model: str, data: str) -> list[Comparison]:
    return compare(measured, evidence_of(FrameRun({}, [], name=model), data))


@pytest.mark.parametrize(
    ("model", "data", "same"),
    [
        ("bert-base-uncased", "unlabeled_attn", True),
        ("google-bert/bert-base-uncased", "unlabeled_attn", True),
        ("bert-base-uncased", "sst2", False),
        ("bert-large-uncased", "unlabeled_attn", False),
    ],
)
def test_only_the_same_model_on_the_same_data_is_compared(model, data, same):
    found = compared({"table1/FF": 0.8}, model, data)
    assert {comparison.same for comparison in found} == {same}
    (block,) = [c for c in found if c.published.key == "table1/FF"]
    assert block.difference == pytest.approx(0.01)
    assert next(c for c in found if c.published.key == "table1/LN2").difference is None


def test_of_several_published_models_the_runs_own_counts():
    found = compared({"expansion/mean": 1.0}, "prajjwal1/bert-tiny", "")
    assert {c.published.model for c in found} == {"bert-tiny"}
    assert all(c.same for c in found)
    found = compared({"mixing/ATTN-W": 1.0}, "gpt2", "")
    assert {c.published.model for c in found} == {"bert-base-uncased"}

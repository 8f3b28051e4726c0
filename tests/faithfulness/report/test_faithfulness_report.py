"""The page of a faithfulness run: its numbers, and what it says where there are too few."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from faithfulness_examples import examples, made_up_run
from run_records import forget
from shell import Shell

from normlens.corpus.runs.runs import run
from normlens.errors import InputError
from normlens.measures.bootstrap import holm, mean_intervals, sign_flip_p
from normlens.studies.faithfulness.ranking import (
    FLIPS,
    HOLM,
    RESAMPLES,
    Ranking,
    compare_methods,
    comparisons_of,
    intact,
    rank,
)
from normlens.studies.faithfulness.report import (
    averaged_curves,
    build_report,
    choose_examples,
    describe,
)
from normlens.studies.reports.contents import Evidence

FEW = {"normlens": 0.5, "alti": 0.4, "random": 0.2}
NASTY = '<b>&"$x_1$'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return made_up_run(tmp_path_factory.mktemp("faithfulness"), token=NASTY)


@pytest.fixture(scope="module")
def evidence(finished):
    return Evidence("letters", finished)


@pytest.fixture(scope="module")
def written(finished):
    return build_report(finished.folder.url).parent


# Numbers -----------------------------------------------------------------------------------------


def test_values_and_intervals_are_those_of_the_rows(evidence):
    rows = evidence.run.table("faithfulness")  # type: ignore[union-attr]
    some = rows[(rows["protocol"] == "aopc") & (rows["method"] == "alti")]
    row = rank(evidence, "aopc", 0).row("alti")
    for first, names in {
        "most": ("value", "low", "high"),
        "least": ("least first", "least first low", "least first high"),
    }.items():
        values = some[some["first"] == first]["value"].to_numpy()
        expected = [column[0] for column in mean_intervals(values[:, None], RESAMPLES)]
        assert [row[name] for name in names] == pytest.approx(expected)
    removals = evidence.run.table("removals")  # type: ignore[union-attr]
    of_alti = removals[(removals["protocol"] == "aopc") & (removals["method"] == "alti")]
    for first, name in {"most": "accuracy", "least": "accuracy, least first"}.items():
        expected = of_alti[of_alti["first"] == first]["correct"].astype(float).mean()
        assert row[name] == pytest.approx(expected)
    assert row["examples"] == 24


def test_differences_are_paired_and_adjusted_over_all_comparisons(tmp_path):
    methods = {"alti": 0.5, "normlens": 0.45, "globenc": 0.4, "random": 0.2}
    made = made_up_run(tmp_path, protocols=["aopc"], methods=methods)
    ranking = rank(Evidence("letters", made), "aopc", 0)
    compared = compare_methods(ranking)
    assert len(compared) == 5  # three of alti, and two of normlens beside them
    normlens = comparisons_of("normlens", compared).set_index("against")
    values = ranking.values
    row = normlens.loc["globenc"]
    difference = (values["normlens"] - values["globenc"]).to_numpy()
    assert row["difference"] == pytest.approx(difference.mean())
    assert row["p"] == sign_flip_p(difference, FLIPS)[0]
    assert compared[HOLM].tolist() == holm(compared["p"]).tolist()
    turned = normlens.loc["alti"]
    there = comparisons_of("alti", compared).set_index("against").loc["normlens"]
    assert turned["difference"] == -there["difference"]
    assert (turned["low"], turned["high"]) == (-there["high"], -there["low"])
    assert turned["low"] <= turned["difference"] <= turned["high"]


def test_curves_begin_with_the_whole_texts(evidence):
    texts = intact(evidence)
    ranking = rank(evidence, "aopc", 0)
    drawn = averaged_curves(evidence, ranking)
    assert drawn is not None
    frame = drawn.frame.set_index(["quantity", "first", "method", "share"])
    whole = texts["probability"].mean()
    assert frame.loc[("probability", "most", "alti", 0.0), "value"] == pytest.approx(whole)
    assert drawn.whole == pytest.approx(
        {"probability": whole, "accuracy": texts["right_class"].mean()}
    )
    rows = evidence.run.table("removals")  # type: ignore[union-attr]
    some = rows[(rows["protocol"] == "aopc") & (rows["method"] == "alti") & (rows["share"] == 0.5)]
    least = some[some["first"] == "least"]["probability"]
    assert frame.loc[("probability", "least", "alti", 0.5), "value"] == pytest.approx(least.mean())
    assert averaged_curves(evidence, rank(evidence, "evidence", 0)) is None


def test_curves_of_deletions_are_given_their_beginning(evidence, tmp_path):
    made = made_up_run(tmp_path, protocols=["comprehensiveness"])
    deletion = Evidence("letters", made)
    begun = averaged_curves(deletion, rank(deletion, "comprehensiveness", 0))
    kept = averaged_curves(evidence, rank(evidence, "sufficiency", 0))
    assert begun is not None
    assert kept is not None
    assert begun.frame["share"].min() == 0
    assert kept.frame["share"].min() == 0.01  # nothing kept is not the whole text
    at_0 = begun.frame[(begun.frame["share"] == 0) & (begun.frame["quantity"] == "probability")]
    assert at_0["value"].to_numpy() == pytest.approx(begun.whole["probability"])


# Which examples ----------------------------------------------------------------------------------


def ranked(lead: list[float]) -> Ranking:
    values = pd.DataFrame({"a": lead, "b": 0.0})
    table = pd.DataFrame({"method": ["a", "b"], "value": [np.mean(lead), 0.0]})
    return Ranking("aopc", values, table, 0)


def texts(ordinary: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"index": range(len(ordinary)), "ordinary": ordinary})


def test_examples_are_spread_over_the_lead():
    lead = [0.1 * k for k in range(9)]
    assert choose_examples(ranked(lead), texts([10] * 9)) == [8, 6, 4, 2, 0]
    # Texts that are too long or too short to read are left out while there are enough others.
    assert choose_examples(ranked(lead), texts([10] * 8 + [90])) == [7, 5, 4, 2, 0]
    assert choose_examples(ranked(lead), texts([90] * 9)) == [8, 6, 4, 2, 0]
    assert choose_examples(ranked([0.2, 0.1]), texts([3, 3])) == [0, 1]
    assert choose_examples(ranked([0.0] * 3), texts([9, 8, 8])) == [0, 2, 1]


# Which comparisons -------------------------------------------------------------------------------


def tables_of(folder: Path, protocol: str = "aopc", **options: object) -> dict[str, pd.DataFrame]:
    made = made_up_run(folder, protocols=[protocol], **options)  # type: ignore[arg-type]
    (_, result) = describe(made).sections[0].results[0]
    return {name: table.frame for name, table in result.tables.items()}  # type: ignore[union-attr]


def test_normlens_behind_another_method_has_a_table_of_its_own(tmp_path):
    methods = {"normlens": 0.4, "alti": 0.6, "globenc": 0.2}
    tables = tables_of(tmp_path, methods=methods)
    assert tables["aopc-winner"]["against"].tolist() == ["normlens", "globenc"]
    rows = tables["aopc-normlens"].set_index("against")["difference"]
    assert rows["alti"] < 0 < rows["globenc"]


def test_a_rival_is_of_another_family(tmp_path):
    methods = {"normlens": 0.5, "normlens-gradient": 0.5, "alti": 0.4, "random": 0.1}
    made = made_up_run(tmp_path, protocols=["aopc"], methods=methods, noise=0.02)
    assert rank(Evidence("letters", made), "aopc", 0).rival == "alti"


# The page ----------------------------------------------------------------------------------------


def test_the_report_is_a_page_and_files(written):
    page = (written / "report.html").read_text("utf-8")
    results = json.loads((written / "results.json").read_text("utf-8"))
    assert [experiment["name"] for experiment in results["experiments"]] == [
        "overview",
        "aopc",
        "sufficiency",
        "evidence",
        "costs",
        "examples",
    ]
    assert all((written / name).is_file() for name in results["files"])
    assert "do not exist for this model and these data" in page
    assert "Completeness error" not in page
    names = {Path(name).name for name in results["files"]}
    assert {"aopc.csv", "aopc.tex", "aopc-winner.csv", "aopc-curves.svg", "costs.csv"} <= names
    assert {f"example-{place}.png" for place in range(1, 6)} <= names
    frame = pd.read_csv(written / "tables" / "aopc.csv")
    assert frame["method"].tolist()[0] == "normlens"


def test_tokens_are_coloured_and_escaped(written):
    page = (written / "report.html").read_text("utf-8")
    assert NASTY not in page
    escaped = "&lt;b&gt;&amp;&#34;$x_1$"
    assert re.search(
        rf'<i style="background:rgba\(\d+,\d+,\d+,0\.\d\d\);color:#\w+" title="[+−]\d+ %">'
        rf"{re.escape(escaped)}</i>",
        page,
    )
    assert page.count('<i class="special">[CLS]</i>') == 5 * 8  # priors are not shown
    assert page.count('class="key"') == 5


def test_a_protocol_of_ones_own_has_a_section(tmp_path):
    made = made_up_run(tmp_path, protocols=["it's mine"])
    report = describe(made)
    assert report.sections[0].experiment.title == "it's mine"
    assert "it's mine" in report.sections[0].results[0][1].tables  # type: ignore[union-attr]


# Refusals and the command line -------------------------------------------------------------------


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    made = made_up_run(tmp_path)
    forget(tmp_path / "run", 1)
    with pytest.raises(InputError):
        build_report(made.folder.url)


def test_a_run_without_values_is_refused(tmp_path):
    with pytest.raises(InputError):
        describe(made_up_run(tmp_path, only=0))


@pytest.mark.usefixtures("sketched")
def test_report_command_knows_a_run(finished, written, capsys):
    assert Shell(capsys)("reproduce", "report", finished.folder.url).strip() == str(
        written / "report.html"
    )


def test_a_run_of_other_measures_has_no_report(tmp_path, capsys):
    model = examples.tiny_checkpoint(tmp_path / "tiny-bert")
    data = examples.corpus_file(tmp_path / "letters.txt", 3)
    run(str(model), data, tmp_path / "run", measures="norms")
    error = Shell(capsys).error("reproduce", "report", tmp_path / "run")
    assert "has no report" in error
    with pytest.raises(InputError):
        build_report(tmp_path / "run")


def test_a_single_method_is_compared_with_none(tmp_path):
    assert set(tables_of(tmp_path, methods={"alti": 0.4})) == {"aopc", "aopc-curves"}

"""``normlens evaluate``: its exit statuses and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "corpus"))
sys.path.append(str(Path(__file__).parents[1] / "faithfulness"))

import evaluation_examples as examples

from normlens import cli

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return examples.Places.make(tmp_path_factory.mktemp("evaluate-command"))


def words(places: examples.Places, out: Path, *more: str) -> list[str]:
    given = ["evaluate", "-m", str(places.classifier), "-d", str(places.labelled), "-o", str(out)]
    return [*given, "--methods", "random,first-token", "--device", "cpu", *more]


def test_an_evaluation_and_its_page(places, tmp_path, capsys):
    out = tmp_path / "run"
    given = words(places, out, "--label-column", "label", "--protocols", "aopc", "-q")
    assert cli.main(given) == 0
    page = out / "report" / "report.html"
    assert capsys.readouterr().out.split() == [str(page)]
    assert "AOPC" in page.read_text("utf-8")
    query = "SELECT method, avg(value) AS aopc FROM faithfulness GROUP BY 1 ORDER BY 1"
    assert cli.main(["query", str(out), query, "--csv"]) == 0
    assert capsys.readouterr().out.split()[0] == "method,aopc"
    # The same words, and the folder alone, find it done.
    assert cli.main([*given, "--no-page"]) == 0
    assert cli.main(["evaluate", "--resume", str(out), "-q", "--no-page"]) == 0
    assert cli.main(["check", str(out)]) == 0


def test_failures_are_told_by_the_exit_status(places, tmp_path, capsys):
    given = words(places, tmp_path / "run", "--no-page", "-q")
    given[2], given[4] = str(places.causal), str(places.evidence)
    assert cli.main(given) == 3
    assert "1 of 9 sequences failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--protocols", "evidence"], "evidence is for causal language models"),
        (["--label-column", "nothing"], "no column 'nothing'"),
        (["--resume", "there"], "--out for a new evaluation or --resume"),
    ],
)
def test_what_is_refused(places, tmp_path, capsys, more, said):
    assert cli.main(words(places, tmp_path / "run", *more)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert said in lines[-1]
    assert not (tmp_path / "run" / "manifest.json").exists()

"""The report of an alignment: rates, components, heads, an example, published figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pair_examples import fast_tokenizer, with_head
from shell import Shell

import normlens
from normlens.errors import InputError
from normlens.studies.alignment.gold import error_rates
from normlens.studies.alignment.report import build_report, describe

for package in ("duckdb", "jinja2", "matplotlib"):
    pytest.importorskip(package, reason=f"reports need {package}")

WORDS = ["the", "house", "is", "small", "and", "green"]
OTHERS = ["la", "maison", "est", "petite", "et", "verte"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alignment")
    data, gold = folder / "pairs.txt", folder / "pairs.gold"
    pairs = [(WORDS[:n], OTHERS[:n]) for n in (2, 3, 4, 6)]
    data.write_text("".join(f"{' '.join(s)} ||| {' '.join(t)}\n" for s, t in pairs))
    gold.write_text("".join(" ".join(f"{n}-{n}" for n in range(len(s))) + "\n" for s, _ in pairs))
    lens = normlens.load(with_head("bart"), fast_tokenizer())
    return normlens.align(lens, data, folder / "run", gold=gold, scopes="all,explain", head="all")


@pytest.fixture(scope="module")
def report(run):
    return describe(run)


def test_the_table_is_that_of_the_error_rates(run, report):
    (_, result) = report.sections[0].results[0]
    rates = error_rates(run).table
    together = rates[(rates["head"] < 0) & (rates["way"] == "input")]
    table = result.tables["aer-input"].frame.set_index("scope")
    assert list(table) == ["layer 1", "layer 2", "layer 3"]
    for scope, some in together.groupby("scope"):
        assert table.loc[scope].tolist() == (100 * some.sort_values("layer")["aer"]).tolist()


def test_the_page_marks_published_figures_as_anothers(run):
    path = build_report(run.folder.path)
    assert path == run.folder.path / "report" / "report.html"
    page = path.read_text()
    assert "section 5 (German–English pairs)" in page
    assert "for orientation only" in page
    for value in ("29.8", "25.0", "47.7", "41.4", "10.5", "8.2"):
        assert re.search(rf">{re.escape(value)} \([^<]+\)</td><td[^>]*>\d+\.\d \(", page), value
    assert ">difference<" not in page


def test_components_are_compared_on_the_same_pairs(run, report):
    rates = error_rates(run)
    (_, result) = report.sections[1].results[0]
    table = result.tables["alignment-components"].frame
    assert list(table["component"].unique()) == ["RES2", "LN2", "FF", "RES3", "LN3"]
    assert (table.loc[table["component"] == "RES2", ["change", "low", "high"]] == 0).all(axis=None)
    row = table[(table["way"] == "output") & (table["layer"] == 2) & (table["component"] == "FF")]
    by_name = rates.table[rates.table["head"] < 0].set_index(["scope", "way", "layer"])["aer"]
    before, after = (by_name[f"ATTNRESLNCROSSRESLN{end}-N", "output", 1] for end in ("", "FF"))
    assert row["change"].item() == pytest.approx(100 * (after - before))


def test_a_report_needs_gold_links(run, tmp_path, capsys):
    lens = normlens.load(with_head("bart"), fast_tokenizer())
    data = Path(run.manifest.options.data)
    plain = normlens.align(lens, data, tmp_path / "plain")
    with pytest.raises(InputError):
        build_report(tmp_path / "plain")
    assert "gold" in Shell(capsys).error("reproduce", "report", tmp_path / "plain")
    assert Shell(capsys)("reproduce", "report", run.folder.path).strip().endswith("report.html")
    assert plain.status().complete

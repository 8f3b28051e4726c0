"""Reports: what is written, that it is whole, and that nothing of it is taken for markup."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from report_examples import MODEL, NASTY, RUN, experiment, lines, report, result, same

from normlens.errors import OutputError
from normlens.results.words import harmless
from normlens.studies.reports import files, words
from normlens.studies.reports.contents import Figure, Header, Report, Result, Section, Table
from normlens.studies.reports.drawing import panels
from normlens.studies.reports.files import write
from normlens.studies.reports.words import LAYER, texts

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}


class Page(HTMLParser):
    """Elements of a page, their texts, and every attribute that could load something."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.pointers: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and (value or "").startswith("#"):
                self.pointers.append((value or "")[1:])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


FOUND = [("sst2", result()), ("wiki/103 é", result(0.8)), ("none", None)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on two data sets, on a third of which the experiment does not apply."""
    place = tmp_path_factory.mktemp("report")
    write(report(FOUND, part="Feed-forward <blocks>"), place)
    return place


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}


def test_every_file_is_there_listed_and_the_same_again(folder, tmp_path):
    there = files_of(folder)
    assert {"report.html", "results.json", "figures/again-sst2.png"} <= there.keys()
    assert {"tables/pairs-sst2.csv", "tables/pairs-wiki-103-e.tex"} <= there.keys()
    assert set(json.loads(there["results.json"].read_text("utf-8"))["files"]) == there.keys()
    write(report(FOUND, part="Feed-forward <blocks>"), tmp_path)
    for name, path in files_of(tmp_path).items():
        assert path.read_bytes() == there[name].read_bytes(), name


def test_names_that_would_be_the_same_file_are_told_apart(tmp_path):
    table = Table(pd.DataFrame({"a": [1]}), caption="A.")
    sections = [Section(experiment(str(n)), [("", Result({"x y": table}))]) for n in (1, 2)]
    sections.append(Section(experiment("3"), [("", Result({"X/Y": table, "한": table}))]))
    write(Report("R", Header(MODEL, [RUN]), sections), tmp_path)
    names = {path.name for path in (tmp_path / "tables").glob("*.csv")}
    assert names == {"x-y.csv", "x-y-2.csv", "x-y-3.csv", "unnamed.csv"}


def test_figures_and_tables_of_an_earlier_report_go(tmp_path):
    write(report(), tmp_path)
    (tmp_path / "figures" / "mine.svg").write_text("<svg/>")
    fewer = replace(result(), figures={}, tables={"pairs": result().tables["pairs"]})
    write(report([("sst2", fewer)]), tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"mine.svg"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"pairs.csv", "pairs.tex"}
    (tmp_path / "results.json").write_text("{")  # names nothing, so nothing is removed
    write(report([("sst2", Result(summary={"x": 1.0}))]), tmp_path)
    assert len(list((tmp_path / "tables").iterdir())) == 2


def test_a_stop_in_the_middle_leaves_whole_files(tmp_path):
    def stopped() -> None:
        raise KeyboardInterrupt

    figures = {"first": Figure(lambda: lines([1.0, 2.0]), "First"), "second": Figure(stopped, "S")}
    with pytest.raises(KeyboardInterrupt):
        write(report([("sst2", Result(figures=figures))]), tmp_path)
    assert files_of(tmp_path).keys() == {"figures/first.svg", "figures/first.png"}
    with pytest.raises(OutputError):
        write(report(), tmp_path / "figures" / "first.svg")


def test_results_hold_summary_comparisons_and_every_row(folder):
    found = json.loads((folder / "results.json").read_text("utf-8"))
    (described,) = found["experiments"]
    first, second = described["results"]
    assert (first["data"], second["data"]) == ("sst2", "wiki/103 é")
    assert first["summary"] == {"ρ of FF": pytest.approx(0.7), "undefined": None}
    assert first["comparisons"][0]["difference"] == pytest.approx(0.5 - 0.79)
    assert first["comparisons"][0]["same"] is False
    assert (found["model"]["layers"], found["layers_counted_from"]) == (2, 1)
    assert LAYER in first["tables"]["pairs"]["columns"]
    assert "the model has no such component" in described["absent"]
    tables = {name: folder / table["csv"] for name, table in second["tables"].items()}
    read = pd.read_csv(tables["pairs"], keep_default_na=False)
    assert list(read["source"]) == [harmless(text) for text in NASTY]
    assert len(pd.read_csv(tables["many"])) == 60
    layers = pd.read_csv(tables["similarity-layers"])
    assert list(layers) == ["component", "layer (counted from 1)", "rho", "low", "high"]
    assert layers["rho"].iloc[0] == pytest.approx(0.72, abs=1e-15)


# The page ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text("utf-8"))


def test_the_page_is_well_formed_and_loads_nothing(page, folder):
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert page.pointers
    assert set(page.pointers) <= set(page.ids)
    assert page.tags["img"] == 4
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    loading = [
        (tag, name, value)
        for tag, name, value in page.attributes
        if name in ("srcset", "data", "poster", "background", "action")
        or (name == "src" and not value.startswith("data:image/svg+xml;base64,"))
        or (name.endswith("href") and not value.startswith("#"))
    ]
    assert loading == []
    text = (folder / "report.html").read_text("utf-8")
    assert re.findall(r"@import|https?://", text) == []


def test_nothing_on_the_page_is_taken_for_markup(page):
    assert not {"i", "script", "model", "blocks"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    shown = " ".join(page.texts)
    for text in (*NASTY, "Report of <model> & data", "Feed-forward <blocks>", "</p><script>"):
        assert text in shown


def test_long_tables_are_folded_and_say_where_the_rest_is(page):
    assert "30 more rows in tables/many-sst2.csv" in " ".join(page.texts)
    folds = [v for tag, name, v in page.attributes if (tag, name) == ("details", "class")]
    assert folds == ["fold"] * 2  # "many", on two data sets


@pytest.mark.parametrize(
    ("measured", "shown"), [(0.70, "−0.03"), (0.75, "+0.02"), (0.7301, "±0.00"), (None, "–")]
)
def test_published_figures_of_this_model_have_a_difference(tmp_path, measured, shown):
    write(report([("sst2", Result(comparisons=[same(measured)]))]), tmp_path)
    texts = Page((tmp_path / "report.html").read_text("utf-8")).texts
    assert {"difference", shown} <= set(texts)
    assert "for orientation only" not in " ".join(texts)


def test_sections_of_one_part_stand_under_one_heading(tmp_path):
    sections = [
        Section(experiment(str(n)), [("sst2", Result())], part=part)
        for n, part in enumerate(("First", "First", "Second"))
    ]
    write(Report("R", Header(MODEL, [RUN]), sections), tmp_path)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.texts.count("First") == page.texts.count("Second") == 2  # contents and heading
    assert page.tags["section"] == 3


# Pictures ----------------------------------------------------------------------------------------


def test_svg_has_letters_as_paths_and_no_date():
    root = ElementTree.fromstring(files.svg(lines([1.0, 2.0])))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "path" in tags
    assert not {"text", "metadata"} & tags


def test_a_figure_with_very_many_points_stays_small():
    figure, (axes,) = panels()
    axes.scatter(range(20_000), range(20_000), s=1)
    drawn = files.svg(figure)
    assert len(drawn) <= files.LARGEST
    assert b"data:image/png;base64," in drawn
    assert b'viewBox="0 0 244.8 180"' in drawn


# LaTeX -------------------------------------------------------------------------------------------


def test_latex_is_balanced_and_every_row_has_all_columns(folder):
    def unescaped(text: str) -> str:
        return re.sub(r"\\[\\{}&%#$_]", "", text)

    for path in (folder / "tables").glob("*.tex"):
        text = unescaped(path.read_text("utf-8"))
        assert text.count("{") == text.count("}"), path
        assert text.count("$") % 2 == 0, path
    source = (folder / "tables" / "pairs-sst2.tex").read_text("utf-8")
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", source)
    assert columns == "rlrl"
    body = source[source.index("\\toprule") : source.index("\\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(NASTY) + 1
    assert {unescaped(row).count("&") for row in rows} == {len(columns) - 1}


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("##s_", r"\#\#s\_"),
        ("100 %", r"100 \%"),
        ("\\{~^}", r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\}"),
        ("[CLS]*", "{[}CLS]{*}"),
        ("–−ρ", r"--$-$$\rho$"),
        ("a|<b>", r"a\textbar{}\textless{}b\textgreater{}"),
        ("a\nb\x00Ġ", "a b Ġ"),
    ],
)
def test_latex_prints_what_it_is_given(text, printed):
    assert files.latex_escaped(text) == printed


def test_long_tables_run_over_pages():
    frame = pd.DataFrame({"a": range(200)})
    assert r"\begin{tabular}{r}" in files.latex(Table(frame.head(45), caption="C"))
    long = files.latex(Table(frame, caption="ρ of a_b", file="n"))
    assert r"\begin{longtable}{r}" in long
    assert r"\caption{$\rho$ of a\_b} \label{tab:n}" in long
    assert [f"{n} \\\\" in long.splitlines() for n in range(200)] == [True] * 200


# Words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (words.number, 0.1234, "0.123"),
        (words.number, -12.5, "−12.500"),
        (words.number, 3.0, "3"),
        (words.number, 12345.6, "12345.6"),
        (words.number, 2.5e-7, "2.5 × 10⁻⁷"),
        (words.number, float("nan"), "–"),
        (words.number, None, "–"),
        (words.fixed, -0.456, "−0.46"),
        (words.slug, "Ünï/..\\x", "uni-x"),
        (words.slug, "a same_word", "a-same_word"),
        (words.slug, "..", "unnamed"),
    ],
)
def test_numbers_and_names_of_files(write, value, text):
    assert write(value) == text


def test_cells_of_tables():
    frame = pd.DataFrame({"x": [1.234, float("nan")], "t": ["a-b", None], "b": [True, False]})
    text = Table(frame, ".1f").text()
    assert text.to_numpy().tolist() == [["1.2", "a-b", "yes"], ["–", "–", "no"]]


def test_header_of_a_report_that_takes_no_model_apart():
    header = Header(MODEL, [RUN], notes=[("Task", "two classes")], decomposed=False)
    labels = [label for label, _ in header.facts]
    assert "Task" in labels
    assert "Completeness error" not in labels
    assert list(header.run_table.frame) == ["data", "sequences", "tokens", "failures"]
    assert header.run_table.rows == [("sst2 (sst2:dev.tsv)", "10", "1,234", "1")]
    assert len(Header(MODEL, [RUN]).run_table.rows[0]) == 6


@pytest.mark.parametrize("study", ["papers", "faithfulness", "ablation", "alignment"])
def test_the_words_of_a_study_are_whole(study):
    every = texts(study)
    # A protocol's section may leave out what [protocol] has.
    general = every.get("protocol", {})
    for name in every.keys() - {"captions"}:
        own = {**(general if "value" in every[name] else {}), **every[name]}
        assert {"title", "source", "question", "method"} <= set(own), name
        assert own["question"].endswith("?")
    for text in every["captions"].values():
        assert text.endswith((".", "{figure}."))


def test_the_largest_completeness_error_counts():
    runs = [RUN, replace(RUN, completeness=2e-6), replace(RUN, completeness=None)]
    assert "at most 2.0 × 10⁻⁶" in Header(MODEL, runs).completeness
    assert "no sequence" in Header(MODEL, [runs[2]]).completeness

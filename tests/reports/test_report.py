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
from normlens.studies.reports import files as markdown
from normlens.studies.reports import files as pictures
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on two data sets, on a third of which the experiment does not apply."""
    place = tmp_path_factory.mktemp("report")
    found = [("sst2", result()), ("wiki/103 é", result(0.8)), ("none", None)]
    write(report(found, part="Feed-forward <blocks>"), place)
    return place


def test_every_file_is_there_and_listed(folder):
    page = write(report(), folder / "single")
    assert page == folder / "single" / "report.html"
    there = [path for path in page.parent.rglob("*") if path.is_file()]
    names = {path.relative_to(page.parent).as_posix() for path in there}
    assert {"report.html", "report.md", "results.json", "figures/again.png"} <= names
    assert {"tables/pairs.csv", "tables/pairs.tex", "figures/similarity.svg"} <= names
    found = json.loads((page.parent / "results.json").read_text("utf-8"))
    assert set(found["files"]) == names


def test_names_that_would_be_the_same_file_are_told_apart(tmp_path):
    table = Table(pd.DataFrame({"a": [1]}), "A.")
    sections = [Section(experiment(str(n)), [("", Result({"x y": table}))]) for n in (1, 2)]
    sections.append(Section(experiment("3"), [("", Result({"X/Y": table, "한": table}))]))
    write(Report("R", Header(MODEL, [RUN]), sections), tmp_path)
    names = {path.name for path in (tmp_path / "tables").glob("*.csv")}
    assert names == {"x-y.csv", "x-y-2.csv", "x-y-3.csv", "unnamed.csv"}


def test_building_twice_gives_the_same_bytes(folder, tmp_path):
    found = [("sst2", result()), ("wiki/103 é", result(0.8)), ("none", None)]
    write(report(found, part="Feed-forward <blocks>"), tmp_path)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes(), path


def test_figures_and_tables_of_an_earlier_report_go(tmp_path):
    write(report(), tmp_path)
    (tmp_path / "figures" / "mine.svg").write_text("<svg/>")
    fewer = replace(result(), figures={}, tables={"pairs": result().tables["pairs"]})
    write(report([("sst2", fewer)]), tmp_path)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"mine.svg"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"pairs.csv", "pairs.tex"}
    (tmp_path / "results.json").write_text("{")  # names nothing, so nothing is removed
    write(report([("sst2", Result(summary={"x": 1.0}))]), tmp_path)
    assert len(list((tmp_path / "tables").iterdir())) == 2


def test_a_stop_in_the_middle_leaves_whole_files(tmp_path):
    def stopped() -> None:
        raise KeyboardInterrupt

    figures = {"first": Figure(lambda: lines([1.0, 2.0]), "First"), "second": Figure(stopped, "")}
    with pytest.raises(KeyboardInterrupt):
        write(report([("sst2", Result(figures=figures))]), tmp_path)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"first.svg", "first.png"}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as error:
        write(report(), tmp_path / "file")
    assert "\n" not in str(error.value)


# The numbers -------------------------------------------------------------------------------------


def test_results_hold_summary_and_comparisons(folder):
    found = json.loads((folder / "results.json").read_text("utf-8"))
    first, second = found["experiments"][0]["results"]
    assert (first["data"], second["data"]) == ("sst2", "wiki/103 é")
    assert first["summary"] == {"ρ of FF": pytest.approx(0.7), "undefined": None}
    assert first["comparisons"][0]["difference"] == pytest.approx(0.5 - 0.79)
    assert first["comparisons"][0]["same"] is False
    assert (folder / second["tables"]["pairs"]["csv"]).is_file()
    assert found["model"]["layers"] == 2
    assert found["layers_counted_from"] == 1
    assert LAYER in first["tables"]["pairs"]["columns"]
    assert "the model has no such component" in found["experiments"][0]["absent"]


def test_csv_holds_every_row_at_full_precision(folder):
    read = pd.read_csv(folder / "tables" / "pairs-sst2.csv", keep_default_na=False)
    assert list(read["source"]) == [harmless(text) for text in NASTY]
    assert len(pd.read_csv(folder / "tables" / "many-sst2.csv")) == 60
    layers = pd.read_csv(folder / "tables" / "similarity-layers-wiki-103-e.csv")
    assert list(layers) == ["component", "layer (counted from 1)", "rho", "low", "high"]
    assert layers["rho"].iloc[0] == pytest.approx(0.72, abs=1e-15)


# The page ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text("utf-8"))


def test_the_page_is_well_formed_and_its_ids_are_unique(page):
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert set(page.pointers) <= set(page.ids)
    assert page.pointers  # contents
    assert page.tags["img"] == 4


def test_the_page_loads_nothing(page, folder):
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
    assert "@import" not in text
    assert re.findall(r"https?://", text) == []


def test_nothing_on_the_page_is_taken_for_markup(page):
    assert not {"i", "script", "model", "blocks"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    for token in NASTY:
        assert token in page.texts
    shown = " ".join(page.texts)
    assert "Report of <model> & data" in shown
    assert "Feed-forward <blocks>" in shown
    assert "Does </p><script> matter?" in shown


def test_long_tables_are_folded_and_say_where_the_rest_is(page):
    shown = " ".join(page.texts)
    assert "40 more rows in tables/many-sst2.csv" in shown
    folds = [v for tag, name, v in page.attributes if (tag, name) == ("details", "class")]
    assert folds == ["fold"] * 4  # "pairs" and "many", on two data sets


@pytest.mark.parametrize(
    ("measured", "shown"), [(0.70, "−0.03"), (0.75, "+0.02"), (0.7301, "±0.00"), (None, "–")]
)
def test_published_figures_of_this_model_have_a_difference(tmp_path, measured, shown):
    write(report([("sst2", Result(comparisons=[same(measured)]))]), tmp_path)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert "difference" in page.texts
    assert shown in page.texts
    assert "for orientation only" not in " ".join(page.texts)
    assert f"| {shown} |" in (tmp_path / "report.md").read_text("utf-8")


# Pictures ----------------------------------------------------------------------------------------


def test_svg_has_letters_as_paths_and_no_date():
    drawn = pictures.svg(lines([1.0, 2.0]))
    root = ElementTree.fromstring(drawn)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "path" in tags
    assert "text" not in tags
    assert "metadata" not in tags


def test_a_large_svg_names_its_letters(monkeypatch):
    figure = lines([1.0, 2.0])
    assert b"<text" not in pictures.svg(figure)
    monkeypatch.setattr(pictures, "PATHS", 10_000)
    assert b"<text" in pictures.svg(figure)


def test_a_figure_with_very_many_points_stays_small():
    figure, (axes,) = panels()
    axes.scatter(range(20_000), range(20_000), s=1)
    drawn = pictures.svg(figure)
    assert len(drawn) <= pictures.LARGEST
    assert b"data:image/png;base64," in drawn
    assert b'viewBox="0 0 244.8 180"' in drawn


# LaTeX -------------------------------------------------------------------------------------------


def unescaped(text: str) -> str:
    """LaTeX without its commands' letters: only what groups and separates."""
    return re.sub(r"\\[\\{}&%#$_]", "", text)


def test_latex_is_balanced_and_every_row_has_all_columns(folder):
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
        ("##s", r"\#\#s"),
        ("a_b", r"a\_b"),
        ("100 %", r"100 \%"),
        ("\\{~^}", r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\}"),
        ("[CLS]", "{[}CLS]"),
        ("*", "{*}"),
        ("–−", "--$-$"),
        ("a|<b>", r"a\textbar{}\textless{}b\textgreater{}"),
        ("ρ", r"$\rho$"),
        ("a\nb\x00", "a b "),
        ("Ġthe", "Ġthe"),
    ],
)
def test_latex_prints_what_it_is_given(text, printed):
    assert files.latex_escaped(text) == printed


def test_long_tables_run_over_pages():
    frame = pd.DataFrame({"a": range(200)})
    assert r"\begin{tabular}{r}" in files.latex(Table(frame.head(45), "C"), "n")
    long = files.latex(Table(frame, "ρ of a_b"), "n")
    assert r"\begin{longtable}{r}" in long
    assert r"\caption{$\rho$ of a\_b} \label{tab:n}" in long
    assert [f"{n} \\\\" in long.splitlines() for n in range(200)] == [True] * 200


# Markdown ----------------------------------------------------------------------------------------


def test_markdown_tables_have_all_their_cells(folder):
    text = (folder / "report.md").read_text("utf-8")
    start = text.index("| layer (counted from 1) | source | amp | both |")
    rows = text[start:].split("\n\n")[0].splitlines()
    assert rows[1] == "| ---: | :--- | ---: | :--- |"
    assert len(rows) == len(NASTY) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("`x`", r"\`x\`"),
        ("<b>", r"\<b\>"),
        ("$x_1$", r"\$x\_1\$"),
        ("\\|", r"\\\|"),
        ("a\nb", "a b"),
        ("so: 1", "so: 1"),
        (":smile:", r"\:smile:"),
    ],
)
def test_markdown_shows_what_it_is_given(text, shown):
    assert markdown.escaped(text) == shown


def test_code_spans_hold_backticks():
    assert markdown.code("runs/x") == "`runs/x`"
    assert markdown.code("a``b") == "```a``b```"
    assert markdown.code("`a") == "`` `a ``"


def test_sections_of_one_part_stand_under_one_heading(tmp_path):
    sections = [
        Section(experiment(str(n)), [("sst2", Result())], part=part)
        for n, part in enumerate(("First", "First", "Second"))
    ]
    write(Report("R", Header(MODEL, [RUN]), sections), tmp_path)
    text = (tmp_path / "report.md").read_text("utf-8")
    assert (text.count("\n# First\n"), text.count("\n# Second\n")) == (1, 1)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.texts.count("First") == 2  # contents and heading
    assert page.tags["section"] == 3


# Words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234, "0.123"),
        (-12.5, "−12.500"),
        (3.0, "3"),
        (12345.6, "12345.6"),
        (2.5e-7, "2.5 × 10⁻⁷"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (None, "–"),
    ],
)
def test_numbers(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("name", "file"),
    [("Ünï/..\\x", "uni-x"), ("a b", "a-b"), ("same_word", "same_word"), ("..", "unnamed")],
)
def test_slugs_are_safe_file_names(name, file):
    assert words.slug(name) == file


def test_header_of_a_report_that_takes_no_model_apart():
    header = Header(MODEL, [RUN], notes=[("Task", "two classes")], decomposed=False)
    labels = [label for label, _ in header.facts]
    assert "Task" in labels
    assert "Completeness error" not in labels
    columns, rows, numeric = header.run_table
    assert columns == ["data", "sequences", "tokens", "failures"]
    assert rows == [["sst2 (sst2:dev.tsv)", "10", "1,234", "1"]]
    assert numeric == [False, True, True, True]
    assert len(Header(MODEL, [RUN]).run_table[1][0]) == 6


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

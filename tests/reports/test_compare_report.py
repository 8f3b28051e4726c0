"""Several reports side by side."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from report_examples import MODEL, report, result

from normlens.errors import InputError
from normlens.studies.reports import compare
from normlens.studies.reports.compare import read_reports, write_comparison
from normlens.studies.reports.contents import Result, Table
from normlens.studies.reports.files import write

DEEP = replace(MODEL, name="deep <model>", layers=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of two layers on two data sets, and one of four layers on one of them."""
    root = tmp_path_factory.mktemp("reports")
    write(report([("sst2", result()), ("wiki", result(0.5))]), root / "a")
    write(report([("sst2", result(0.9, layers=4))], model=DEEP), root / "b")
    return [root / "a", root / "b"]


def test_models_are_columns_and_numbers_are_rows(folders, tmp_path):
    written = write_comparison(folders, tmp_path)
    assert all(path.is_file() for path in written)
    here = {path.name for path in written if path.parent == tmp_path}
    assert here == {"comparison.html", "comparison.csv"}
    with open(tmp_path / "comparison.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[3:] == ["tiny/bert-<b>", "deep <model>"]
    first, second = rows[:2]
    assert (first["quantity"], first["data"], second["data"]) == ("ρ of FF", "sst2", "wiki")
    assert float(first["tiny/bert-<b>"]) == pytest.approx(0.7)
    assert float(first["deep <model>"]) == pytest.approx(0.63)
    assert second["deep <model>"] == ""
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert '<td class="n">0.700</td><td class="n">0.630</td>' in page
    assert '<td class="n">0.350</td><td class="n">–</td>' in page
    assert "deep &lt;model&gt;" in page
    assert "<model>" not in page
    assert "http://" not in page


def test_tables_that_both_have_are_laid_over_each_other(folders):
    found = compare.overlay_figures(read_reports(folders))
    names = [figure.file for figure in found]
    assert names == ["compare-similarity-sst2", "compare-similarity-layers-sst2"]
    assert found[1].caption.endswith("By layer. On sst2.")
    assert "layer, counted from 1, ÷" in found[1].caption
    bars, curves = (figure.draw() for figure in found)
    (axes,) = bars.axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([0.7, 0.35, 0.63, 0.315])
    assert [axes.get_title(loc="left") for axes in curves.axes] == ["FF", "LN2"]
    assert all(axes.get_xlabel() == "layer (counted from 1) ÷ layers" for axes in curves.axes)
    shallow, deep = curves.axes[0].lines
    assert list(shallow.get_xdata()) == [0.5, 1.0]
    assert list(deep.get_xdata()) == [0.25, 0.5, 0.75, 1.0]
    assert list(deep.get_ydata()) == pytest.approx(list(0.9 * np.linspace(0.9, 0.5, 4)))


def by_layer(frame: pd.DataFrame) -> Result:
    return Result(tables={"t": Table(frame, caption="A table.")}, summary={"x": 1.0})


def drawn(frame: pd.DataFrame, root: Path) -> list[str]:
    """What is drawn of a table that two reports of three layers have."""
    model = replace(MODEL, layers=3)
    for name in "ab":
        write(report([("d", by_layer(frame))], model=replace(model, name=name)), root / name)
    return [
        f"{axes.get_title(loc='left')}/{axes.get_ylabel()}/{line.get_label()}"
        for figure in compare.overlay_figures(read_reports([root / "a", root / "b"]))
        for axes in figure.draw().axes
        for line in axes.lines
    ]


def test_columns_with_intervals_are_what_is_drawn(tmp_path):
    frame = pd.DataFrame({"layer": [1, 2, 3], "pairs": [9, 9, 9], "x_y": [0.1, 0.2, 0.3]})
    frame = frame.assign(x_y_low=0.0, x_y_high=1.0, p=0.5)
    assert drawn(frame, tmp_path) == ["/x y/a", "/x y/b"]


def test_models_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("one", "two"):
        write(report([("sst2", Result(summary={"x": 1.0}))]), tmp_path / name)
    labels = [found.label for found in read_reports([tmp_path / "one", tmp_path / "two"])]
    assert labels == ["tiny/bert-<b> (one)", "tiny/bert-<b> (two)"]


@pytest.mark.parametrize(
    "contents",
    [
        None,
        "{",
        "[" * 100_000,
        '{"format": "other", "version": 1}',
        '{"format": "normlens-report", "version": 99}',
        '{"format": "normlens-report", "version": 1, "model": {}}',
    ],
)
def test_a_folder_without_a_report_is_refused(folders, tmp_path, contents):
    if contents is not None:
        (tmp_path / "results.json").write_text(contents)
    with pytest.raises(InputError):
        write_comparison([folders[0], tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lost_table_is_one_line(tmp_path):
    for name in "ab":
        write(report(model=replace(MODEL, name=name)), tmp_path / name)
    (tmp_path / "b" / "tables" / "similarity.csv").unlink()
    with pytest.raises(InputError) as error:
        write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert "\n" not in str(error.value)


def test_one_report_or_empty_ones_are_not_compared(folders, tmp_path):
    with pytest.raises(InputError):
        write_comparison(folders[:1], tmp_path)
    write(report([("sst2", None)]), tmp_path / "a")
    with pytest.raises(InputError):
        write_comparison([tmp_path / "a", tmp_path / "a"], tmp_path / "out")
    assert json.loads((tmp_path / "a" / "results.json").read_text())["experiments"]

"""Made-up results with everything that is hard to print."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from normlens.studies.reports.contents import (
    Experiment,
    Figure,
    Header,
    Measured,
    Model,
    Report,
    Result,
    Section,
    Table,
)
from normlens.studies.reports.drawing import panels, style
from normlens.studies.reports.words import Comparison, Published

NASTY = ["<script>alert(1)</script>", "##s", "a|b", "$x_1$", "한국어", "🙂", "\"quoted\" 'single'"]
NASTY += ["`tick`", "\\textbf{%&~^}", "[CLS]", "*", "--", "Ġthe", "▁der"]
_PLACE = ("ATTN RES LN FF RES LN", 2, ("ATTN-W", "ATTN-N"), "float32", "cpu", "main")
MODEL = Model("tiny/bert-<b>", "bert", *_PLACE, weights="sha256:" + "7a40" * 16)
NOTES = [("Layers", "counted from 1 in this report, as in the papers")]
RUN = Measured("sst2", "sst2:dev.tsv", 10, 1234, 1, 3.14e-7, 0.12, "2026-01-31T10:00:00")


def experiment(name: str = "similarity", **fields: Any) -> Experiment:
    own = dict(
        name=name,
        title="How <i>much</i> & where",
        source="Kobayashi et al. 2024, Table 1",
        question="Does </p><script> matter?",
        method="Spearman's ρ with a < b.",
        read=f"The token {NASTY[0]} & {NASTY[2]} changes most.",
        absent="the model has no such component",
    )
    return Experiment(**(own | fields))


def lines(values: list[float]) -> Any:
    figure, (axes,) = panels(width=3.0, height=2.0)
    axes.plot(range(1, len(values) + 1), values, label='id="a" <&>')
    axes.axvspan(1, 1.5, hatch="//", fc="none")  # hatches are patterns with ids
    style(axes, x="layer", y="ρ", title="<title> & more")
    return figure


def similarities(rho: Any, **keys: Any) -> pd.DataFrame:
    """ρ of FF, and half of it of LN2, with intervals."""
    halves = [("FF", rho), ("LN2", rho / 2)]
    parts = [
        pd.DataFrame({"component": name, **keys, "rho": of, "low": of - 0.1, "high": of + 0.1})
        for name, of in halves
    ]
    return pd.concat(parts, ignore_index=True)


def result(scale: float = 1.0, layers: int = 2) -> Result:
    rho = scale * np.linspace(0.9, 0.5, layers)
    pairs = pd.DataFrame({"layer": 1, "source": NASTY})
    pairs["amp"] = [-0.5, np.nan, *np.linspace(0, 1, len(NASTY) - 2)]
    pairs["both"] = [True, False] * (len(NASTY) // 2)
    by_layer = similarities(rho, layer=range(1, layers + 1))
    wiki = Published("t/FF", "FF", 0.79, "bert-base-uncased", "wiki", "Wikipedia", "Table 1")
    return Result(
        tables={
            "similarity": Table(similarities(rho[:1] * 0 + rho.mean()), ".2f", "By component."),
            "similarity-layers": Table(by_layer, ".3f", "By layer. Of one report."),
            "pairs": Table(pairs, ".2f", "Pairs such as <b>, | and 100 % of _x_"),
            "many": Table(pd.DataFrame({"row": range(60)}), "", "Sixty rows.", shown=30),
        },
        figures={
            "similarity": Figure(lambda: lines(list(rho)), 'A "figure" of <b> & ρ'),
            "again": Figure(lambda: lines(list(rho)), "The same once more"),
        },
        comparisons=[Comparison(wiki, 0.5, False)],
        summary={"ρ of FF": float(rho.mean()), "undefined": float("nan")},
    )


def same(measured: float | None) -> Comparison:
    published = Published("x", "LN2", 0.73, "m", "sst2", None, "Table 1")
    return Comparison(published, measured, True)


def report(
    results: list[tuple[str, Result | None]] | None = None, model: Model = MODEL, **section: Any
) -> Report:
    found = [("sst2", result())] if results is None else results
    runs = [replace(RUN, data=data) for data, _ in found if data] or [RUN]
    queries = ("SELECT * FROM t WHERE a < 1 -- ``` & <b>",)
    own = Section(experiment(), found, runs=("runs/sst2-masked",), queries=queries, **section)
    header = Header(model, runs, {"seed": 0, "top_k": 10}, notes=NOTES)
    return Report("Report of <model> & data", header, [own])

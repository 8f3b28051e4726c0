"""The report of an alignment: rates, components, explanations, heads, and a worked example."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.figures.canvas import COLOURS
from normlens.measures.alignment import Rates
from normlens.scopes import components_of
from normlens.studies.alignment.options import EXPLAIN, INPUT, OUTPUT, WAYS
from normlens.studies.alignment.rates import SUMS, ErrorRates, error_rates, of_maps
from normlens.studies.reports.contents import (
    Evidence,
    Experiment,
    Figure,
    Header,
    Report,
    Result,
    Section,
    Table,
    measured,
    model_of,
)
from normlens.studies.reports.drawing import GREY, SMALL, layer_ticks, line, panels, style
from normlens.studies.reports.registry import check_finished, write_run_report
from normlens.studies.reports.words import Comparison, Published, power, short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Published error rates, in per cent, and a run's best ones beside them.


#: Scope, way, AER of the best layer.
_PAPERS_RATES = (
    ("CROSS-W", INPUT, 29.8),
    ("CROSS-N", INPUT, 25.0),
    ("CROSS-W", OUTPUT, 47.7),
    ("CROSS-N", OUTPUT, 41.4),
)
_ALIGNERS_RATES = (("fast_align", 10.5), ("eflomal", 8.2))
_NAMES = {"CROSS-W": "weights", "CROSS-N": "norms"}
WAY_WORDS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}


def comparisons(rates: pd.DataFrame) -> list[Comparison]:
    """The paper's rates beside those of the same scope's best layer, and statistical aligners'.

    All of them are of another model, and the paper's also of other data.
    """
    rows = [
        (
            Published(
                key=f"alignment/{scope}/{way}",
                label=f"AER {WAY_WORDS[way]}, {_NAMES[scope]}, best layer",
                value=value,
                model="a German–English Transformer",
                data="de-en",
                data_label="German–English pairs",
                source="Kobayashi et al. 2020, section 5",
                digits=1,
            ),
            rates[(rates["scope"] == scope) & (rates["way"] == way) & (rates["head"] < 0)],
        )
        for scope, way, value in _PAPERS_RATES
    ]
    rows += [
        (
            Published(
                key=f"alignment/{name}",
                label=f"AER of {name}; measured: the best map",
                value=value,
                model="statistical aligners",
                data="hansards",
                data_label="the 447 English–French pairs of the Hansards",
                source="Aligners that learn from parallel text and need no translation model",
                digits=1,
            ),
            rates,
        )
        for name, value in _ALIGNERS_RATES
    ]
    return [
        Comparison(published, None if some.empty else 100 * float(some["aer"].min()), same=False)
        for published, some in rows
    ]


# Error rates by layer, scope and way: tables and a figure.


RATES = Experiment(
    name="alignment",
    title="Word alignment by layer, scope and way",
    source="Kobayashi et al. 2020, section 5",
    question="Which map links the words of a sentence and its translation best?",
    method=(
        "For each target word the source word with the largest score: source subwords are summed, "
        "target subwords averaged, and there is no link if a special token has a larger score. By "
        "input (AWI) the row is read whose input is the word, by output (AWO) the row that "
        "predicts it. AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), over all pairs together; intervals "
        "are the percentile bootstrap's over sentence pairs. The best map was chosen on the pairs "
        "that it is measured on."
    ),
)
_RATES = [f"{rate}{end}" for rate in Rates._fields for end in ("", "_low", "_high")]
_POINTS = ["change", "low", "high"]


def per_cent(rates: pd.DataFrame) -> pd.DataFrame:
    """The rates and their intervals in per cent, layers from 1."""
    shown = rates.copy()
    shown[_RATES] *= 100
    shown["layer"] += 1
    return shown


def change_of(rates: ErrorRates, before: int, after: int) -> dict[str, float]:
    """How AER changes from the map of one row to another's, in points with its interval."""
    change = (100 * float(part[0]) for part in rates.difference(before, after))
    return dict(zip(_POINTS, change, strict=True))


def paired_table(rates: ErrorRates, pairs: Sequence[tuple[int, int]]) -> Table:
    """Maps (by their rows) with others on the same pairs."""
    table = rates.table

    def named(row: int) -> str:
        scope, layer = table["scope"][row], int(table["layer"][row])
        return f"{scope}, layer {layer + 1}" if layer >= 0 else str(scope)

    return Table(
        pd.DataFrame(
            [
                {
                    "way": table["way"][row],
                    "map": named(row),
                    "against": named(against),
                    **change_of(rates, against, row),
                }
                for row, against in pairs
            ]
        ),
        "AER less that of the other map on the same resamples of the pairs, in points, with 95 % "
        "intervals; negative: the map is better.",
        dict.fromkeys(_POINTS, "+.1f"),
        open=True,
    )


def rate_result(rates: ErrorRates) -> Result:
    """Every map's error rates, heads together, and the best scope against the best weights."""
    together = of_maps(rates.table)
    table = per_cent(together)
    ways = [way for way in WAYS if (table["way"] == way).any()]
    tables = {f"aer-{way}": _wide(table[table["way"] == way], way) for way in ways}
    tables["alignment-rates"] = Table(
        table[["scope", "way", "layer", *_RATES, "best"]].reset_index(drop=True),
        "AER, precision and recall in per cent, with 95 % intervals.",
        dict.fromkeys(_RATES, ".1f"),
    )
    weights = together["scope"] == "CROSS-W"
    best = [
        (_best(together[of_way & ~weights]), _best(together[of_way & weights]))
        for of_way in (together["way"] == way for way in ways)
        if (of_way & weights).any() and (of_way & ~weights).any()
    ]
    if best:
        tables["alignment-weights"] = paired_table(rates, best)
    return Result(
        tables=tables,
        figures={
            "aer-layers": Figure(
                lambda: _draw_rates(table),
                "AER by layer, one line per scope; bands are 95 % bootstrap intervals over "
                "sentence pairs. Lower is better.",
            )
        },
        comparisons=comparisons(rates.table),
        summary={
            f"AER {way}, {scope}, best layer": float(some["aer"].min())
            for (way, scope), some in table.groupby(["way", "scope"], sort=False)
        },
    )


def _best(table: pd.DataFrame) -> int:
    """The row with the lowest error rate."""
    return int(table["aer"].idxmin())


def _wide(table: pd.DataFrame, way: str) -> Table:
    wide = table.pivot(index="scope", columns="layer", values="aer")
    wide = wide.reindex(table["scope"].unique())
    wide.columns = [f"layer {layer}" for layer in wide.columns]
    return Table(
        wide.reset_index(),
        f"AER {WAY_WORDS[way]} in per cent; layers counted from 1.",
        dict.fromkeys(wide.columns, ".1f"),
        open=True,
    )


def _draw_rates(table: pd.DataFrame) -> Drawing:
    ways = [way for way in WAYS if (table["way"] == way).any()]
    figure, axes = panels(len(ways), width=4.2, height=3.9, sharey=True)
    scopes = list(table["scope"].unique())
    for panel, way in zip(axes, ways, strict=True):
        for place, scope in enumerate(scopes):
            some = table[(table["way"] == way) & (table["scope"] == scope)].sort_values("layer")
            bands = some["aer_low"].fillna(some["aer"]), some["aer_high"].fillna(some["aer"])
            line(panel, some["layer"], some["aer"], *bands, place, scope)
        layer_ticks(panel, int(table["layer"].max()))
        first = panel is axes[0]
        style(panel, x="layer", y="AER (%)" if first else "", title=WAY_WORDS[way])
        panel.set_ylim(0, 100)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, fontsize=SMALL, frameon=False
    )
    return figure


# What each component does to the alignment: the error rate behind it, less that before it.


COMPONENTS = Experiment(
    name="alignment-components",
    title="Which components help the alignment, and which harm it?",
    source="not published before",
    question="Do LN and FF behind the cross-attention help or harm word alignment?",
    method=(
        "AER of each scope less that of the scope before it, in the same layer and way and on the "
        "same resamples of the sentence pairs, in points. A component helps where the whole "
        "interval lies below 0. What the residual connection behind the cross-attention adds is "
        "the decoder's alone, so that it changes nothing."
    ),
    absent="fewer than two scopes of norms were aligned.",
)
#: Differences below this are none at all.
_NOTHING = 1e-9


def component_result(rates: ErrorRates) -> Result | None:
    """The difference that every component makes, layer by layer; None for a single scope."""
    rows = _differences(rates)
    if not rows:
        return None
    return Result(
        tables={
            "alignment-components": Table(
                pd.DataFrame(rows),
                "Change of AER in points, with 95 % intervals; negative: the component helps.",
                dict.fromkeys(("before", "change", "low", "high"), ".1f"),
            )
        },
    )


def _differences(rates: ErrorRates) -> list[dict[str, object]]:
    together = of_maps(rates.table)
    together = together[together["scope"] != "CROSS-W"]
    places = {(row["way"], row["scope"], row["layer"]): place for place, row in together.iterrows()}
    rows: list[dict[str, object]] = []
    for way in WAYS:
        for before, after in pairwise(together["scope"].unique()):
            for layer in sorted(together["layer"].unique()):
                first, second = (places.get((way, scope, layer)) for scope in (before, after))
                if first is None or second is None:
                    continue
                changed = change_of(rates, first, second)
                if abs(changed["change"]) <= _NOTHING:
                    changed["change"] = 0.0
                rows.append(
                    {
                        "way": way,
                        "layer": int(layer) + 1,
                        "component": _component(after),
                        "before": 100 * float(rates.table["aer"][first]),
                        **changed,
                    }
                )
    return rows


def _component(scope: str) -> str:
    """The last component of a scope, numbered if the layer has several behind the attentions."""
    parts = components_of(scope)
    return f"{parts[-1]}{parts.count(parts[-1])}" if parts[-1] != "FF" else "FF"


# Links from contributions to logits, beside the best map by output.


EXPLANATIONS = Experiment(
    name="alignment-explain",
    title="Links from explanations",
    source="not published before",
    question="Do contributions to a word's logit link it better than any map?",
    method=(
        "For each target word the source word that contributes most to the logits of its tokens, "
        "through the whole model and back to the source's embeddings; signed, source subwords "
        "summed and target subwords averaged. The row is the one that predicts the word, so that "
        "links compare with those by output."
    ),
    absent="contributions were not asked for (--scope explain).",
)


def explanation_result(rates: ErrorRates) -> Result | None:
    """The error rates of contributions, and how far they are from the best map's by output."""
    table = rates.table
    explained = table[table["scope"] == EXPLAIN]
    if explained.empty:
        return None
    columns = ["aer", "aer_low", "aer_high", "precision", "recall"]
    tables = {
        "alignment-explain": Table(
            per_cent(explained)[columns].reset_index(drop=True),
            "AER, precision and recall of contributions in per cent, with 95 % intervals.",
            dict.fromkeys(columns, ".1f"),
            open=True,
        )
    }
    maps = of_maps(table[table["way"] == OUTPUT])
    if not maps.empty:
        tables["alignment-explain-map"] = paired_table(rates, [(_best(explained), _best(maps))])
    return Result(
        tables=tables, summary={"AER of contributions": 100 * float(explained["aer"].iloc[0])}
    )


# Single heads of the cross-attention, the best first.


HEADS = Experiment(
    name="alignment-heads",
    title="Single heads",
    source="Kobayashi et al. 2020, eq. 6",
    question="Is there a head that aligns words better than all heads together?",
    method=(
        "As above, with the maps of single heads: α, and α‖f(x)‖. The best of many heads was "
        "chosen on the pairs that it is measured on, which flatters it."
    ),
    absent="no single head was aligned (--head all).",
)
_SHOWN = 12


def head_result(rates: ErrorRates) -> Result | None:
    """The heads by their error rates; None where no head was aligned."""
    heads = rates.table[rates.table["head"] >= 0].sort_values("aer", kind="stable")
    if heads.empty:
        return None
    shown = per_cent(heads)
    shown["head"] += 1
    columns = ["scope", "way", "layer", "head", "aer", "aer_low", "aer_high", "precision", "recall"]
    return Result(
        tables={
            "alignment-heads": Table(
                shown[columns].reset_index(drop=True),
                "Heads by AER in per cent; layers and heads counted from 1.",
                dict.fromkeys(columns[4:], ".1f"),
                shown=_SHOWN,
            )
        },
    )


# One sentence pair: the best map's links, those of weights, and the gold links.


WORKED_EXAMPLE = Experiment(
    name="alignment-example",
    title="A sentence pair",
    source="the first pair of moderate length",
    question="What do the links look like?",
    method="Rows are target words, columns source words, as in maps.",
    absent="no pair has between 6 and 16 words on both sides.",
)
_SHORT, _LONG = 6, 16
_SURE = "#d6d6d6"
_TEXTS = 'SELECT * FROM alignment_texts WHERE gold_sure IS NOT NULL ORDER BY "index"'


def example_result(evidence: Evidence, rates: ErrorRates) -> Result | None:
    """The first pair that is neither too short nor too long to be read as a picture."""
    for text in evidence.sql(_TEXTS).to_dict("records"):
        source, target = str(text["source"]).split(), str(text["target"]).split()
        if all(_SHORT <= len(words) <= _LONG for words in (source, target)):
            break
    else:
        return None
    links = {
        str(row["scope"]): _links(evidence, int(text["index"]), row) for row in _chosen(rates.table)
    }
    if not links:
        return None
    gold = {name: _parsed(str(text[f"gold_{name}"])) for name in ("sure", "possible")}
    return Result(
        figures={
            "alignment-example": Figure(
                lambda: _draw_links(source, target, links, gold),
                "Grey: sure gold links; outlined: possible ones. Dots: the links of the best map "
                "of weights and of the best map of all, layers counted from 1.",
            )
        }
    )


def _chosen(table: pd.DataFrame) -> list[pd.Series]:
    """The best map of weights and the best of all, heads together."""
    together = of_maps(table)
    if together.empty:
        together = table[table["layer"] >= 0]
    weights = together[together["scope"] == "CROSS-W"]
    best = [
        some.sort_values("aer", kind="stable").iloc[0]
        for some in (weights, together)
        if not some.empty
    ]
    return best[:1] if len(best) == 2 and best[0].equals(best[1]) else best


def _links(evidence: Evidence, index: int, row: pd.Series) -> tuple[str, set[tuple[int, int]]]:
    head = "IS NULL" if row["head"] < 0 else f"= {int(row['head'])}"
    (written,) = evidence.sql(
        f"""SELECT alignment FROM alignment WHERE "index" = {index}
  AND scope = '{row["scope"]}' AND way = '{row["way"]}' AND layer = {int(row["layer"])}
  AND head {head}"""
    )["alignment"]
    return f"{row['scope']}, layer {row['layer'] + 1}, by {row['way']}", _parsed(str(written))


def _parsed(written: str) -> set[tuple[int, int]]:
    pairs = (link.split("-") for link in written.split())
    return {(int(source), int(target)) for source, target in pairs}


def _draw_links(
    source: list[str],
    target: list[str],
    links: dict[str, tuple[str, set[tuple[int, int]]]],
    gold: dict[str, set[tuple[int, int]]],
) -> Drawing:
    from matplotlib.patches import Rectangle

    width = 1.4 + 0.24 * len(source)
    figure, axes = panels(len(links), width=width, height=1.4 + 0.2 * len(target), sharey=True)
    for place, (panel, (label, found)) in enumerate(zip(axes, links.values(), strict=True)):
        for i, j in gold["possible"]:
            filled = _SURE if (i, j) in gold["sure"] else "none"
            corner = (i - 0.45, j - 0.45)
            panel.add_patch(Rectangle(corner, 0.9, 0.9, facecolor=filled, edgecolor=GREY, lw=0.6))
        dots = np.array(sorted(found)).reshape(-1, 2)
        panel.plot(dots[:, 0], dots[:, 1], "o", color=COLOURS[place % len(COLOURS)], ms=4)
        style(panel, title=label, grid=False, y="" if place else "target")
        panel.set_xticks(range(len(source)), source, rotation=90, fontsize=SMALL)
        panel.set_yticks(range(len(target)), target, fontsize=SMALL)
        panel.set_xlim(-0.6, len(source) - 0.4)
        panel.set_ylim(len(target) - 0.4, -0.6)
        panel.set_xlabel("source", fontsize=SMALL)
    return figure


# Build the report of an alignment from its tables; no model is needed.


TABLE = "alignment"  # the table that a run needs to have


def build_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the tables, figures and page of an alignment with gold links; gives the page's path.

    They go to `out`, by default the folder ``report`` in the run's own.
    """
    return write_run_report(run, describe, out)


def describe(run: Run) -> Report:
    """Describe the report of a finished alignment."""
    check_finished(run)
    rates = error_rates(run, seed=run.manifest.options.seed)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    evidence = Evidence(data, run)
    sections = []
    if not of_maps(rates.table).empty:
        sections += [
            Section(RATES, [(data, rate_result(rates))], queries=[SUMS]),
            Section(COMPONENTS, [(data, component_result(rates))]),
        ]
    sections += [
        Section(EXPLANATIONS, [(data, explanation_result(rates))]),
        Section(HEADS, [(data, head_result(rates))]),
        Section(WORKED_EXAMPLE, [(data, example_result(evidence, rates))]),
    ]
    return Report(f"{model_of(run).name}: word alignment", _header(run, data), sections)


def _header(run: Run, data: str) -> Header:
    manifest = run.manifest
    worst = run.sql("SELECT max(completeness) AS worst FROM alignment_texts")["worst"].iloc[0]
    settings = manifest.options.settings[TABLE]
    shown = {name: settings.get(name) for name in ("scopes", "layers", "ways", "head")}
    return Header(
        model=model_of(run),
        runs=[measured(run, data)],
        settings={name: value for name, value in shown.items() if value is not None},
        versions=dict(manifest.versions),
        notes=[
            ("Gold links", Path(str(settings["gold"])).name),
            ("Completeness error", power(float(worst))),
            ("Published numbers", "are of other models, and the paper's of other data"),
        ],
        decomposed=False,
    )

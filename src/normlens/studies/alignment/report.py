"""The report of an alignment: rates, components, explanations, heads, and a worked example."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.figures.canvas import COLOURS
from normlens.measures.alignment import Rates
from normlens.scopes import components_of
from normlens.studies.alignment.gold import SUMS, ErrorRates, error_rates, of_maps
from normlens.studies.alignment.options import EXPLAIN, INPUT, OUTPUT, WAYS
from normlens.studies.papers.published import published
from normlens.studies.reports.contents import (
    Evidence,
    Figure,
    Header,
    Report,
    Result,
    Section,
    Table,
    experiment,
)
from normlens.studies.reports.drawing import GREY, SMALL, Drawing, layer_ticks, line, panels, style
from normlens.studies.reports.files import check_finished, write_run_report
from normlens.studies.reports.words import Comparison, caption, power, short_names

_say = partial(caption, "alignment")

# Published error rates, in per cent, and a run's best ones beside them.


WAY_WORDS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}


def comparisons(rates: pd.DataFrame) -> list[Comparison]:
    """Compare the best layers with the paper's rates, and the best map with statistical aligners.

    All of them are of another model, and the paper's also of other data.
    """
    found = []
    for entry in (entry for entry in published() if entry.key.startswith("alignment/")):
        _, scope, *way = entry.key.split("/")
        some = (
            rates[(rates["scope"] == scope) & (rates["way"] == way[0]) & (rates["head"] < 0)]
            if way
            else rates
        )
        best = None if some.empty else 100 * float(some["aer"].min())
        found.append(Comparison(entry, best, same=False))
    return found


# Error rates by layer, scope and way: tables and a figure.


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

    rows = [
        {"way": table["way"][row], "map": named(row), "against": named(against)}
        | change_of(rates, against, row)
        for row, against in pairs
    ]
    formats = dict.fromkeys(_POINTS, "+.1f")
    return Table(pd.DataFrame(rows), _say("table paired"), formats, open=True)


@experiment("alignment", "alignment")
def rate_result(rates: ErrorRates) -> Result:
    """Every map's error rates, heads together, and the best scope against the best weights."""
    together = of_maps(rates.table)
    table = per_cent(together)
    ways = [way for way in WAYS if (table["way"] == way).any()]
    tables = {f"aer-{way}": _wide(table[table["way"] == way], way) for way in ways}
    shown = table[["scope", "way", "layer", *_RATES, "best"]].reset_index(drop=True)
    formats = dict.fromkeys(_RATES, ".1f")
    tables["alignment-rates"] = Table(shown, _say("table alignment-rates"), formats)
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
        figures={"aer-layers": Figure(lambda: _draw_rates(table), _say("figure aer-layers"))},
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
    said, formats = _say("table aer", way=WAY_WORDS[way]), dict.fromkeys(wide.columns, ".1f")
    return Table(wide.reset_index(), said, formats, open=True)


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


#: Differences below this are none at all.
_NOTHING = 1e-9


@experiment("alignment", "alignment-components")
def component_result(rates: ErrorRates) -> Result | None:
    """The difference that every component makes, layer by layer; None for a single scope."""
    rows = _differences(rates)
    if not rows:
        return None
    name, formats = "alignment-components", dict.fromkeys(("before", *_POINTS), ".1f")
    return Result({name: Table(pd.DataFrame(rows), _say(f"table {name}"), formats)})


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


@experiment("alignment", "alignment-explain")
def explanation_result(rates: ErrorRates) -> Result | None:
    """The error rates of contributions, and how far they are from the best map's by output."""
    table = rates.table
    explained = table[table["scope"] == EXPLAIN]
    if explained.empty:
        return None
    columns = ["aer", "aer_low", "aer_high", "precision", "recall"]
    shown, formats = per_cent(explained)[columns], dict.fromkeys(columns, ".1f")
    said = _say("table alignment-explain")
    tables = {"alignment-explain": Table(shown.reset_index(drop=True), said, formats, open=True)}
    maps = of_maps(table[table["way"] == OUTPUT])
    if not maps.empty:
        tables["alignment-explain-map"] = paired_table(rates, [(_best(explained), _best(maps))])
    return Result(
        tables=tables, summary={"AER of contributions": 100 * float(explained["aer"].iloc[0])}
    )


# Single heads of the cross-attention, the best first.


_SHOWN = 12


@experiment("alignment", "alignment-heads")
def head_result(rates: ErrorRates) -> Result | None:
    """The heads by their error rates; None where no head was aligned."""
    heads = rates.table[rates.table["head"] >= 0].sort_values("aer", kind="stable")
    if heads.empty:
        return None
    shown = per_cent(heads)
    shown["head"] += 1
    columns = ["scope", "way", "layer", "head", "aer", "aer_low", "aer_high", "precision", "recall"]
    said, formats = _say("table alignment-heads"), dict.fromkeys(columns[4:], ".1f")
    frame = shown[columns].reset_index(drop=True)
    return Result({"alignment-heads": Table(frame, said, formats, shown=_SHOWN)})


# One sentence pair: the best map's links, those of weights, and the gold links.


_SHORT, _LONG = 6, 16
_SURE = "#d6d6d6"
_TEXTS = 'SELECT * FROM alignment_texts WHERE gold_sure IS NOT NULL ORDER BY "index"'


@experiment("alignment", "alignment-example")
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
    draw = partial(_draw_links, source, target, links, gold)
    return Result(figures={"alignment-example": Figure(draw, _say("figure alignment-example"))})


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


def describe(run: Run) -> Report:
    """Describe the report of a finished alignment."""
    check_finished(run)
    rates = error_rates(run, seed=run.manifest.options.seed)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    evidence = Evidence(data, run)
    sections = []
    if not of_maps(rates.table).empty:
        sections += [
            Section(rate_result, [(data, rate_result(rates))], queries=[SUMS]),
            Section(component_result, [(data, component_result(rates))]),
        ]
    sections += [
        *(Section(each, [(data, each(rates))]) for each in (explanation_result, head_result)),
        Section(example_result, [(data, example_result(evidence, rates))]),
    ]
    header = _header(run, data)
    return Report(f"{header.model.name}: word alignment", header, sections)


def _header(run: Run, data: str) -> Header:
    worst = run.sql("SELECT max(completeness) AS worst FROM alignment_texts")["worst"].iloc[0]
    settings = run.manifest.options.settings["alignment"]
    notes = [
        ("Gold links", Path(str(settings["gold"])).name),
        ("Completeness error", power(float(worst))),
        ("Published numbers", "are of other models, and the paper's of other data"),
    ]
    shown = {name: settings.get(name) for name in ("scopes", "layers", "ways", "head")}
    return Header.of_run(run, data, shown, notes)


#: Writes the page of an alignment with gold links; by default into the run's folder ``report``.
build_report = partial(write_run_report, describe)

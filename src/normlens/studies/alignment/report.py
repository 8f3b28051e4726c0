"""The report of an alignment: rates, components, explanations, heads, and a worked example."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.figures.canvas import COLOURS
from normlens.measures.alignment import Link, Rates
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
    measured,
)
from normlens.studies.reports.drawing import (
    GREY,
    Drawing,
    layer_ticks,
    legend,
    line,
    panels,
    style,
)
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
        of_map = (rates["scope"] == scope) & rates["way"].isin(way) & (rates["head"] < 0)
        best = 100 * (rates[of_map] if way else rates)["aer"].min()
        found.append(Comparison(entry, None if np.isnan(best) else float(best), same=False))
    return found


# Error rates by layer, scope and way: tables and a figure.


_RATES = [f"{rate}{end}" for rate in Rates._fields for end in ("", "_low", "_high")]
_POINTS = ["change", "low", "high"]


def per_cent(rates: pd.DataFrame) -> pd.DataFrame:
    """The rates and their intervals in per cent, layers and heads from 1."""
    shown = rates.reset_index(drop=True)
    shown[_RATES] *= 100
    shown[["layer", "head"]] += 1
    return shown


def changes(rates: ErrorRates, before: Sequence[int], after: Sequence[int]) -> pd.DataFrame:
    """How AER changes from the maps of some rows to those of others, in points, with intervals."""
    rows = [
        [100 * float(part[0]) for part in rates.difference(*pair)]
        for pair in zip(before, after, strict=True)
    ]
    return pd.DataFrame(rows, columns=_POINTS)


def paired_table(rates: ErrorRates, pairs: Sequence[tuple[int, int]]) -> Table:
    """Maps (by their rows) with others on the same pairs."""

    def named(rows: Sequence[int]) -> list[str]:
        some = rates.table.loc[list(rows)]
        layers = (some["layer"] + 1).astype(str)
        return some["scope"].where(some["layer"] < 0, some["scope"] + ", layer " + layers).tolist()

    maps, against = zip(*pairs, strict=True)
    table = pd.DataFrame({"way": rates.table.loc[list(maps), "way"].tolist()})
    table = table.assign(map=named(maps), against=named(against))
    table = table.join(changes(rates, against, maps))
    return Table(table, "+.1f", _say("table paired"), open=True)


@experiment("alignment", "alignment")
def rate_result(rates: ErrorRates) -> Result:
    """Every map's error rates, heads together, and the best scope against the best weights."""
    together = of_maps(rates.table)
    table = per_cent(together)
    tables, best = {}, []
    for way in (way for way in WAYS if way in set(table["way"])):
        tables[f"aer-{way}"] = _wide(table[table["way"] == way], way)
        weights = together["scope"] == "CROSS-W"
        of_way = [together[(together["way"] == way) & chosen] for chosen in (~weights, weights)]
        if not any(some.empty for some in of_way):
            best.append(tuple(map(_best, of_way)))
    tables["alignment-rates"] = Table(table[["scope", "way", "layer", *_RATES, "best"]], ".1f")
    if best:
        tables["alignment-weights"] = paired_table(rates, best)
    return Result(
        tables=tables,
        figures={"aer-layers": Figure(lambda: _draw_rates(table))},
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
    wide = wide.reindex(table["scope"].unique()).add_prefix("layer ").rename_axis(columns=None)
    return Table(wide.reset_index(), ".1f", _say("table aer", way=WAY_WORDS[way]), open=True)


def _draw_rates(table: pd.DataFrame) -> Drawing:
    ways, scopes = table["way"].unique(), list(table["scope"].unique())
    figure, axes = panels(len(ways), width=4.2, height=3.9, sharey=True)
    for panel, way in zip(axes, ways, strict=True):
        for place, scope in enumerate(scopes):
            some = table[(table["way"] == way) & (table["scope"] == scope)].sort_values("layer")
            points = some[["layer", "aer", "aer_low", "aer_high"]].ffill(axis=1).to_numpy(float)
            line(panel, *points.T, place=place, label=scope)
        layer_ticks(panel, int(table["layer"].max()))
        style(panel, x="layer", y="AER (%)" if panel is axes[0] else "", title=WAY_WORDS[way])
        panel.set_ylim(0, 100)
    legend(figure, axes)
    return figure


# What each component does to the alignment: the error rate behind it, less that before it.


#: Differences below this are none at all.
_NOTHING = 1e-9


@experiment("alignment", "alignment-components")
def component_result(rates: ErrorRates) -> Result | None:
    """The difference that every component makes, layer by layer; None for a single scope."""
    maps = of_maps(rates.table)
    maps = maps[maps["scope"] != "CROSS-W"].reset_index(names="row")
    following = dict(pairwise(maps["scope"].unique()))
    before = maps[maps["scope"].isin(following)].replace({"scope": following})
    pairs = before.merge(maps, on=["way", "scope", "layer"], suffixes=("_before", "_after"))
    if pairs.empty:
        return None
    table = pd.DataFrame(
        {
            "way": pairs["way"],
            "layer": pairs["layer"] + 1,
            "component": pairs["scope"].map(_component),
            "before": 100 * pairs["aer_before"],
        }
    ).join(changes(rates, pairs["row_before"], pairs["row_after"]))
    table.loc[table["change"].abs() <= _NOTHING, "change"] = 0.0
    return Result({"alignment-components": Table(table, ".1f")})


def _component(scope: str) -> str:
    """The last component of a scope, numbered if the layer has several behind the attentions."""
    parts = components_of(scope)
    return f"{parts[-1]}{parts.count(parts[-1])}" if parts[-1] != "FF" else "FF"


# Links from contributions to logits, beside the best map by output.


_SHOWN_RATES = ["aer", "aer_low", "aer_high", "precision", "recall"]


@experiment("alignment", "alignment-explain")
def explanation_result(rates: ErrorRates) -> Result | None:
    """The error rates of contributions, and how far they are from the best map's by output."""
    table = rates.table
    explained = table[table["scope"] == EXPLAIN]
    if explained.empty:
        return None
    shown = per_cent(explained)[_SHOWN_RATES]
    tables = {"alignment-explain": Table(shown, ".1f", open=True)}
    maps = of_maps(table[table["way"] == OUTPUT])
    if not maps.empty:
        tables["alignment-explain-map"] = paired_table(rates, [(_best(explained), _best(maps))])
    return Result(tables=tables, summary={"AER of contributions": float(shown["aer"].iloc[0])})


# Single heads of the cross-attention, the best first.


@experiment("alignment", "alignment-heads")
def head_result(rates: ErrorRates) -> Result | None:
    """The heads by their error rates; None where no head was aligned."""
    heads = rates.table[rates.table["head"] >= 0].sort_values("aer", kind="stable")
    if heads.empty:
        return None
    shown = per_cent(heads)[["scope", "way", "layer", "head", *_SHOWN_RATES]]
    return Result({"alignment-heads": Table(shown, ".1f", shown=12)})


# One sentence pair: the best map's links, those of weights, and the gold links.


_SHORT, _LONG = 6, 16
_SURE = "#d6d6d6"
_TEXTS = 'SELECT * FROM alignment_texts WHERE gold_sure IS NOT NULL ORDER BY "index"'
Links = Collection[Link]


@experiment("alignment", "alignment-example")
def example_result(evidence: Evidence, rates: ErrorRates) -> Result | None:
    """The first pair that is neither too short nor too long to be read as a picture."""
    maps = of_maps(rates.table)
    maps = rates.table[rates.table["layer"] >= 0] if maps.empty else maps
    # The best map of weights and the best of all.
    some = [some for some in (maps[maps["scope"] == "CROSS-W"], maps) if not some.empty]
    for text in evidence.sql(_TEXTS).to_dict("records") if some else ():
        source, target = str(text["source"]).split(), str(text["target"]).split()
        if all(_SHORT <= len(words) <= _LONG for words in (source, target)):
            break
    else:
        return None
    links = {}
    for row in (maps.loc[_best(of_scope)] for of_scope in some):
        head = "IS NULL" if row["head"] < 0 else f"= {row['head']}"
        (written,) = evidence.sql(
            f"""SELECT alignment FROM alignment WHERE "index" = {text["index"]}
  AND scope = '{row["scope"]}' AND way = '{row["way"]}' AND layer = {row["layer"]}
  AND head {head}"""
        )["alignment"]
        links[f"{row['scope']}, layer {row['layer'] + 1}, by {row['way']}"] = _parsed(written)
    gold = [_parsed(text[f"gold_{name}"]) for name in ("sure", "possible")]
    draw = partial(_draw_links, source, target, links, *gold)
    return Result(figures={"alignment-example": Figure(draw)})


def _parsed(written: object) -> list[Link]:
    pairs = (link.split("-") for link in str(written).split())
    return [(int(source), int(target)) for source, target in pairs]


def _draw_links(
    source: list[str], target: list[str], links: dict[str, Links], sure: Links, possible: Links
) -> Drawing:
    from matplotlib.patches import Rectangle

    width = 1.4 + 0.24 * len(source)
    figure, axes = panels(len(links), width=width, height=1.4 + 0.2 * len(target), sharey=True)
    for place, (panel, (label, found)) in enumerate(zip(axes, links.items(), strict=True)):
        for i, j in possible:
            filled = _SURE if (i, j) in sure else "none"
            corner = (i - 0.45, j - 0.45)
            panel.add_patch(Rectangle(corner, 0.9, 0.9, facecolor=filled, edgecolor=GREY, lw=0.6))
        dots = np.array(found).reshape(-1, 2)
        panel.plot(*dots.T, "o", color=COLOURS[place], ms=4)
        style(panel, x="source", y="" if place else "target", title=label, grid=False)
        panel.set_xticks(range(len(source)), source, rotation=90)
        panel.set_yticks(range(len(target)), target)
        panel.set(xlim=(-0.6, len(source) - 0.4), ylim=(len(target) - 0.4, -0.6))
    return figure


# Build the report of an alignment from its tables; no model is needed.


def describe(run: Run) -> Report:
    """Describe the report of a finished alignment."""
    check_finished(run)
    rates = error_rates(run, seed=run.manifest.options.seed)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    chosen = [explanation_result, head_result]
    if not of_maps(rates.table).empty:
        chosen = [rate_result, component_result, *chosen]
    sections = [
        Section(each, [(data, each(rates))], queries=[SUMS] if each is rate_result else ())
        for each in chosen
    ]
    example = example_result(Evidence(data, run), rates)
    sections.append(Section(example_result, [(data, example)]))
    worst = run.sql("SELECT max(completeness) AS worst FROM alignment_texts")["worst"].iloc[0]
    settings = run.manifest.options.settings["alignment"]
    notes = [
        ("Gold links", Path(str(settings["gold"])).name),
        ("Completeness error", power(float(worst))),
        ("Published numbers", "are of other models, and the paper's of other data"),
    ]
    shown = {name: settings.get(name) for name in ("scopes", "layers", "ways", "head")}
    header = Header.of(run, [measured(run, data)], shown, notes, decomposed=False)
    return Report(f"{header.model.name}: word alignment", header, sections)


#: Writes the page of an alignment with gold links; by default into the run's folder ``report``.
build_report = partial(write_run_report, describe)

"""The page of an ablation: its questions, each answered by tables and figures of its evidence."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from normlens.corpus.measures.tokens import feed_forward_pair
from normlens.errors import InputError
from normlens.figures.canvas import COLOURS, FAINT, INK, MARKERS
from normlens.figures.colours import SignedColours
from normlens.measures.bootstrap import mean_draws, place_among
from normlens.measures.ranks import cell_correlation
from normlens.studies.ablation import options as ablations
from normlens.studies.ablation.data import ABLATION, MAPS, load_settings
from normlens.studies.ablation.evidence import IN_WORDS, SHORT, AblationEvidence, Cost, taken, ways
from normlens.studies.reports import drawing
from normlens.studies.reports.contents import (
    Figure,
    Header,
    Report,
    Result,
    Section,
    Table,
    experiment,
    measured,
)
from normlens.studies.reports.files import finished_run, write
from normlens.studies.reports.words import LAYER, caption, fixed, signed

_say = partial(caption, "ablation")
_CHANGE = "+.3f"  # the format of changes and of the ends of their intervals
_ENDS = ["change", "low", "high"]
#: From here on the largest value hides the middle one on a linear axis.
_SKEWED = 25


def _layer_label(layer: float) -> str:
    """Write a layer's number, or "all" for several layers."""
    return "all" if layer != layer else str(int(layer))


def _error_bars(axes: Any, x: Any, rows: pd.DataFrame, column: str = "change", **how: Any) -> None:
    """Draw dots at the values of a column, with bars to the ends of its interval."""
    ends = rows[column] - rows["low"], rows["high"] - rows[column]
    lengths = [length.clip(lower=0).fillna(0) for length in ends]
    axes.errorbar(x, rows[column], lengths, **how)


def _scale_changes(axes: Any, values: ArrayLike, signed: bool = True) -> None:
    """Make the vertical axis logarithmic where the largest change hides the others.

    Without `signed`, only where all are above 0; otherwise it is linear around 0, up to the median.
    """
    given = np.asarray(values, dtype=np.float64)
    given = given[np.isfinite(given)]
    size = np.abs(given)
    middle = float(np.median(size)) if len(size) else 0.0
    if not middle > 0 or size.max() <= _SKEWED * middle:
        return
    low, high = float(given.min()), float(given.max())
    if low > 0:
        axes.set_yscale("log")
    elif signed:
        axes.set_yscale("symlog", linthresh=middle)
    else:
        return
    bottom = low / 2 if low > 0 else min(-middle / 2, 2 * low)
    axes.set_ylim(bottom, max(2 * high, middle))


# What each component is worth: the change of the loss beside the change of the map.


#: More layers leave no room for numbers in the cells.
_NUMBERED = 16
_ABSENT = "#f2f2f2"


@experiment("ablation", "worth")
def worth(evidence: AblationEvidence) -> Result | None:
    """Draw heat maps of Δ loss and 1 − ρ; list every ablation."""
    loss, *_ = evidence.costs
    way = next(iter(ways(loss.changes)), None)
    if way is None:
        return None
    tables, figures = {}, {}
    for cost in evidence.costs:
        rows = taken(cost.changes, way)
        if len(rows):
            figures[f"worth{cost.suffix}"] = _worth_figure(evidence, cost, rows, way)
        listed = cost.changes[cost.changes["draw"].isna()]
        ranges = ["–".join(_first_and_last(text)) for text in listed["layers"]]
        frame = listed[["component", "kind", "layers", *_ENDS]].assign(layers=ranges)
        said = _say("table ablations", cost=cost.words, intact=fixed(cost.intact, 3))
        frame = frame.reset_index(drop=True)
        tables[f"ablations{cost.suffix}"] = Table(frame, _CHANGE, said, shown=60)
    means = taken(loss.changes, way).groupby("component", sort=False)["change"].mean()
    summary = {
        f"Δ loss of {name} ({SHORT[way]}), mean over layers": float(mean)
        for name, mean in means.items()
        if np.isfinite(mean)
    }
    return Result(tables, figures, summary=summary)


def _first_and_last(layers: str) -> list[str]:
    """Return the first and last layer, counted from 1."""
    numbers = [int(part) + 1 for part in layers.split(",")]
    return [str(number) for number in dict.fromkeys((numbers[0], numbers[-1]))]


def _worth_figure(evidence: AblationEvidence, cost: Cost, rows: pd.DataFrame, way: str) -> Figure:
    worths = rows.pivot(index="layer", columns="component", values="change")
    worths = worths.reindex(range(1, evidence.layers + 1), columns=rows["component"].unique())
    changed = evidence.map_changes.mean().unstack("component").reindex_like(worths)
    grids = {f"{cost.symbol}, {SHORT[way]}": worths, "1 − ρ of the maps": changed}
    draw = partial(draw_grids, grids, [cost.unit, "before / behind the component"])
    return Figure(draw, _say("figure worth", cost=cost.words, way=IN_WORDS[way]))


def draw_grids(grids: dict[str, pd.DataFrame], labels: list[str]) -> drawing.Drawing:
    """Draw tables of layers (rows) × components (columns) side by side, each in its own colours.

    All have the same rows and columns; `labels` are those of their colour bars.
    """
    layers, components = next(iter(grids.values())).shape
    width = max(3.0, 0.52 * components + 1.1)
    high = max(2.4, min(0.28, 6.5 / layers) * layers + 0.9)
    figure, axes = drawing.panels(len(grids), 1, width=width, height=high)
    for panel, (title, grid), label in zip(axes, grids.items(), labels, strict=True):
        values = grid.to_numpy(float)
        # A few large changes beside many small ones: the root brings out the small ones.
        colours = SignedColours(values, scale="sqrt")
        panel.set_facecolor(_ABSENT)
        image = panel.imshow(
            np.ma.masked_invalid(values),
            cmap=colours.cmap,
            norm=colours.norm,
            aspect="auto",
            extent=(-0.5, components - 0.5, layers + 0.5, 0.5),
        )
        panel.set_xticks(range(components), list(grid), rotation=45 if components > 6 else 0)
        panel.set_yticks(range(1, layers + 1, max(1, -(-layers // 16))))
        drawing.style(panel, y=LAYER if panel is axes[0] else "", title=title, grid=False)
        drawing.bare(panel)
        for (row, column), value in np.ndenumerate(values):
            if layers <= _NUMBERED and np.isfinite(value):
                text, ink = _short(value), colours.ink(value)
                centred: Any = {"ha": "center", "va": "center", "fontsize": drawing.SMALL - 1}
                panel.text(column, row + 1, text, color=ink, **centred)
        bar = drawing.colour_bar(
            figure, image, label, ax=panel, fraction=0.05, pad=0.02, aspect=8 * high
        )
        finite = values[np.isfinite(values)]
        if len(finite) and finite.min() < finite.max():
            # The colours are alike on both sides of 0; the key shows those that occur.
            bar.ax.set_ylim(min(0.0, float(finite.min())), max(0.0, float(finite.max())))
    return figure


def _short(value: float) -> str:
    """A number for a small cell: two digits that matter, without a leading 0."""
    size = abs(value)
    text = fixed(value, 0 if size >= 99.5 else 1 if size >= 9.95 else 2)
    if size < 0.005:
        return "0"
    return text.replace("0.", ".", 1) if size < 1 else text


# Does the change of the map predict the change of the loss? Correlations over cells.


_CORRELATION = ("rho", "low", "high", "cells_low", "cells_high")
RHO, AMP, NORMS = "1 − ρ of the maps", "strength of FF-amp", "‖FF output‖ ÷ ‖bypassed‖"


@experiment("ablation", "prediction")
def prediction(evidence: AblationEvidence) -> Result | None:
    """Correlations of 1 − ρ, of FF-amp's strength and of norms with the change of the loss."""
    rows = _correlations(evidence)
    if all(row["rho"] != row["rho"] for row in rows):
        return None
    way = ways(evidence.costs[0].changes)[0]
    main = [
        row
        for row in rows
        if row["ablation"] == SHORT[way] and (row["over"] == "all" or row["quantity"] != RHO)
    ]
    figures = {}
    means = evidence.map_changes.mean().to_dict()
    for cost in evidence.costs:
        points = taken(cost.changes, way)
        points = points.assign(map=[means.get(key, np.nan) for key in _cells_of(points)])
        points = points.dropna(subset=["map", "change"])
        found = next(row for row in main if (row["quantity"], row["with"]) == (RHO, cost.name))
        figures[f"prediction{cost.suffix}"] = Figure(
            partial(_draw_scatter, points, cost, found),
            _say("figure prediction", cost=cost.name, way=SHORT[way]),
        )
    table = Table(pd.DataFrame(rows), "+.2f")
    summary = {
        f"ρ of {row['quantity']} with the {row['with']} ({row['ablation']})": row["rho"]
        for row in main
        if row["rho"] == row["rho"]
    }
    return Result({"correlations": table}, figures, summary=summary)


def _cells_of(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """The (component, layer) of each ablation of a single layer."""
    return list(zip(rows["component"], rows["layer"].astype(int), strict=True))


def _correlations(evidence: AblationEvidence) -> list[dict[str, Any]]:
    """Every correlation that has cells: by quantity, components, way and cost."""
    changes = evidence.map_changes
    components = list(dict.fromkeys(changes.columns.get_level_values(0)))
    groups = {"all": components}
    if "ATTN" in components:
        groups["all but ATTN"] = [name for name in components if name != "ATTN"]
    groups |= {name: [name] for name in components}
    quantities = [(RHO, over, changes[names]) for over, names in groups.items()]
    quantities += [(AMP, "FF", evidence.strengths), (NORMS, "FF", evidence.norm_ratios)]
    seed = evidence.options.seed
    found: list[dict[str, Any]] = []
    for cost in evidence.costs:
        for way in ways(cost.changes):
            taken_away = taken(cost.changes, way)
            for quantity, over, values in quantities:
                there = values.columns.to_list()
                rows = taken_away.loc[[cell in there for cell in _cells_of(taken_away)]]
                if rows.empty:
                    continue
                drawn = cost.draws[:, cost.changes.index.get_indexer(rows.index)]
                mean, mean_drawn = mean_draws(values[_cells_of(rows)], len(drawn), seed)
                named = {"quantity": quantity, "over": over, "ablation": SHORT[way]}
                rho = cell_correlation(mean, rows["change"], mean_drawn, drawn, seed)
                found.append({**named, "with": cost.name, **rho._asdict()})
    return found


def _draw_scatter(points: pd.DataFrame, cost: Cost, found: dict[str, Any]) -> drawing.Drawing:
    """Draw every cell, a colour and a marker per component, its layer beside it where it fits."""
    figure, (axes,) = drawing.panels(width=5.4, height=3.6)
    axes.axhline(0, color=FAINT, lw=0.6)
    for place, (component, rows) in enumerate(points.groupby("component", sort=False)):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        dots: Any = {"fmt": marker, "color": colour, "ms": 4, "lw": 0.8, "label": component}
        _error_bars(axes, rows["map"], rows, **dots)
        if len(points) <= 40:
            beside: Any = {
                "xytext": (3, 2),
                "textcoords": "offset points",
                "fontsize": drawing.SMALL - 1,
            }
            for layer, x, y in zip(rows["layer"], rows["map"], rows["change"], strict=True):
                axes.annotate(_layer_label(layer), (x, y), color=colour, **beside)
    _scale_changes(axes, points[["change", "low", "high"]])
    behind = "1 − ρ of the maps before and behind the component"
    drawing.style(axes, x=behind, y=f"{cost.symbol} ({cost.unit})")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    title = "too few cells for a correlation"
    if found["rho"] == found["rho"]:
        rho, *ends = [fixed(found[name]) for name in _CORRELATION]
        title = (
            f"Spearman's ρ = {rho} [{ends[0]}, {ends[1]}] over sequences, [{ends[2]}, {ends[3]}] "
            "over cells"
        )
    axes.set_title(title, fontsize=drawing.SMALL, color=INK, loc="left")
    return figure


# Zero, mean and resample side by side, and the kinds of norms: how a component is taken away.


#: Kinds that are alternatives of each other, by what they replace.
_GROUPS = {"components": ablations.VECTOR_KINDS, "norms": ablations.NORM_KINDS}


@experiment("ablation", "kinds")
def by_kind(evidence: AblationEvidence) -> Result | None:
    """A table per group of kinds with all kinds side by side, and lines over the layers."""
    tables, figures = {}, {}
    for cost in evidence.costs:
        means = means_table(cost.changes)
        if means.shape[1] > 1:
            said = _say("table kinds-means", cost=cost.words)
            tables[f"kinds-means{cost.suffix}"] = Table(
                means.reset_index(), _CHANGE, said, open=True
            )
        for name, kinds in _GROUPS.items():
            rows = cost.changes[cost.changes["kind"].isin(kinds)]
            there = [kind for kind in kinds if kind in set(rows["kind"])]
            if len(there) < 2:
                continue
            key, facts = f"kinds-{name}{cost.suffix}", {"cost": cost.words, "what": name}
            tables[key] = Table(side_by_side(rows, there), "", _say("table kinds", **facts))
            single = rows[rows["layer"].notna()]
            if single["layer"].nunique() > 1:
                draw = partial(_draw_kinds, single, there, cost)
                figures[key] = Figure(draw, _say("figure kinds", **facts))
    return Result(tables, figures) if tables else None


def side_by_side(rows: pd.DataFrame, kinds: list[str]) -> pd.DataFrame:
    """A row per component and layer ("all": at once); a column per kind, intervals as text."""
    ends = [[signed(value, 3) for value in row] for row in rows[_ENDS].to_numpy()]
    texts = [f"{change} [{low}, {high}]" for change, low, high in ends]
    cells = rows.assign(text=texts, layer=rows["layer"].map(_layer_label))
    cells = cells.pivot_table("text", ["component", "layer"], "kind", aggfunc="first", sort=False)
    return cells[kinds].reset_index()


def means_table(changes: pd.DataFrame) -> pd.DataFrame:
    """The mean change over single layers: a row per component, a column per kind."""
    rows = changes[changes["layer"].notna() & changes["kind"].isin(ablations.VECTOR_KINDS)]
    means = rows.pivot_table(index="component", columns="kind", values="change", sort=False)
    return means.reindex(columns=[kind for kind in ablations.VECTOR_KINDS if kind in means])


def _draw_kinds(rows: pd.DataFrame, kinds: list[str], cost: Cost) -> drawing.Drawing:
    names = list(rows["component"].unique())
    columns = min(3, len(names))
    figure, axes = drawing.tiles(len(names), columns, 2.6, 2.0)
    for place, (panel, name) in enumerate(zip(axes, names, strict=True)):
        some = rows[rows["component"] == name].sort_values("layer")
        for number, kind in enumerate(kinds):
            one = some[some["kind"] == kind]
            if len(one):
                points = one[["layer", *_ENDS]].to_numpy(float)
                drawing.line(panel, *points.T, place=number, label=kind)
        drawing.layer_ticks(panel, int(rows["layer"].max()))
        _scale_changes(panel, some["change"], signed=False)
        below, left = place + columns >= len(names), place % columns == 0
        drawing.style(panel, x=LAYER if below else "", y=cost.symbol if left else "", title=name)
    axes[0].legend()
    return figure


# Special dimensions of the norm behind FF against as many random ones.


_NAMES = {ablations.LOWEST_GAMMA: "lowest γ", ablations.OUTLIERS: "outlying γ"}


@experiment("ablation", "special-dimensions")
def special(evidence: AblationEvidence) -> Result | None:
    """Rank special dimensions among random draws, per layer and for all layers at once."""
    cost = evidence.costs[0]
    frame = compared(cost.changes)
    if frame.empty:
        return None
    return Result(
        {"special-dimensions": Table(frame, "+.4f", formats={"p": ".3f"})},
        {"special-dimensions": Figure(partial(_draw_special, frame, cost))},
        facts={"cost": cost.words},
    )


def compared(changes: pd.DataFrame) -> pd.DataFrame:
    """A row per kind of special dimensions and layer ("all": at once), with its random draws."""
    rows = []
    for kind, control in ablations.CONTROLS.items():
        controls = changes[changes["kind"] == control].set_index(["component", "layers"])["change"]
        for row in changes[changes["kind"] == kind].itertuples():
            draws = controls[controls.index.isin([(row.component, row.layers)])]
            reached, p = place_among(row.change, draws)
            rows.append(
                {
                    "dimensions": _NAMES[kind],
                    "layer": _layer_label(row.layer),
                    **{name: getattr(row, name) for name in _ENDS},
                    "random mean": draws.mean(),
                    "random largest": draws.max(),
                    "draws": len(draws),
                    "draws as harmful": reached,
                    "p": p,
                }
            )
    return pd.DataFrame(rows)


def _draw_special(table: pd.DataFrame, cost: Cost) -> drawing.Drawing:
    kinds = [kind for kind in ablations.CONTROLS if _NAMES[kind] in set(table["dimensions"])]
    figure, axes = drawing.panels(len(kinds), 1, width=3.8, height=2.7)
    for panel, kind in zip(axes, kinds, strict=True):
        rows = table[table["dimensions"] == _NAMES[kind]].reset_index(drop=True)
        control = cost.changes[cost.changes["kind"] == ablations.CONTROLS[kind]]
        places = [rows["layer"].tolist().index(_layer_label(n)) for n in control["layer"]]
        label = "random dimensions"
        panel.plot(places, control["change"], ".", color=drawing.GREY, ms=3, label=label)
        dots: Any = {"fmt": "o", "color": COLOURS[1], "ms": 4.5, "lw": 1, "label": _NAMES[kind]}
        _error_bars(panel, rows.index, rows, **dots)
        panel.axhline(0, color=drawing.GREY, lw=0.5)
        _scale_changes(panel, [*control["change"], *rows["change"]])
        step = max(1, -(-len(rows) // 14))
        panel.set_xticks(rows.index[::step], rows["layer"][::step])
        drawing.style(panel, x=LAYER, y=f"{cost.symbol} ({cost.unit})" if panel is axes[0] else "")
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


# FF's change of the map is cancelled behind it: what does FF cost there?


@experiment("ablation", "redundancy")
def redundancy(evidence: AblationEvidence) -> Result | None:
    """Compare the cancelled part of FF's change with FF's cost, layer by layer."""
    pair = feed_forward_pair(evidence.scopes)
    way = next(iter(ways(evidence.costs[0].changes)), None)
    if pair is None or way is None:
        return None
    cost = evidence.costs[-1]  # agreement where it is known, or else the loss
    last = [scope for scope in evidence.scopes if scope.endswith("-N")][-1]
    frame = layer_table(
        evidence.similarity(*pair).mean(),
        evidence.similarity(pair[0], last).mean() if last != pair[1] else None,
        taken(cost.changes, way),
    )
    if frame.empty:
        return None
    formats = dict.fromkeys(("ρ behind FF", "ρ at the end", "undone share"), ".2f")
    return Result(
        {"redundancy": Table(frame, _CHANGE, formats=formats)},
        {"redundancy": Figure(partial(_draw_redundancy, frame, cost))},
        facts={"cost": cost.words, "way": SHORT[way]},
    )


def layer_table(behind: pd.Series, end: pd.Series | None, rows: pd.DataFrame) -> pd.DataFrame:
    """A row per layer in which FF was ablated and has a map before and behind it."""
    block = rows[rows["component"] == "FF"].set_index("layer")[["change", "low", "high"]]
    block = block[np.isfinite(behind.reindex(block.index))].rename(columns={"change": "FF"})
    attention = rows[rows["component"] == "ATTN"].set_index("layer")["change"]
    before = behind.reindex(block.index)
    after = before * np.nan if end is None else end.reindex(block.index)
    undone = (1 - (1 - after) / (1 - before)).where(before < 1)
    maps = pd.DataFrame({"ρ behind FF": before, "ρ at the end": after, "undone share": undone})
    table = maps.join(block).assign(ATTN=attention).reset_index()
    return table.astype({"layer": int})


def _draw_redundancy(table: pd.DataFrame, cost: Cost) -> drawing.Drawing:
    figure, (left, right) = drawing.panels(2, 1, width=3.6, height=2.6)
    left.bar(table["layer"], table["undone share"].clip(lower=-1), color=COLOURS[0], width=0.7)
    dots: Any = {"fmt": "o", "ms": 4, "lw": 1, "color": COLOURS[1], "label": "FF"}
    _error_bars(right, table["layer"], table, "FF", **dots)
    if table["ATTN"].notna().any():
        right.plot(table["layer"], table["ATTN"], "s", ms=3.5, color=COLOURS[0], label="ATTN")
    _scale_changes(right, table[["FF", "low", "high", "ATTN"]])
    drawing.style(left, x=LAYER, y="undone share of FF's change")
    drawing.style(right, x=LAYER, y=f"{cost.symbol} ({cost.unit})")
    right.legend()
    for panel in (left, right):
        panel.axhline(0, color=FAINT, lw=0.6)
        drawing.layer_ticks(panel, int(table["layer"].max()))
    return figure


# Build the page of an ablation from its two runs' tables alone.


#: In the page's order.
SECTIONS = (worth, prediction, by_kind, special, redundancy)
_HIDDEN = ("model", "data", "revision", "loss", "reference")


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and page of a folder that `ablate` has made; gives the page."""
    return write(describe(Path(folder)), folder)


def describe(folder: Path) -> Report:
    """Describe the page of a folder, from its tables alone."""
    options, told = load_settings(folder)
    runs = {name: finished_run(folder / name, "reproduce ablate") for name in (ABLATION, MAPS)}
    evidence = AblationEvidence(options, told, runs[ABLATION], runs[MAPS])
    if evidence.losses.empty:
        raise InputError(f"{str(folder / ABLATION)!r} has no losses; query its failures")
    header = Header.of(
        runs[ABLATION],
        [measured(run, name.rpartition("/")[2], name) for name, run in runs.items()],
        {name: value for name, value in vars(options).items() if name not in _HIDDEN},
        [
            ("Loss", told.loss),
            ("Ablations", f"{len(evidence.plan) - 1} of the real model, beside the intact one"),
            ("First pass", f"reads {told.reference}"),
            ("Layers", "counted from 1 in this report, as in the papers"),
            ("Published numbers", "none exist, so nothing here is compared with a paper"),
        ],
    )
    answered = [Section(each, [("", each(evidence))], runs=list(runs)) for each in SECTIONS]
    return Report(f"What {header.model.name}’s components are worth", header, answered)

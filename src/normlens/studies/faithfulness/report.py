"""The page of a faithfulness run, from its tables alone: protocols, costs and worked examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.figures.canvas import COLOURS, INK, MARKERS, drawable, families_for
from normlens.figures.colours import DIVERGING, NEGATIVE, POSITIVE
from normlens.measures.bootstrap import LEAST_EXAMPLES
from normlens.results.axes import readable_tokens
from normlens.studies.faithfulness.options import LEAST, MOST
from normlens.studies.faithfulness.ranking import (
    NORMLENS,
    PASSES,
    PRIORS,
    Ranking,
    averages,
    curves_query,
    difference_tables,
    intact,
    protocols,
    rank,
    ranking_table,
    values_query,
)
from normlens.studies.reports.contents import (
    Evidence,
    Experiment,
    Figure,
    Header,
    Report,
    Result,
    Section,
    Table,
    experiment,
    measured,
)
from normlens.studies.reports.drawing import GREY, SMALL, Drawing, bare, panels, style
from normlens.studies.reports.files import check_finished, rendered, write_run_report
from normlens.studies.reports.words import caption, fixed, short_names

if TYPE_CHECKING:
    from markupsafe import Markup

_say = partial(caption, "faithfulness")

# One colour, marker and dash per method, the same in every figure of a report.


_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
# Black and the second blue are hard to tell from other lines where many cross.
_HUES = COLOURS[:6]
Styles = Mapping[str, Mapping[str, Any]]


def method_styles(methods: Sequence[str]) -> Styles:
    """Colour, marker, dash and width of each method, as Matplotlib's keywords; priors are grey."""
    styles: dict[str, dict[str, Any]] = {
        "first-token": {"color": GREY, "marker": "+", "ls": _DASHES[1], "lw": 1.1},
        "random": {"color": GREY, "marker": "x", "ls": _DASHES[2], "lw": 1.1},
    }
    informed = sorted(
        set(methods).difference(PRIORS), key=lambda name: (name != NORMLENS, methods.index(name))
    )
    for place, name in enumerate(informed):
        styles[name] = {
            "color": _HUES[place % len(_HUES)],
            "marker": MARKERS[place % len(MARKERS)],
            "ls": _DASHES[place // len(_HUES) % len(_DASHES)],
            "lw": 2.0 if name == NORMLENS else 1.1,
        }
    return styles


# All protocols at a glance: every method's value in each.


@experiment("faithfulness", "overview")
def overview(rankings: Sequence[Ranking], methods: Sequence[str]) -> Result:
    """Set every protocol's values beside each other."""
    columns = {
        f"{ranking.protocol}{' (lower is better)' if ranking.words.lower_is_better else ''}": (
            ranking.table.set_index("method")["value"]
        )
        for ranking in rankings
    }
    frame = pd.DataFrame(columns).reindex(methods).reset_index(names="method")
    return Result({"overview": Table(frame, ".3f", open=True)})


# Score, probability and accuracy against the share of tokens removed: one line per method.


_LEGEND = 1.6  # inches
_TITLES = {MOST: "most important first", LEAST: "least important first"}


@dataclass(frozen=True)
class Curves:
    """Means and intervals of a protocol's points, by quantity, order, method and share."""

    frame: pd.DataFrame  # quantity, first, method, share, value, low, high, examples
    whole: dict[str, float]  # of the whole texts, by quantity


def averaged_curves(evidence: Evidence, ranking: Ranking) -> Curves | None:
    """Average a protocol's points over examples; None where nothing is removed."""
    points = evidence.sql(curves_query(ranking.protocol))
    if points.empty:
        return None
    texts = intact(evidence).set_index("index")
    main = ranking.words.falls
    quantities = {main: points[main], "accuracy": points["correct"]}
    whole = {main: texts[main], "accuracy": texts["right_class"]}
    parts = []
    for name, values in quantities.items():
        if not values.notna().any():
            continue
        wide = points.assign(value=values.astype(float)).pivot(
            index="index", columns=["first", "method", "share"], values="value"
        )
        if ranking.words.begins == "whole":
            wide = _with_start(wide, whole[name].astype(float))
        parts.append(averages(wide, ranking.seed).reset_index().assign(quantity=name))
    frame = pd.concat(parts, ignore_index=True)
    means = {name: float(column.mean()) for name, column in whole.items() if column.notna().any()}
    return Curves(
        frame[["quantity", "first", "method", "share", "value", "low", "high", "examples"]], means
    )


def _with_start(wide: pd.DataFrame, whole: pd.Series) -> pd.DataFrame:
    """Begin every line with the whole texts, where its protocol has no share of 0."""
    lines = wide.columns.to_frame(index=False).groupby(["first", "method"])["share"].min()
    for first, method in lines[lines > 0].index:
        wide[first, method, 0.0] = whole.reindex(wide.index)
    return wide.sort_index(axis=1)


def draw_curves(ranking: Ranking, averaged: Curves, styles: Styles) -> Drawing:
    frame = averaged.frame
    quantities = list(frame["quantity"].unique())
    orders = [first for first in (MOST, LEAST) if (frame["first"] == first).any()]
    width, shared = 3.0 + _LEGEND / len(orders), {"sharex": True, "sharey": "row"}
    figure, axes = panels(len(orders), len(quantities), width, 2.5, **shared)
    opacity = min(0.15, 0.8 / len(ranking.methods))  # many bands would hide the lines
    for place, (quantity, first) in enumerate((q, f) for q in quantities for f in orders):
        panel = axes[place]
        some = frame[(frame["quantity"] == quantity) & (frame["first"] == first)]
        # The best method is drawn last, above all others.
        for method in reversed(ranking.methods):
            line = some[some["method"] == method].sort_values("share")
            if line.empty:
                continue
            shown, share = styles[method], 100 * line["share"]
            if line["low"].notna().any():
                panel.fill_between(
                    share, line["low"], line["high"], color=shown["color"], alpha=opacity, lw=0
                )
            panel.plot(share, line["value"], ms=3.2, label=method, **shown)
        if quantity in averaged.whole:
            panel.axhline(averaged.whole[quantity], color=GREY, lw=0.6, ls=":", zorder=0)
        bottom = place >= len(orders) * (len(quantities) - 1)
        style(
            panel,
            x=f"tokens {ranking.words.axis} (%)" if bottom else "",
            y=""
            if place % len(orders)
            else quantity
            if quantity == "accuracy"
            else ranking.words.label,
            title=_TITLES.get(first, first) if place < len(orders) > 1 else "",
        )
    handles, methods = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], methods[::-1], handlelength=2.6, loc="outside right upper")
    return figure


# What each method costs: passes through the model, and time against one forward pass.


TIME = "time / forward pass"


@experiment("faithfulness", "costs")
def costs(evidence: Evidence, ranking: Ranking, styles: Styles) -> Result | None:
    """Set passes and times beside each other, cheapest first, and draw values against passes."""
    table = evidence.sql(PASSES)
    if table.empty:
        return None
    assert evidence.run is not None
    stages = evidence.run.status().stages
    seconds = table["method"].map(lambda name: stages.get(f"method {name}", np.nan))
    table[TIME] = seconds / (stages.get("intact") or np.nan)
    table["passes"] = table["forward"] + table["backward"]
    table = table.sort_values(["passes", "method"], ignore_index=True)
    shown = table[["method", "forward", "backward", TIME, "texts"]]
    draw = partial(draw_costs, ranking, table.set_index("method")["passes"], styles)
    return Result(
        {"costs": Table(shown, ".1f", open=True)},
        {"costs": Figure(draw)},
        facts={"title": ranking.words.title},
    )


def draw_costs(ranking: Ranking, passes: pd.Series, styles: Styles) -> Drawing:
    """Draw each method's value against its passes, on a scale that has room for 0."""
    figure, (panel,) = panels(width=5.6, height=3.0)
    for method in ranking.methods:
        if method not in passes:
            continue
        row, shown = ranking.row(method), {**styles[method], "ls": "none"}
        x = float(passes[method])
        if row["low"] == row["low"]:
            panel.vlines(x, row["low"], row["high"], color=shown["color"], lw=0.9)
        panel.plot([x], [row["value"]], ms=5, label=method, **shown)
    panel.set_xscale("symlog", linthresh=1)
    ticks = [tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000) if tick <= 2 * passes.max()]
    panel.set_xticks(ticks, map(str, ticks))
    panel.minorticks_off()
    panel.set_xlim(left=-0.3)
    style(panel, x="passes per text", y=ranking.words.value)
    figure.legend(loc="outside right upper")
    return figure


# Texts whose tokens have the colours of their scores: HTML for the page, a matrix for print.


_STRONGEST = 0.85  # opacity of the largest score
_WHITE_FROM = 0.55  # opacity from which dark ink is hard to read


@dataclass(frozen=True)
class ColouredText:
    """One text and every method's scores of its tokens."""

    tokens: Sequence[str]
    ordinary: NDArray[np.bool_]
    methods: Sequence[str]
    scores: NDArray[np.float64]  # (method, token)
    values: Sequence[float]  # of the methods, in the protocol that ranks them
    evidence: NDArray[np.bool_]  # tokens of the word that must decide

    def strengths(self) -> NDArray[np.float64]:
        """Scores against each method's largest, −1 to 1; NaN for tokens that stay."""
        kept = np.where(self.ordinary, self.scores, np.nan)
        # A text may have no ordinary token, or one whose scores are all 0.
        largest = np.max(np.abs(kept), axis=1, initial=0, where=~np.isnan(kept))
        return kept / np.where(largest > 0, largest, 1)[:, None]


def page(text: ColouredText) -> Markup:
    """Write one line of coloured tokens per method."""
    from markupsafe import Markup

    marked = text.evidence.tolist()
    rows = [
        (method, fixed(value) if value == value else "", list(map(_token, strengths.tolist())))
        for method, value, strengths in zip(
            text.methods, text.values, text.strengths(), strict=True
        )
    ]
    ends = _colour(NEGATIVE, _STRONGEST), _colour(POSITIVE, _STRONGEST)
    return Markup(
        rendered("tokens.html.j2", rows=rows, tokens=text.tokens, marked=marked, ends=ends)
    )


def _token(strength: float) -> tuple[str, str] | None:
    """The style and title of a token; None for one that stays."""
    if strength != strength:
        return None
    opacity = _STRONGEST * abs(strength)
    ink = "#fff" if opacity > _WHITE_FROM else "#1a1a1a"
    colour = _colour(POSITIVE if strength >= 0 else NEGATIVE, opacity)
    return f"background:{colour};color:{ink}", f"{100 * strength:+.0f} %".replace("-", "−")


def _colour(hexadecimal: str, opacity: float) -> str:
    red, green, blue = (int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.2f})"


def draw_matrix(text: ColouredText) -> Drawing:
    """Draw methods × tokens as a heat map with the tokens written below."""
    import matplotlib

    labels = [token if len(token) <= 16 else token[:15] + "…" for token in text.tokens]
    with matplotlib.rc_context({"font.family": families_for([*labels, *text.methods])}):
        rows, columns = len(text.methods), len(labels)
        width = max(4.5, min(11.0, 1.6 + 0.2 * columns))
        letters = max(map(len, labels), default=1)
        figure, (panel,) = panels(width=width, height=0.35 + 0.2 * rows + 0.075 * letters)
        colours = matplotlib.colormaps[DIVERGING].with_extremes(bad="#eeeeee")
        drawn = panel.imshow(
            np.ma.masked_invalid(text.strengths()), cmap=colours, vmin=-1, vmax=1, aspect="auto"
        )
        size = SMALL if columns <= 48 else 5.0
        panel.set_yticks(range(rows), map(drawable, text.methods), fontsize=SMALL)
        panel.set_xticks(range(columns), map(drawable, labels), fontsize=size, rotation=90)
        for tick, ordinary, decides in zip(
            panel.get_xticklabels(), text.ordinary, text.evidence, strict=True
        ):
            tick.set(color=INK if ordinary else GREY, parse_math=False)
            tick.set_weight("bold" if decides else "normal")
        for tick in panel.get_yticklabels():
            tick.set_parse_math(False)
        bare(panel)
        panel.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        panel.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        panel.grid(which="minor", color="white", lw=1)
        panel.tick_params(which="minor", length=0)
        bar = figure.colorbar(drawn, ax=panel, ticks=[-1, 0, 1], shrink=0.9, aspect=12, pad=0.015)
        bar.ax.set_yticklabels(["against", "0", "for"], fontsize=SMALL)
        bar.ax.tick_params(length=2, width=0.5)
        bar.outline.set_linewidth(0.4)
        return figure


# Which texts a report shows: from those that part the two best methods most to the opposite.


EXAMPLES = 5
SHORT, LONG = 6, 40  # ordinary tokens of a text that is easy to read


def choose_examples(ranking: Ranking, texts: pd.DataFrame) -> list[int]:
    """Choose examples (by index) at even quantiles of the lead of the best method over its rival.

    Texts that are easy to read are preferred. Of equal leads shorter texts come first, then
    earlier ones, so that the choice is the same every time.
    """
    values = ranking.values
    winner, rival = ranking.methods[0], ranking.rival
    lead = values[winner] if rival is None else values[winner] - values[rival]
    sign = -1 if ranking.words.lower_is_better else 1
    tokens = texts.set_index("index")["ordinary"]
    frame = pd.DataFrame({"lead": sign * lead, "tokens": tokens}).dropna()
    readable = frame[frame["tokens"].between(SHORT, LONG)]
    chosen = readable if len(readable) >= EXAMPLES else frame
    ordered = chosen.reset_index(names="index").sort_values(["lead", "tokens", "index"])["index"]
    places = np.linspace(0, len(ordered) - 1, min(EXAMPLES, len(ordered))).round().astype(int)
    return [int(ordered.iloc[place]) for place in reversed(places)]


# Worked examples: some texts, and what every method says of their tokens.


@experiment("faithfulness", "examples")
def worked_examples(evidence: Evidence, ranking: Ranking) -> Result | None:
    """Show the chosen texts with every method's colours, and the scores in a table."""
    texts = intact(evidence)
    chosen = choose_examples(ranking, texts)
    if not chosen:
        return None
    scores = evidence.sql(
        f"""SELECT * FROM attributions WHERE "index" IN ({", ".join(map(str, chosen))})
ORDER BY "index", method, position"""
    )
    if scores.empty:
        return None
    texts = texts.set_index("index")
    figures = {}
    for place, index in enumerate(chosen, start=1):
        text = _text(ranking, scores[scores["index"] == index], index)
        if text is not None:
            caption = f"Example {place}: {_about(texts.loc[index])}"
            figures[f"example-{place}"] = Figure(
                partial(draw_matrix, text), caption, partial(page, text)
            )
    columns = ["sequence", "method", "position", "token", "ordinary", "score"]
    listed = scores[~scores["method"].isin(PRIORS)][columns].reset_index(drop=True)
    return Result({"examples": Table(listed, ".4g", shown=40)}, figures)


def _text(ranking: Ranking, scores: pd.DataFrame, index: int) -> ColouredText | None:
    wide = scores.pivot(index="position", columns="method", values="score")
    methods = [name for name in ranking.methods if name in wide and name not in PRIORS]
    if not methods:
        return None
    first = scores[scores["method"] == methods[0]]
    ordinary = first["ordinary"].to_numpy(bool)
    return ColouredText(
        tokens=readable_tokens(list(map(str, first["token"])), (~ordinary).tolist()),
        ordinary=ordinary,
        methods=methods,
        scores=wide[methods].to_numpy(float).T,
        values=[float(ranking.values[name].get(index, np.nan)) for name in methods],
        evidence=pd.array(first["evidence"], dtype="boolean").fillna(False).to_numpy(bool),
    )


def _about(text: pd.Series) -> str:
    """Say what the model says of a text, and whether that is right."""
    parts = [str(text["sequence"])]
    if _given(text["target"]):
        contrast = f" against {text['contrast']!r}" if _given(text["contrast"]) else ""
        sure = f", probability {fixed(text['probability'])}" if _given(text["probability"]) else ""
        parts.append(f"the score is of {text['target']!r}{contrast}{sure}")
    else:
        parts.append(f"the score is {fixed(text['score'])}")
    if _given(text.get("evidence")):
        parts.append(f"the word that must decide is {text['evidence']!r}")
    if _given(text["label"]):
        parts.append(f"labelled {text['label']!r}")
    if _given(text["correct"]):
        parts.append("the model is right" if text["correct"] else "the model is wrong")
    return "; ".join(parts) + "."


def _given(value: Any) -> bool:
    return not pd.isna(value) and value != ""


# Build the report from the tables; no model is needed.


TABLE = "faithfulness"  # the table that a run needs to have


def describe(run: Run) -> Report:
    """Describe the report of a finished run: a section per protocol, costs and examples."""
    path = str(run.folder)
    if TABLE not in run.tables:
        raise InputError(f"{path!r} is no evaluation; its tables are {', '.join(run.tables)}")
    check_finished(run)
    data = next(iter(short_names([str(run.manifest.data["name"])]).values()))
    evidence = Evidence(data, run)
    seed = run.manifest.options.seed
    rankings = [rank(evidence, name, seed) for name in protocols(evidence)]
    if not rankings:
        raise InputError(f"{path!r} holds no value of any protocol; see its table failures")
    methods = list(dict.fromkeys(name for ranking in rankings for name in ranking.methods))
    styles = method_styles(methods)
    sections = [_protocol(evidence, ranking, styles) for ranking in rankings]
    if len(rankings) > 1:
        sections.insert(0, Section(overview, [(data, overview(rankings, methods))]))
    cost = costs(evidence, rankings[0], styles)
    sections += [
        Section(costs, [(data, cost)], queries=[PASSES]),
        Section(worked_examples, [(data, worked_examples(evidence, rankings[0]))]),
    ]
    header = _header(run, evidence, methods)
    return Report(f"{header.model.name}: are attributions faithful?", header, sections)


def _protocol(evidence: Evidence, ranking: Ranking, styles: Styles) -> Section:
    name, words = ranking.protocol, ranking.words
    tables = {name: ranking_table(ranking), **difference_tables(ranking)}
    figures, asked = {}, [values_query(name)]
    averaged = averaged_curves(evidence, ranking)
    if averaged is not None:
        facts: dict[str, Any] = {
            "axis": words.axis,
            "label": words.label[0].upper() + words.label[1:],
        }
        facts |= {"examples": int(averaged.frame["examples"].max()), "least": LEAST_EXAMPLES}
        key, draw = f"{name}-curves", partial(draw_curves, ranking, averaged, styles)
        figures[key] = Figure(draw, _say("figure curves", **facts))
        tables[key] = Table(
            averaged.frame, ".3f", _say("table curves", **facts), {"share": ".2f"}, shown=40
        )
        asked.append(curves_query(name))
    values = zip(ranking.methods, ranking.table["value"], strict=True)
    summary = {f"{words.value} of {method}": float(value) for method, value in values}
    method = f"{words.method} {words.compared}"
    asks = Experiment(name, words.title, words.source, words.question, method, words.read)
    result = Result(tables, figures, summary=summary)
    return Section(asks, [(evidence.data, result)], queries=asked)


def _header(run: Run, evidence: Evidence, methods: Sequence[str]) -> Header:
    texts = intact(evidence)
    right = texts["right_class"].dropna()
    accuracy = f"; the model is right on {100 * right.mean():.1f} % of them" if len(right) else ""
    notes = [
        ("Examples", f"{len(texts):,}{accuracy}"),
        ("Methods", ", ".join(methods)),
        ("Published numbers", "do not exist for this model and these data"),
    ]
    options = run.manifest.options
    shown = {name: getattr(options, name) for name in ("limit", "max_length", "seed")}
    return Header.of(run, [measured(run, evidence.data)], shown, notes, decomposed=False)


#: Writes the page of an evaluation; by default into the run's folder ``report``.
build_report = partial(write_run_report, describe)

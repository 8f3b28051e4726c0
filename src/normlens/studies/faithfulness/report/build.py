"""Build the report of a faithfulness run from its tables, with worked examples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.figures.canvas import INK, drawable, families_for
from normlens.figures.colours import DIVERGING, NEGATIVE, POSITIVE
from normlens.results.axes import readable_tokens
from normlens.studies.faithfulness.report.curves import (
    COSTS,
    OVERVIEW,
    Styles,
    averaged_curves,
    costs,
    curve_figure,
    curve_table,
    method_styles,
    overview,
)
from normlens.studies.faithfulness.report.ranking import (
    PASSES,
    PRIORS,
    Ranking,
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
    measured,
    model_of,
)
from normlens.studies.reports.drawing import GREY, SMALL, panels
from normlens.studies.reports.registry import check_finished, write_run_report
from normlens.studies.reports.words import fixed, short_names

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure as Drawing

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
    evidence: NDArray[np.bool_] | None = None  # tokens of the word that must decide, if one must

    def strengths(self) -> NDArray[np.float64]:
        """Scores against each method's largest, −1 to 1; NaN for tokens that stay."""
        kept = np.where(self.ordinary, self.scores, np.nan)
        # A text may have no ordinary token, or one whose scores are all 0.
        largest = np.max(np.abs(kept), axis=1, initial=0, where=~np.isnan(kept))
        return kept / np.where(largest > 0, largest, 1)[:, None]


def page(text: ColouredText) -> Markup:
    """Write one line of coloured tokens per method."""
    from markupsafe import Markup

    marked = [False] * len(text.tokens) if text.evidence is None else text.evidence.tolist()
    frame = "; framed: the deciding word" if any(marked) else ""
    rows = []
    for method, value, strengths in zip(text.methods, text.values, text.strengths(), strict=True):
        # Spaces let a line break between tokens.
        tokens = Markup(" ").join(map(_token, text.tokens, strengths.tolist(), marked))
        shown = "" if value != value else f"{value:.2f}".replace("-", "−")
        by = Markup('<div class="by"><b>{}</b> <span>{}</span></div>').format(method, shown)
        rows.append(by + Markup("<div>{}</div>").format(tokens))
    key = Markup(
        '<div class="key"><span>against the score</span><span class="bar" '
        'style="background:linear-gradient(90deg,{},#fff,{})"></span><span>for it, by the '
        "method's largest score in this text; grey tokens stay{}</span></div>"
    ).format(_colour(NEGATIVE, _STRONGEST), _colour(POSITIVE, _STRONGEST), frame)
    return Markup('<div class="tokens">\n{}\n</div>\n{}').format(Markup("\n").join(rows), key)


def _token(token: str, strength: float, evidence: bool) -> Markup:
    from markupsafe import Markup

    if strength != strength:
        return Markup('<i class="special">{}</i>').format(token)
    opacity = _STRONGEST * abs(strength)
    ink = "#fff" if opacity > _WHITE_FROM else "#1a1a1a"
    colour = _colour(POSITIVE if strength >= 0 else NEGATIVE, opacity)
    title = f"{100 * strength:+.0f} %".replace("-", "−")
    marked = Markup(' class="evidence"') if evidence else ""
    return Markup('<i{} style="background:{};color:{}" title="{}">{}</i>').format(
        marked, colour, ink, title, token
    )


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
        deciding = np.zeros(columns, bool) if text.evidence is None else text.evidence
        for tick, ordinary, decides in zip(
            panel.get_xticklabels(), text.ordinary, deciding, strict=True
        ):
            tick.set(color=INK if ordinary else GREY, parse_math=False)
            tick.set_weight("bold" if decides else "normal")
        for tick in panel.get_yticklabels():
            tick.set_parse_math(False)
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
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


WORKED_EXAMPLES = Experiment(
    name="examples",
    title="Worked examples",
    source="texts of the run",
    question="What do the methods say of single texts?",
    method="The texts stand at even quantiles of the lead of the best method over its rival, from "
    "the largest lead to the smallest; texts of 6 to 40 ordinary tokens are preferred. Colours are "
    "scores against the method's largest in that text; methods that give no signs are red only. "
    "Priors are left out.",
    absent="the run keeps no scores of tokens",
)


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
    shown = scores[~scores["method"].isin(PRIORS)][
        ["sequence", "method", "position", "token", "ordinary", "score"]
    ]
    return Result(
        tables={
            "examples": Table(
                shown.reset_index(drop=True),
                "Scores of the tokens of these texts, by method.",
                {"score": ".4g"},
                shown=40,
            )
        },
        figures=figures,
        sentences=[
            f"The number beside a method is its value on that text ({ranking.words.title})."
        ],
    )


def _text(ranking: Ranking, scores: pd.DataFrame, index: int) -> ColouredText | None:
    methods = [
        name for name in ranking.methods if name not in PRIORS and (scores["method"] == name).any()
    ]
    if not methods:
        return None
    by_method = {name: scores[scores["method"] == name] for name in methods}
    first = by_method[methods[0]]
    deciding = first.get("evidence")
    ordinary = first["ordinary"].to_numpy(bool)
    return ColouredText(
        tokens=readable_tokens(list(map(str, first["token"])), (~ordinary).tolist()),
        ordinary=ordinary,
        methods=methods,
        scores=np.array([by_method[name]["score"].to_numpy(float) for name in methods]),
        values=[float(ranking.values[name].get(index, np.nan)) for name in methods],
        evidence=None
        if deciding is None
        else pd.array(deciding, dtype="boolean").fillna(False).to_numpy(bool),
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


# Build the report of a faithfulness run from its tables; no model is needed.


TABLE = "faithfulness"  # the table that a run needs to have
_SELECTION = (
    " Differences are taken on the same examples; their intervals are the percentile bootstrap's, "
    "their p values the two-sided sign-flip test's. The winner was chosen on the examples that it "
    "is compared on, which the correction does not cover."
)
_HOW_TO_READ = (
    "Two methods differ where the interval of their difference excludes 0 and the p value by Holm "
    f"is below 0.05; {' and '.join(PRIORS)} are priors, which do not look at the model."
)


def build_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the tables, figures and page of a faithfulness run; gives the page's path.

    They go to `out`, by default the folder ``report`` in the run's own.
    """
    return write_run_report(run, describe, out)


def describe(run: Run) -> Report:
    """Describe the report of a finished run: a section per protocol, costs and examples."""
    path = str(run.folder)
    if TABLE not in run.tables:
        raise InputError(
            f"{path!r} measures no faithfulness; its tables are {', '.join(run.tables)}"
        )
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
        sections.insert(0, Section(OVERVIEW, [(data, overview(rankings, methods))]))
    cost = costs(evidence, rankings[0], styles)
    sections += [
        Section(COSTS, [(data, cost)], queries=[PASSES]),
        Section(WORKED_EXAMPLES, [(data, worked_examples(evidence, rankings[0]))]),
    ]
    header = _header(run, evidence, methods)
    css = (files("normlens.studies.faithfulness.report") / "tokens.css").read_text("utf-8")
    return Report(f"{header.model.name}: are attributions faithful?", header, sections, css)


def _protocol(evidence: Evidence, ranking: Ranking, styles: Styles) -> Section:
    name, words = ranking.protocol, ranking.words
    tables = {name: ranking_table(ranking), **difference_tables(ranking)}
    figures = {}
    asked = [values_query(name)]
    averaged = averaged_curves(evidence, ranking)
    if averaged is not None:
        figures[f"{name}-curves"] = curve_figure(ranking, averaged, styles)
        tables[f"{name}-curves"] = curve_table(ranking, averaged)
        asked.append(curves_query(name))
    result = Result(
        tables=tables,
        figures=figures,
        sentences=[_HOW_TO_READ],
        summary={
            f"{words.value} of {method}": float(value)
            for method, value in zip(ranking.methods, ranking.table["value"], strict=True)
        },
    )
    experiment = Experiment(
        name=name,
        title=words.title,
        source=words.source,
        question=words.question,
        method=words.method + _SELECTION,
    )
    return Section(experiment, [(evidence.data, result)], queries=asked)


def _header(run: Run, evidence: Evidence, methods: Sequence[str]) -> Header:
    manifest = run.manifest
    texts = intact(evidence)
    right = texts["right_class"].dropna()
    accuracy = f"; the model is right on {100 * right.mean():.1f} % of them" if len(right) else ""
    options = manifest.options
    settings = {
        "limit": options.limit,
        "max_length": options.max_length,
        "seed": options.seed,
    }
    return Header(
        model=model_of(run),
        runs=[measured(run, evidence.data)],
        settings={name: value for name, value in settings.items() if value is not None},
        versions=dict(manifest.versions),
        notes=[
            ("Examples", f"{len(texts):,}{accuracy}"),
            ("Methods", ", ".join(methods)),
            ("Published numbers", "do not exist for this model and these data"),
        ],
        decomposed=False,
    )

"""Worked examples: some texts, and what every method says of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from normlens.faithfulness.report import queries
from normlens.faithfulness.report.coloured_tokens import ColouredText, draw_matrix, page
from normlens.faithfulness.report.example_choice import choose_examples
from normlens.faithfulness.report.protocol_words import PRIORS
from normlens.faithfulness.report.ranking import Ranking
from normlens.reports.base import Evidence, Experiment, Figure, Result, Table
from normlens.reports.words import fixed
from normlens.results.axes import readable_tokens

EXPERIMENT = Experiment(
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


def worked_examples(evidence: Evidence, rankings: Sequence[Ranking]) -> Result | None:
    """Show the chosen texts with every method's colours, and the scores in a table."""
    if not rankings:
        return None
    ranking = rankings[0]
    texts = queries.intact(evidence)
    chosen = choose_examples(ranking, texts)
    scores = queries.attributions(evidence, chosen) if chosen else pd.DataFrame()
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

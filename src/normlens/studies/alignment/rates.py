"""Error rates by layer, scope, way, component and head: tables, a figure, and who wins."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.measures.alignment import Rates, Resampled, resampled_rates
from normlens.measures.bootstrap import Means
from normlens.scopes import components_of
from normlens.studies.alignment.gold import COUNTS
from normlens.studies.alignment.options import EXPLAIN, INPUT, OUTPUT, WAYS
from normlens.studies.reports.contents import Experiment, Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, layer_ticks, line, panels, style
from normlens.studies.reports.words import Comparison, Published, fixed, signed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Drawing

# Error rates of a run's links against gold links, with intervals over sentence pairs.


RESAMPLES = 10_000
#: What tells one map's links from another's.
KEYS = ["scope", "way", "layer", "head"]
SUMS = """SELECT scope, way, layer, head, count(*) AS pairs,
  1 - (sum(sure_hits) + sum(possible_hits)) / (sum(links) + sum(sure)) AS aer,
  sum(possible_hits) / sum(links) AS precision, sum(sure_hits) / sum(sure) AS recall
FROM alignment WHERE sure IS NOT NULL GROUP BY ALL ORDER BY aer"""
_COUNTS = f"""SELECT "index", scope, way, coalesce(layer, -1) AS layer, coalesce(head, -1) AS head,
  {", ".join(COUNTS)}
FROM alignment WHERE sure IS NOT NULL"""


@dataclass(frozen=True)
class ErrorRates:
    """Rates of every map's links, the columns of `resampled` in the order of the table's rows."""

    table: pd.DataFrame  # scope, way, layer, head, pairs, then each rate with its interval, best
    resampled: Resampled

    def difference(self, first: int, second: int) -> Means:
        """How much AER rises from the map of one row to another's, on the same pairs."""
        return self.resampled.difference("aer", second, first)


def error_rates(run: Run, resamples: int = RESAMPLES, seed: int = 0) -> ErrorRates:
    """AER, precision and recall of every layer, scope, way and head, with 95 % intervals.

    Rows are in the order of the scopes in a layer; `head` is −1 for all heads together, `layer`
    −1 for the whole model (EXPLAIN), and `best` marks the lowest AER.
    """
    if "alignment" not in run.tables:
        raise InputError(f"{str(run.folder)!r} aligns no words; make one with normlens align")
    counts = run.sql(_COUNTS)
    if counts.empty:
        raise InputError(f"{str(run.folder)!r} has no gold links; align again with --gold FILE")
    order = {scope: place for place, scope in enumerate(_in_order(run, counts))}
    counts["place"] = counts["scope"].map(order)
    counts["second"] = counts["way"] == OUTPUT
    wide = counts.pivot(
        index="index", columns=["second", "place", "head", "layer"], values=list(COUNTS)
    )
    maps = wide[COUNTS[0]].columns.sort_values()
    cells = np.stack([wide[name][maps].to_numpy(np.float64) for name in COUNTS], axis=-1)
    resampled = resampled_rates(cells, resamples, seed)
    table = maps.to_frame(index=False)
    table["scope"] = table["place"].map({place: scope for scope, place in order.items()})
    table["way"] = np.where(table["second"], OUTPUT, "input")
    table = table[KEYS].assign(pairs=len(cells))
    for name in Rates._fields:
        value, low, high = resampled.interval(name)
        table[name], table[f"{name}_low"], table[f"{name}_high"] = value, low, high
    table["best"] = table["aer"] == table["aer"].min()
    return ErrorRates(table, resampled)


def _in_order(run: Run, counts: pd.DataFrame) -> list[str]:
    """The scopes as a layer has them: CROSS-W, CROSS-N, and what follows."""
    present = list(counts["scope"].unique())
    known = ["CROSS-W", "CROSS-N", *run.manifest.model["scopes"]]
    return sorted(present, key=lambda scope: known.index(scope) if scope in known else len(known))


# Published error rates, in per cent, and a run's best ones beside them.


_PAPER = "Kobayashi et al. 2020, section 5"
_MODEL = "a German–English Transformer"
_DATA = "German–English pairs"
_ALIGNERS = "statistical aligners"
_HANSARDS = "the 447 English–French pairs of the Hansards"

#: Scope, way, AER of the best layer.
_PAPERS_RATES = (
    ("CROSS-W", INPUT, 29.8),
    ("CROSS-N", INPUT, 25.0),
    ("CROSS-W", OUTPUT, 47.7),
    ("CROSS-N", OUTPUT, 41.4),
)
_ALIGNERS_RATES = (("fast_align", 10.5), ("eflomal", 8.2))
_NAMES = {"CROSS-W": "weights", "CROSS-N": "norms"}
_WAYS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}


def comparisons(rates: pd.DataFrame) -> list[Comparison]:
    """The paper's rates beside those of the same scope's best layer, and statistical aligners'.

    All of them are of another model, and the paper's also of other data.
    """
    found = []
    for scope, way, value in _PAPERS_RATES:
        here = rates[(rates["scope"] == scope) & (rates["way"] == way) & (rates["head"] < 0)]
        published = Published(
            key=f"alignment/{scope}/{way}",
            label=f"AER {_WAYS[way]}, {_NAMES[scope]}, best layer",
            value=value,
            model=_MODEL,
            data="de-en",
            data_label=_DATA,
            source=_PAPER,
            digits=1,
        )
        found.append(Comparison(published, _lowest(here), same=False))
    for name, value in _ALIGNERS_RATES:
        published = Published(
            key=f"alignment/{name}",
            label=f"AER of {name}; measured: the best map",
            value=value,
            model=_ALIGNERS,
            data="hansards",
            data_label=_HANSARDS,
            source="Aligners that learn from parallel text and need no translation model",
            digits=1,
        )
        found.append(Comparison(published, _lowest(rates), same=False))
    return found


def _lowest(rates: pd.DataFrame) -> float | None:
    """The lowest error rate in per cent; None where there is none."""
    return None if rates.empty else 100 * float(rates["aer"].min())


# Error rates by layer, scope and way: tables, a figure, and who wins.


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
WAY_WORDS = {INPUT: "by input (AWI)", OUTPUT: "by output (AWO)"}
_RATES = ("aer", "precision", "recall")


def per_cent(rates: pd.DataFrame) -> pd.DataFrame:
    """The rates and their intervals in per cent, layers from 1."""
    shown = rates.copy()
    for name in _RATES:
        for column in (name, f"{name}_low", f"{name}_high"):
            shown[column] *= 100
    shown["layer"] += 1
    return shown


def of_maps(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of maps of all heads together, without contributions to logits."""
    return table[(table["head"] < 0) & (table["layer"] >= 0)]


def rate_result(rates: ErrorRates) -> Result:
    """Every map's error rates, heads together."""
    table = per_cent(of_maps(rates.table))
    tables = {
        f"aer-{way}": _wide(table[table["way"] == way], way)
        for way in WAYS
        if (table["way"] == way).any()
    }
    columns = ["scope", "way", "layer"]
    columns += [name for rate in _RATES for name in (rate, f"{rate}_low", f"{rate}_high")]
    tables["alignment-rates"] = Table(
        table[[*columns, "best"]].reset_index(drop=True),
        "AER, precision and recall in per cent, with 95 % intervals.",
        dict.fromkeys(columns[3:], ".1f"),
    )
    return Result(
        tables=tables,
        figures={"aer-layers": _figure(table)},
        sentences=_sentences(rates),
        comparisons=comparisons(rates.table),
        summary={
            f"AER {way}, {scope}, best layer": float(some["aer"].min())
            for (way, scope), some in table.groupby(["way", "scope"], sort=False)
        },
    )


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


def _sentences(rates: ErrorRates) -> list[str]:
    table = of_maps(rates.table)
    sentences = []
    for way in WAYS:
        some = table[table["way"] == way]
        if some.empty:
            continue
        best = some.loc[some["aer"].idxmin()]
        sentences.append(
            f"The best map {WAY_WORDS[way]} is {best['scope']} of layer {best['layer'] + 1}: "
            f"AER {with_interval(best)}, precision {fixed(100 * best['precision'], 1)}, recall "
            f"{fixed(100 * best['recall'], 1)}."
        )
        weights = some[some["scope"] == "CROSS-W"]
        others = some[some["scope"] != "CROSS-W"]
        if weights.empty or others.empty:
            continue
        plain, other = weights["aer"].idxmin(), others["aer"].idxmin()
        change = rates.difference(int(plain), int(other))
        chance = change.low[0] <= 0 <= change.high[0] or change.low[0] != change.low[0]
        sure = "" if chance else ", which chance does not explain"
        sentences.append(
            f"Against the best map of weights (layer {weights.loc[plain, 'layer'] + 1}, "
            f"{with_interval(weights.loc[plain])}) that is {in_points(change)}{sure}."
        )
    return sentences


def with_interval(row: pd.Series) -> str:
    """An error rate in per cent, with its interval where there is one."""
    text = fixed(100 * row["aer"], 1)
    if row["aer_low"] != row["aer_low"]:
        return text
    return f"{text} ({fixed(100 * row['aer_low'], 1)} to {fixed(100 * row['aer_high'], 1)})"


def in_points(change: Means) -> str:
    """A difference of error rates in points, with its interval where there is one."""
    mean, low, high = (100 * float(part[0]) for part in change)
    text = f"{signed(mean, 1)} points"
    return text if low != low else f"{text} ({signed(low, 1)} to {signed(high, 1)})"


def _figure(table: pd.DataFrame) -> Figure:
    return Figure(
        lambda: _draw(table),
        "AER by layer, one line per scope; bands are 95 % bootstrap intervals over sentence pairs. "
        "Lower is better.",
    )


def _draw(table: pd.DataFrame) -> Drawing:
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
    table = pd.DataFrame(rows)
    return Result(
        tables={
            "alignment-components": Table(
                table,
                "Change of AER in points, with 95 % intervals; negative: the component helps.",
                dict.fromkeys(("before", "change", "low", "high"), ".1f"),
            )
        },
        sentences=_component_sentences(table),
    )


def _differences(rates: ErrorRates) -> list[dict[str, object]]:
    table = rates.table
    together = of_maps(table)
    together = together[together["scope"] != "CROSS-W"]
    scopes = list(together["scope"].unique())
    rows: list[dict[str, object]] = []
    for way in WAYS:
        for before, after in pairwise(scopes):
            for layer in sorted(together["layer"].unique()):
                first = _place(together, before, way, layer)
                second = _place(together, after, way, layer)
                if first is None or second is None:
                    continue
                mean, low, high = (100 * float(p[0]) for p in rates.difference(first, second))
                rows.append(
                    {
                        "way": way,
                        "layer": int(layer) + 1,
                        "component": _component(after),
                        "before": 100 * float(table["aer"][first]),
                        "change": mean if abs(mean) > _NOTHING else 0.0,
                        "low": low,
                        "high": high,
                    }
                )
    return rows


def _component(scope: str) -> str:
    """The last component of a scope, numbered if the layer has several behind the attentions."""
    parts = components_of(scope)
    return f"{parts[-1]}{parts.count(parts[-1])}" if parts[-1] != "FF" else "FF"


def _place(table: pd.DataFrame, scope: str, way: str, layer: int) -> int | None:
    here = (table["scope"] == scope) & (table["way"] == way) & (table["layer"] == layer)
    places = table.index[here]
    return int(places[0]) if len(places) else None


def _component_sentences(table: pd.DataFrame) -> list[str]:
    sentences = []
    for (way, component), some in table.groupby(["way", "component"], sort=False):
        if not (np.abs(some["change"]) > 0).any():
            continue
        # The layer in which words are aligned best, and how many layers go which way.
        best = some.sort_values("before").iloc[0]
        helps, harms = (some["high"] < 0).sum(), (some["low"] > 0).sum()
        sentences.append(
            f"{component} {WAY_WORDS[str(way)]}: {signed(best['change'], 1)} points in layer "
            f"{best['layer']}, the best before it ({signed(best['low'], 1)} to "
            f"{signed(best['high'], 1)}); of {len(some)} layers it helps in {helps} and harms in "
            f"{harms}."
        )
    return sentences


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
_COLUMNS = ["aer", "aer_low", "aer_high", "precision", "recall"]


def explanation_result(rates: ErrorRates) -> Result | None:
    """The error rates of contributions, and how far they are from the best map's by output."""
    table = rates.table
    explained = table[table["scope"] == EXPLAIN]
    if explained.empty:
        return None
    why = explained.iloc[0]
    sentences = [
        f"Contributions to logits: AER {with_interval(why)}, precision "
        f"{fixed(100 * why['precision'], 1)}, recall {fixed(100 * why['recall'], 1)}."
    ]
    maps = table[(table["scope"] != EXPLAIN) & (table["way"] == OUTPUT) & (table["head"] < 0)]
    if not maps.empty:
        best = maps.loc[maps["aer"].idxmin()]
        change = rates.difference(int(maps["aer"].idxmin()), int(explained.index[0]))
        sentences.append(
            f"The best map by output is {best['scope']} of layer {best['layer'] + 1} with "
            f"{with_interval(best)}; contributions make that {in_points(change)}."
        )
    return Result(
        tables={
            "alignment-explain": Table(
                per_cent(explained)[_COLUMNS].reset_index(drop=True),
                "AER, precision and recall of contributions in per cent, with 95 % intervals.",
                dict.fromkeys(_COLUMNS, ".1f"),
                open=True,
            )
        },
        sentences=sentences,
        summary={"AER of contributions": 100 * float(why["aer"])},
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
    best = heads.iloc[0]
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
        sentences=[
            f"The best head is head {best['head'] + 1} of layer {best['layer'] + 1} by "
            f"{best['scope']} {WAY_WORDS[best['way']]}: AER {with_interval(best)}."
        ],
    )

"""How tokens are mixed: Kobayashi et al. 2021, sections 4 and 5, their notebook and example."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import CATEGORIES
from normlens.errors import InputError, listed, quoted
from normlens.figures.canvas import COLOURS, INK
from normlens.measures.bootstrap import ratio_intervals
from normlens.measures.maps import normalise
from normlens.measures.ranks import grouped_spearman, spearman_matrix
from normlens.results.maps import Maps
from normlens.scopes import components_of, layers_in_words, thinned
from normlens.studies.papers.published import Evidence, compare
from normlens.studies.reports import drawing, words
from normlens.studies.reports.contents import Figure, Result, Table, experiment

if TYPE_CHECKING:
    from normlens.inputs.text import Text
    from normlens.lens import Lens

# Shared by the experiments on mixing ratios: categories of tokens, and scopes to name.


_NAMES = {
    "ordinary": "ordinary",
    "mask": "[MASK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "other-special": "other special",
}
_COLOURS = dict(zip((name for name in CATEGORIES if name != "mask"), COLOURS, strict=False))
#: A decoder's sequence is framed by its beginning and its end.
_CAUSAL_NAMES = {**_NAMES, "cls": "BOS", "sep": "EOS"}


def has_mixing(evidence: Evidence) -> bool:
    return evidence.run is not None and "mixing" in evidence.run.tables


def category_names(evidence: Evidence) -> dict[str, str]:
    """Name the categories of tokens as readers know them."""
    return _CAUSAL_NAMES if evidence.model["causal"] else _NAMES


def in_model_order(evidence: Evidence, present: set[str]) -> list[str]:
    """Sort the scopes that a table holds into the model's order."""
    return [scope for scope in evidence.scopes if scope in present]


def attention_block(scopes: list[str]) -> str:
    """Find the scope of the attention block with everything before the feed-forward block.

    ATTNRESLN-N in BERT. Where the feed-forward block stands beside the attention, the whole layer.
    """
    chain = [scope for scope in scopes if scope.endswith("-N")]
    before = [scope for scope in chain if "FF" not in components_of(scope)]
    return before[-1] if len(before) > 1 else chain[-1]


# Section 4: how much of a token's vector comes from other tokens.


@experiment("papers", "mixing", needs="masked")
def section_4(evidence: Evidence) -> Result | None:
    """Take mean, maximum and minimum per method, and means per layer and category of tokens."""
    if not has_mixing(evidence):
        return None
    cells = evidence.sql(
        "SELECT scope, layer + 1 AS layer, category, count(*) AS tokens, sum(ratio) AS total, "
        "min(ratio) AS low, max(ratio) AS high FROM mixing WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    scopes = in_model_order(evidence, set(cells["scope"]))
    if not scopes:
        return None
    table = _mixing_table(evidence, cells, scopes)
    grid = _grid(cells, scopes, category_names(evidence))
    means = dict(zip(table["method"], table["mean"], strict=True))
    groups = ("mixing", "mixing-poster")
    measured = {f"{group}/{scope}": mean for group in groups for scope, mean in means.items()}
    return Result(
        tables={"mixing": Table(table, ".2f"), "mixing-layers": Table(grid, ".1f")},
        figures={"mixing": Figure(lambda: _draw_grid(grid, scopes))},
        comparisons=compare(measured, evidence),
        summary={f"Mean mixing ratio, {scope} (%)": value for scope, value in means.items()},
    )


def _means(cells: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Average the ratio, in per cent, over the tokens of each group."""
    sums = cells.groupby(keys)[["total", "tokens"]].sum()
    return 100 * sums["total"] / sums["tokens"]


def _mixing_table(evidence: Evidence, cells: pd.DataFrame, scopes: list[str]) -> pd.DataFrame:
    layers = _means(cells, ["scope", "layer"]).unstack("layer")
    sums = evidence.sql(
        'SELECT "index", scope, 100 * sum(ratio) AS total, count(*) AS tokens FROM mixing '
        "WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    total, tokens = (
        sums.pivot(index="index", columns="scope", values=name)[scopes].fillna(0).to_numpy(float)
        for name in ("total", "tokens")
    )
    settings = evidence.settings
    mean, low, high = ratio_intervals(total, tokens, settings.resamples, settings.seed)
    by_scope = cells.groupby("scope")
    columns = {
        "mean": mean,
        "95 % low": low,
        "95 % high": high,
        "highest layer mean": layers.max(axis=1),
        "lowest layer mean": layers.min(axis=1),
        "highest token": 100 * by_scope["high"].max(),
        "lowest token": 100 * by_scope["low"].min(),
    }
    return pd.DataFrame(columns, index=scopes).rename_axis("method").reset_index()


def _grid(cells: pd.DataFrame, scopes: list[str], names: dict[str, str]) -> pd.DataFrame:
    """Build the grid: rows by method and layer, columns for all tokens and each category."""
    present = [name for name in CATEGORIES if name in set(cells["category"])]
    wide = _means(cells, ["scope", "layer", "category"]).unstack("category")[present]
    wide = wide.rename(columns=names)
    if len(present) > 1:
        wide.insert(0, "all", _means(cells, ["scope", "layer"]))
    wide.columns.name = None
    return wide.reindex(scopes, level="scope").rename_axis(["method", "layer"]).reset_index()


def _draw_grid(grid: pd.DataFrame, scopes: list[str]) -> drawing.Drawing:
    """Draw layer × category heat maps, one panel per method; with one category, layer × method."""
    categories = list(grid)[2:]
    if len(categories) == 1:
        methods = grid.pivot(index="method", columns="layer", values=categories[0]).loc[scopes]
        shown = {f"{categories[0]} tokens": methods}
    else:
        by_method = {s: grid[grid["method"] == s].set_index("layer") for s in scopes}
        shown = {scope: rows[categories].T for scope, rows in by_method.items()}
    columns = min(2, len(shown))
    width, high = 4.6 if columns == 1 else 3.4, len(next(iter(shown.values())))
    figure, axes = drawing.tiles(len(shown), columns, width, 0.42 + 0.19 * high)
    image: Any = None
    for place, (panel, (title, rows)) in enumerate(zip(axes, shown.items(), strict=True)):
        form = ".0f" if len(rows.columns) <= 12 else None
        image = drawing.heat_map(panel, rows, form, vmin=0, vmax=100)
        label = words.LAYER if place >= len(shown) - columns else ""
        drawing.style(panel, x=label, title=title)
        if place % columns:
            panel.set_yticklabels([])
    drawing.colour_bar(
        figure, image, "mixing ratio (%)", ax=axes, fraction=0.03, pad=0.01, aspect=30
    )
    return figure


# How frequent a subword is: ranks from the user's file, or from the corpus itself.


#: A copy of the user's file, so that a report can be built again without it.
RANKS = "ranks.txt"


def read_ranks(path: str | Path) -> pd.Series:
    """Read each subword id's rank from a file of `rank count id` lines (rank 1: most frequent)."""
    try:
        lines = pd.read_csv(path, sep=r"\s+", header=None, dtype="int64")
        rank, _, token = (lines[column] for column in lines)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not every line is `rank count id`"
        raise InputError(f"cannot read the ranks in {str(path)!r}: {reason}") from error
    wrong = lines[(rank < 1) | (token < 0) | token.duplicated()]
    if len(wrong):
        shown = " ".join(map(str, wrong.iloc[0]))
        raise InputError(f"{str(path)!r} has {shown!r}; give each id from 0 one rank from 1")
    return rank.set_axis(token)


def subword_ranks(evidence: Evidence, groups: pd.DataFrame) -> tuple[pd.Series, int]:
    """Rank each subword of the run; return the ranks and how many subwords the file lacks.

    As in the authors' program, subwords without a rank come behind all that have one.
    """
    counts = groups[groups["scope"] == groups["scope"].iloc[0]].set_index("token_id")["occurrences"]
    if evidence.settings.ranks is None:
        return counts.rank(ascending=False), 0
    kept = evidence.folder / RANKS
    ranked = read_ranks(kept if kept.is_file() else evidence.settings.ranks)
    ranks = ranked.reindex(counts.index)
    unranked = int(ranks.isna().sum())
    if unranked == len(ranks):
        raise InputError(f"{str(evidence.settings.ranks)!r} ranks no subword of this run")
    return ranks.fillna(ranked.max() + 1), unranked


# The scatter plot of mixing ratio against frequency rank.


#: What the correlations are taken over: SQL for the categories of tokens.
KINDS = {"all": "category <> 'mask'", "ordinary": "category = 'ordinary'"}
COLUMNS = {
    ("all", "occurrences"): "all tokens",
    ("ordinary", "occurrences"): "without special tokens",
    ("all", "types"): "all types",
    ("ordinary", "types"): "types without special tokens",
}


def drawn_scopes(scopes: list[str]) -> list[str]:
    """Choose the scopes to draw: ATTN-N, with the residual, with all before FF, the whole layer."""
    chain = [scope for scope in scopes if scope.endswith("-N")]
    if not chain:
        return scopes[:1]
    residual = [scope for scope in chain if "RES" in components_of(scope)]
    wanted = {chain[0], *residual[:1], attention_block(scopes), chain[-1]}
    return [scope for scope in chain if scope in wanted]


def _draw_frequency(
    evidence: Evidence, scopes: list[str], ranks: pd.Series, table: pd.DataFrame, share: float
) -> drawing.Drawing:
    listed = ", ".join(f"'{scope}'" for scope in scopes)
    chosen = "" if share == 1 else f'AND hash("index", position) % 1000000 < {round(share * 1e6)}'
    points = evidence.sql(
        "SELECT scope, any_value(token_id) AS token_id, any_value(category) AS category, "
        f"100 * avg(ratio) AS ratio FROM mixing WHERE {KINDS['all']} AND NOT isnan(ratio) "
        f'AND scope IN ({listed}) {chosen} GROUP BY scope, "index", position '
        'ORDER BY scope, "index", position'
    )
    points["rank"] = ranks.loc[points["token_id"]].to_numpy()
    figure, axes = drawing.tiles(len(scopes), 2, 3.4, 2.5, sharex=True)
    columns = min(2, len(scopes))
    names = category_names(evidence)
    rho = table.set_index("method")
    for place, (panel, scope) in enumerate(zip(axes, scopes, strict=True)):
        _draw_points(panel, points[points["scope"] == scope], names)
        panel.set_xscale("log")
        panel.set_xlim(left=0.8)
        lowest = place + columns >= len(scopes)
        values = [words.fixed(rho.loc[scope, COLUMNS[kind, "occurrences"]]) for kind in KINDS]
        beside = f", ordinary {values[1]}" if values[0] != values[1] else ""
        drawing.style(
            panel,
            x="frequency rank" if lowest else "",
            y="" if place % columns else "mixing ratio (%)",
            title=f"{scope}   ρ = {values[0]}{beside}",
        )
    if points["category"].nunique() > 1:
        drawing.legend(figure, axes[:1], ncols=5, markerscale=1.6, handletextpad=0.1)
    return figure


def _draw_points(panel: Any, points: pd.DataFrame, names: dict[str, str]) -> None:
    ordinary = points[points["category"] == "ordinary"]
    alpha = float(np.clip(800 / max(1, len(ordinary)), 0.08, 0.6))
    for category, colour in _COLOURS.items():
        group = points[points["category"] == category]
        faint = alpha if category == "ordinary" else min(0.5, 3 * alpha)
        dots: Any = {"lw": 0, "color": colour}
        panel.scatter(group["rank"], group["ratio"], s=4, alpha=faint, rasterized=True, **dots)
        if len(group):
            panel.scatter([], [], s=8, label=names[category], **dots)
    if ordinary["rank"].nunique() > 1:
        bins = pd.cut(np.log10(ordinary["rank"]), 12)
        median = ordinary.groupby(bins, observed=True)[["rank", "ratio"]].median()
        panel.plot(median["rank"], median["ratio"], color=INK, lw=1.2)


# Section 5: mixing ratio against the frequency of the subword.


#: Occurrences in the scatter plot, about.
_POINTS = 20_000


@experiment("papers", "frequency", needs="masked")
def section_5(evidence: Evidence) -> Result | None:
    """Correlate mixing ratio and frequency rank per method, over occurrences and over types."""
    if not has_mixing(evidence):
        return None
    groups = {kind: _groups(evidence, where) for kind, where in KINDS.items()}
    scopes = in_model_order(evidence, set(groups["ordinary"]["scope"]))
    if not scopes:
        return None
    ranks, unranked = subword_ranks(evidence, groups["all"])
    table = _frequency_table(groups, scopes, ranks)
    occurrences = int(groups["all"].loc[groups["all"]["scope"] == scopes[0], "occurrences"].sum())
    measured = {
        f"frequency/{kind}/{row['method']}": float(row[COLUMNS[kind, "occurrences"]])
        for kind in KINDS
        for _, row in table.iterrows()
    }
    given = evidence.settings.ranks
    origin = f"ranks from {Path(given).name}" if given else "ranks of the subwords in this corpus"
    drawn, share = drawn_scopes(scopes), min(1.0, _POINTS / occurrences)
    ordinary = table[COLUMNS["ordinary", "occurrences"]].astype(float)
    return Result(
        tables={"frequency": Table(table, ".3f")},
        figures={
            "frequency": Figure(lambda: _draw_frequency(evidence, drawn, ranks, table, share))
        },
        # The published figures have ranks from BERT's training data.
        comparisons=[
            replace(comparison, same=comparison.same and given is not None)
            for comparison in compare(measured, evidence)
        ],
        summary={
            f"ρ of mixing ratio and frequency rank, {scope}": rho
            for scope, rho in zip(table["method"], ordinary.tolist(), strict=True)
        },
        facts={"origin": origin, "unranked": unranked, "points": _POINTS},
    )


def _groups(evidence: Evidence, where: str) -> pd.DataFrame:
    """Count each method's subwords, with their mean ratio and sums of the occurrences' ranks.

    `place` is an occurrence's average rank by its ratio among all of its method, less their mean.
    Spearman's ρ with anything that depends on the subword alone follows from these sums. Ratios are
    rounded to ten digits: the order in which a mean over layers was summed must not break ties.
    """
    return evidence.sql(
        f"""
        WITH occurrence AS (
            SELECT scope, any_value(token_id) AS token_id, round(avg(ratio), 10) AS ratio
            FROM mixing WHERE {where} AND NOT isnan(ratio) GROUP BY scope, "index", position
        ), placed AS (
            SELECT scope, token_id, ratio,
                rank() OVER (PARTITION BY scope ORDER BY ratio)
                + (count(*) OVER (PARTITION BY scope, ratio) - 1) / 2.0
                - (count(*) OVER (PARTITION BY scope) + 1) / 2.0 AS place
            FROM occurrence
        )
        SELECT scope, token_id, count(*) AS occurrences, round(avg(ratio), 10) AS ratio,
            sum(place) AS place, sum(place * place) AS square
        FROM placed GROUP BY scope, token_id ORDER BY scope, token_id
        """
    )


def _frequency_table(
    groups: dict[str, pd.DataFrame], scopes: list[str], ranks: pd.Series
) -> pd.DataFrame:
    rows = []
    for scope in scopes:
        row: dict[str, Any] = {"method": scope}
        for (kind, over), name in COLUMNS.items():
            subwords = groups[kind][groups[kind]["scope"] == scope]
            rank = ranks.loc[subwords["token_id"]].to_numpy()
            if over == "occurrences":
                counts, places = subwords["occurrences"].to_numpy(), subwords["place"].to_numpy()
                row[name] = grouped_spearman(rank, counts, places, float(subwords["square"].sum()))
            else:
                row[name] = spearman_matrix(np.stack([subwords["ratio"].to_numpy(), rank]))[0, 1]
        rows.append(row)
    return pd.DataFrame(rows)


# The authors' notebook: how much the attention's transformation expands vectors.


EXPANSION = "expansion.csv"
_AS_PUBLISHED = "as published"
_DIGITS = 3  # of the published rates


@experiment("papers", "expansion", needs="model")
def expansion_rate(evidence: Evidence) -> Result | None:
    """Show the expansion rate of every layer."""
    if not (evidence.folder / EXPANSION).is_file():
        return None
    rows = pd.read_csv(evidence.folder / EXPANSION)
    layers, rates, theirs = rows[words.LAYER], rows["rate"], rows["as_published"]
    columns = {"layer": layers.astype(str), "rate": rates}
    # Models without an output bias, or of another width, have only the one form.
    if theirs.notna().all() and (theirs - rates).abs().max() >= 0.5 * 10**-_DIGITS:
        columns[_AS_PUBLISHED] = theirs
    table = pd.DataFrame(columns)
    measured = {
        f"expansion/layer-{n}": float(v) for n, v in zip(layers, table.iloc[:, -1], strict=True)
    }
    measured["expansion/mean"] = float(table.iloc[:, -1].mean())
    mean = {"layer": "mean", **table.drop(columns="layer").mean()}
    table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
    return Result(
        tables={"expansion": Table(table, f".{_DIGITS}f")},
        figures={"expansion": Figure(lambda: _draw_expansion(rates))},
        comparisons=compare(measured, evidence),
        summary={"Expansion rate, mean over layers": float(rates.mean())},
    )


def _draw_expansion(rates: pd.Series) -> drawing.Drawing:
    layers = range(1, len(rates) + 1)
    figure, (axes,) = drawing.panels(width=max(3.0, min(6.8, 0.9 + 0.27 * len(rates))), height=2.3)
    bars = axes.bar(layers, rates, width=0.62, color=COLOURS[0])
    axes.axhline(1, color="black", lw=0.8, ls=(0, (4, 2)))
    if len(rates) <= 12:
        axes.bar_label(bars, fmt="%.2f", padding=1)
    axes.set_ylim(0, 1.1 * max(float(rates.max()), 1.0))
    drawing.layer_ticks(axes, len(rates))
    drawing.style(axes, x=words.LAYER, y="expansion rate")
    return figure


# The authors' example: maps of one sentence pair under four methods.


SENTENCE = "sentence.safetensors"
PAIR = ("The clock stopped at noon.", "Nobody noticed it.")
SINGLE = "The clock stopped at noon, and nobody noticed it."
_LAYERS = 12  # in the figure, at most


def methods(scopes: list[str]) -> list[str]:
    """Choose the four methods of the example: α, with half a residual, norms, all before FF.

    ATTN-W, ATTNRES-W, ATTN-N and, in BERT, ATTNRESLN-N.
    """
    wanted = {"ATTN-W", "ATTNRES-W", "ATTN-N", attention_block(scopes)}
    return [scope for scope in scopes if scope in wanted]


def chosen_text(lens: Lens, sentence: str | None) -> Text:
    """Choose the user's text ("first|second" is a pair), else a pair if the model takes pairs."""
    if sentence is None:
        return PAIR if _takes_pairs(lens) else SINGLE
    first, bar, second = sentence.partition("|")
    return (first.strip(), second.strip()) if bar else sentence


def _takes_pairs(lens: Lens) -> bool:
    """Whether the tokenizer puts special tokens between two texts."""
    added = getattr(lens.tokenizer, "num_special_tokens_to_add", None)
    return not lens.causal and added is not None and added(pair=True) > added(pair=False)


def write_sentence(lens: Lens, sentence: str | None, folder: Path) -> Path:
    """Write the maps of the sentence (or pair) under the four methods, all layers."""
    text = chosen_text(lens, sentence)
    maps = lens.maps(text, scopes=methods(lens.scopes))
    # Where layers differ, those that all methods can be compared in.
    maps = maps.choose(maps.layers_of(*maps.scopes))
    return maps.save(folder / SENTENCE, overwrite=True)


@experiment("papers", "sentence", needs="model")
def example_sentence(evidence: Evidence) -> Result | None:
    """Show the maps, and where their mass lies."""
    if not (evidence.folder / SENTENCE).is_file():
        return None
    maps = Maps.load(evidence.folder / SENTENCE)
    shown = thinned(maps.layers, _LAYERS)
    return Result(
        tables={"sentence": Table(shares(maps), ".1f")},
        figures={"sentence": Figure(lambda: _draw_sentence(maps.choose(shown)))},
        facts={
            "text": listed(quoted(maps.text)) or "a text",
            "scopes": listed(maps.scopes),
            "layers": f"{layers_in_words(layer + 1 for layer in shown)} of {len(maps.layers)}",
        },
    )


def shares(maps: Maps) -> pd.DataFrame:
    """Per cent of each map's mass on the diagonal, and from special tokens off the diagonal."""
    special = np.array(maps.special, dtype=bool)
    columns: dict[str, object] = {"layer": [layer + 1 for layer in maps.layers]}
    for scope in maps.scopes:
        mass = normalise(maps[scope].astype(np.float64), "target")  # (layer, i, j)
        total = mass.sum(axis=(1, 2))
        diagonal = np.diagonal(mass, axis1=1, axis2=2)  # (layer, i)
        columns[f"{scope} diagonal"] = 100 * diagonal.sum(axis=1) / total
        if special.any():
            from_special = mass[..., special].sum(axis=(1, 2)) - diagonal[:, special].sum(axis=1)
            columns[f"{scope} special"] = 100 * from_special / total
    return pd.DataFrame(columns)


def _draw_sentence(maps: Maps) -> drawing.Drawing:
    """Draw layers below each other and methods side by side."""
    from matplotlib import style

    counted_from_1 = replace(maps, layers=[layer + 1 for layer in maps.layers])
    look: Any = {"normalise": "target", "colour": "sqrt", "cmap": "Blues", "scale": "scope"}
    with style.context("default"):
        return counted_from_1.plot_overview(**look)

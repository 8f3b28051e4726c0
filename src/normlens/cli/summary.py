"""Maps in words: what ``normlens map`` prints without --out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from normlens import layers
from normlens.cli.printing import add_row, console_for, new_table, print_table
from normlens.precisions import cost_in_words
from normlens.scopes import consecutive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from normlens.results.maps import Maps

PRINTED_TOKENS = 16  # a map with more tokens is too wide for a table
PRINTED_PAIRS = 3


def show_maps(maps: Maps) -> None:
    console = console_for()
    shown = maps.tokens
    about = maps.provenance
    console.print(
        f"{about['model']} ({about['model_type']}): {layers_in_words(maps)} of "
        f"{about['components']}, {about['dtype']} on {about['device']}"
    )
    console.print(f"{len(shown)} tokens: {' '.join(shown)}")
    if maps.source_axis is not None:
        console.print(f"{len(maps.sources)} sources: {' '.join(maps.source_tokens)}")
    console.print(completeness(maps))
    if maps.origin_in_words:
        console.print(f"{maps.origin_in_words}, through all layers; what no token owns is left out")
    if "outside_scopes" in about:
        console.print(f"outside every scope: {about['outside_scopes']}")
    if maps.heads:
        console.print("head-level maps: keep them with --out maps.safetensors (or .csv, .json)")
    if len(maps.scopes) == 1:
        _show_scope(console, maps)
    else:
        _show_similarity(console, maps)
        _show_amplification(console, maps)


def layers_in_words(maps: Maps) -> str:
    """``layers 0–2``; see `normlens.layers`."""
    return layers.layers_in_words(maps.layers)


def completeness(maps: Maps) -> str:
    if not any(scope.endswith("-N") for scope in maps.scopes):
        return "completeness: not measured, because attention weights have no parts"
    cost = cost_in_words(str(maps.provenance.get("dtype")))
    return (
        f"completeness: {maps.completeness:.1e}{cost} (worst relative error of parts + bias "
        f"against the model's own vectors; tolerance {maps.provenance['tolerance']:.0e})"
    )


def _show_similarity(console: Console, maps: Maps) -> None:
    steps = consecutive(maps.scopes)
    if not steps:
        return
    heads = [
        "ATTN-W → ATTN-N" if step.before == "ATTN-W" else f"→ {step.component}" for step in steps
    ]
    title = "Similarity of each scope to the one before (Spearman's ρ)"
    table = new_table("layer", *heads)
    columns = [maps.similarity(step.before, step.after) for step in steps]
    for index, layer in enumerate(maps.layers):
        add_row(table, str(layer), *(_rho(column[index]) for column in columns))
    print_table(console, title, table)


def _rho(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _show_amplification(console: Console, maps: Maps) -> None:
    for before, after in maps.feed_forward_pairs():
        layers = maps.layers_of(before, after)
        title = f"Pairs that the feed-forward block amplifies most ({before} → {after})"
        table = new_table("layer", "source → target, FF-amp", left=2)
        amplified = maps.choose(layers, [before, after])
        values = amplified.amplification(before, after)
        _add_pairs(table, amplified, values, PRINTED_PAIRS, "+.3f")
        print_table(console, title, table)


def _show_scope(console: Console, maps: Maps) -> None:
    """The one chosen scope: its map where it fits, else its largest pairs."""
    scope = maps.scopes[0]
    if max(len(maps.targets), len(maps.sources)) > PRINTED_TOKENS:
        title = f"Largest values of {scope} between two tokens"
        table = new_table("layer", "source → target, value", left=2)
        _add_pairs(table, maps.choose(scopes=scope), maps[scope], 2 * PRINTED_PAIRS, ".3g")
        print_table(console, title, table)
        return
    for layer in maps.layers_of(scope):
        title = f"{scope}, layer {layer} (rows are targets, columns sources)"
        table = new_table("", *maps.source_tokens)
        for target, row in zip(maps.tokens, maps.at(scope, layer), strict=True):
            add_row(table, target, *(f"{value:.3g}" for value in row))
        print_table(console, title, table)


def _add_pairs(table: Table, maps: Maps, values: NDArray[Any], count: int, form: str) -> None:
    """A row per layer with the pairs of the largest values, (layer, i, j)."""
    from normlens.analysis import strongest_pairs

    for index, layer in enumerate(maps.layers):
        pairs, _ = strongest_pairs(values[index], maps.allowed[index], count, maps.is_same_token)
        words = [
            f"{maps.source_tokens[pair.source]} → {maps.tokens[pair.target]} {pair.value:{form}}"
            for pair in pairs
        ]
        add_row(table, str(layer), "   ".join(words) or "–")

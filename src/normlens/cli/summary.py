"""Maps in words: what ``normlens map`` prints without --out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from normlens import layers
from normlens.cli.printing import add_row, console_for, new_table, print_table
from normlens.scopes import consecutive, feed_forward_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from normlens.maps import Maps

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
    console.print(completeness(maps))
    if maps.origin_in_words:
        console.print(f"{maps.origin_in_words}, through all layers; what no token owns is left out")
    if "outside_scopes" in about:
        console.print(f"outside every scope: {about['outside_scopes']}")
    if maps.heads:
        console.print("head-level maps: keep them with --out maps.safetensors (or .csv, .json)")
    if len(maps.scopes) == 1:
        _show_scope(console, maps, shown)
    else:
        _show_similarity(console, maps)
        _show_amplification(console, maps, shown)


def layers_in_words(maps: Maps) -> str:
    """``layers 0–2``; see `normlens.layers`."""
    return layers.layers_in_words(maps.layers)


def completeness(maps: Maps) -> str:
    if not any(scope.endswith("-N") for scope in maps.scopes):
        return "completeness: not measured, because attention weights have no parts"
    return (
        f"completeness: {maps.completeness:.1e} (worst relative error of parts + bias against the "
        f"model's own vectors; tolerance {maps.provenance['tolerance']:.0e})"
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


def _show_amplification(console: Console, maps: Maps, shown: list[str]) -> None:
    pair = feed_forward_pair(maps.scopes)
    # A block beside the attention reads its own token alone and amplifies no pair.
    if pair is None or "∥" in maps.provenance["components"]:
        return
    before, after = pair
    title = f"Pairs that the feed-forward block amplifies most ({before} → {after})"
    table = new_table("layer", "source → target, FF-amp", left=2)
    _add_pairs(table, maps, shown, maps.amplification(before, after), PRINTED_PAIRS, "+.3f")
    print_table(console, title, table)


def _show_scope(console: Console, maps: Maps, shown: list[str]) -> None:
    """The one chosen scope: its map where it fits, else its largest pairs."""
    scope = maps.scopes[0]
    if len(shown) > PRINTED_TOKENS:
        title = f"Largest values of {scope} between two tokens"
        table = new_table("layer", "source → target, value", left=2)
        _add_pairs(table, maps, shown, maps[scope], 2 * PRINTED_PAIRS, ".3g")
        print_table(console, title, table)
        return
    for index, layer in enumerate(maps.layers):
        title = f"{scope}, layer {layer} (rows are targets, columns sources)"
        table = new_table("", *shown)
        for target, row in zip(shown, maps[scope][index], strict=True):
            add_row(table, target, *(f"{value:.3g}" for value in row))
        print_table(console, title, table)


def _add_pairs(
    table: Table, maps: Maps, shown: list[str], values: NDArray[Any], count: int, form: str
) -> None:
    """A row per layer with the pairs of the largest values, (layer, i, j)."""
    from normlens.analysis import strongest_pairs

    for index, layer in enumerate(maps.layers):
        pairs, _ = strongest_pairs(values[index], maps.allowed[index], count)
        words = [
            f"{shown[pair.source]} → {shown[pair.target]} {pair.value:{form}}" for pair in pairs
        ]
        add_row(table, str(layer), "   ".join(words) or "–")

"""Maps in words: what ``normlens map`` prints without --out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from normlens import layers
from normlens.cli.printing import add_row, console_for, new_table, print_table
from normlens.precisions import cost_in_words
from normlens.results.both_stacks import by_stack
from normlens.scopes import consecutive, holds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from normlens.results.maps import Maps

PRINTED_TOKENS = 16  # a map with more tokens is too wide for a table
PRINTED_PAIRS = 3


def show_maps(maps: Maps) -> None:
    """Print what the maps are of, and what they say in short."""
    console = console_for()
    about = maps.provenance
    if maps.stack:
        console.print(
            f"{about['model']} ({about['model_type']}), {about['dtype']} on {about['device']}"
        )
    else:
        console.print(
            f"{about['model']} ({about['model_type']}): {layers_in_words(maps)} of "
            f"{about['components']}, {about['dtype']} on {about['device']}"
        )
        console.print(f"{len(maps.tokens)} tokens: {' '.join(maps.tokens)}")
        if maps.source_axis is not None:
            console.print(f"{len(maps.sources)} sources: {' '.join(maps.source_tokens)}")
    if others := _source_alone(maps):
        console.print(f"source, {len(others)} tokens: {' '.join(others)}")
    for one in by_stack(maps) if maps.stack else []:
        console.print(
            f"{one.stack}: {layers_in_words(one)} of {one.provenance['components']}; "
            f"{_sequence(one)}, {len(one.tokens)} tokens: {' '.join(one.tokens)}"
        )
    console.print(completeness(maps))
    if maps.origin_in_words:
        console.print(f"{maps.origin_in_words}, through all layers; what no token owns is left out")
    if "outside_scopes" in about:
        console.print(f"outside every scope: {about['outside_scopes']}")
    if any(one.heads for one in by_stack(maps)):
        console.print("head-level maps: keep them with --out maps.safetensors (or .csv, .json)")
    if maps.routing is not None:
        console.print(f"{maps.routing!r}; --routing experts.csv writes it")
    for one in by_stack(maps):
        if len(one.scopes) == 1:
            _show_scope(console, one)
        else:
            _show_similarity(console, one)
            _show_amplification(console, one)


def sizes_in_words(maps: Maps) -> str:
    """How many tokens, which layers and how many scopes; of an encoder–decoder in each stack."""
    if not maps.stack:
        return f"{len(maps.tokens)} tokens, {layers_in_words(maps)}, {len(maps.scopes)} scopes"
    others = _source_alone(maps)
    return "; ".join(
        [f"source of {len(others)} tokens"] * bool(others)
        + [
            f"{_sequence(one)} of {len(one.tokens)} tokens, {one.stack} {layers_in_words(one)}, "
            f"{len(one.scopes)} scopes"
            for one in by_stack(maps)
        ]
    )


def _source_alone(maps: Maps) -> list[str]:
    """The source's tokens where only the decoder's columns have them."""
    if not maps.stack or maps.encoder is not None:
        return []
    tokens = zip(maps.source_tokens, maps.source_sequences, strict=False)
    return [token for token, sequence in tokens if sequence == "encoder"]


def _sequence(maps: Maps) -> str:
    """What a stack reads: the source, or the target, and who wrote it."""
    if maps.source_axis is None:
        return "source"
    return f"target ({maps.provenance['target']})" if "target" in maps.provenance else "target"


def layers_in_words(maps: Maps) -> str:
    """``layers 0–2``; see `normlens.layers`."""
    return layers.layers_in_words(maps.layers)


def _titled(maps: Maps, title: str) -> str:
    return f"{maps.stack.capitalize()}: {title[0].lower()}{title[1:]}" if maps.stack else title


def completeness(maps: Maps) -> str:
    if not any(scope.endswith("-N") for scope in maps.scopes):
        return "completeness: not measured, because attention weights have no parts"
    cost = cost_in_words(str(maps.provenance.get("dtype")))
    compared = maps.provenance.get("compared_with_float32")
    return (
        f"completeness: {maps.completeness:.1e}{cost} (worst relative error of parts + bias "
        f"against the model's own vectors; tolerance {maps.provenance['tolerance']:.0e}"
        f"{f'; {compared}' if compared else ''})"
    )


def _show_similarity(console: Console, maps: Maps) -> None:
    steps = consecutive(maps.scopes)
    if not steps:
        return
    from_weights = {"ATTN-W": "ATTN-W → ATTN-N", "CROSS-W": "CROSS-W → CROSS-N"}
    heads = [from_weights.get(step.before, f"→ {step.component}") for step in steps]
    title = "Similarity of each scope to the one before (Spearman's ρ)"
    table = new_table("layer", *heads)
    columns = [maps.similarity(step.before, step.after) for step in steps]
    for index, layer in enumerate(maps.layers):
        add_row(table, str(layer), *(_rho(column[index]) for column in columns))
    print_table(console, _titled(maps, title), table)


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
        print_table(console, _titled(maps, title), table)


def _show_scope(console: Console, maps: Maps) -> None:
    """The one chosen scope: its map where it fits, else its largest pairs."""
    scope = maps.scopes[0]
    shown = _with_parts(maps, scope)
    if max(len(shown.targets), len(shown.sources)) > PRINTED_TOKENS:
        title = f"Largest values of {scope} between two tokens"
        table = new_table("layer", "source → target, value", left=2)
        _add_pairs(table, shown.choose(scopes=scope), shown[scope], 2 * PRINTED_PAIRS, ".3g")
        print_table(console, _titled(maps, title), table)
        return
    whose = dict.fromkeys(shown.source_sequences) if maps.stack else {}
    sources = f": {', then '.join(f'the {name}' for name in whose)}" if whose else ""
    stack = f"{maps.stack.capitalize()}: " if maps.stack else ""
    for layer in shown.layers_of(scope):
        title = f"{stack}{scope}, layer {layer} (rows are targets, columns sources{sources})"
        table = new_table("", *shown.source_tokens)
        for target, row in zip(shown.tokens, shown.at(scope, layer), strict=True):
            add_row(table, target, *(f"{value:.3g}" for value in row))
        print_table(console, title, table)


def _with_parts(maps: Maps, scope: str) -> Maps:
    """The maps with the columns of those sequences that a scope has parts of."""
    if not maps.stack or len(set(maps.source_sequences)) < 2:
        return maps
    own, other = holds(scope)
    return maps if own and other else maps.sources_of("decoder" if own else "encoder")


def _add_pairs(table: Table, maps: Maps, values: NDArray[Any], count: int, form: str) -> None:
    """A row per layer with the pairs of the largest values, (layer, i, j)."""
    from normlens.analysis import strongest_pairs

    sources = maps.source_tokens
    if maps.stack and maps.source_sequences:
        labels = zip(sources, maps.source_sequences, strict=True)
        sources = [f"{token} ({sequence})" for token, sequence in labels]
    for index, layer in enumerate(maps.layers):
        pairs, _ = strongest_pairs(values[index], maps.allowed[index], count, maps.is_same_token)
        words = [
            f"{sources[pair.source]} → {maps.tokens[pair.target]} {pair.value:{form}}"
            for pair in pairs
        ]
        add_row(table, str(layer), "   ".join(words) or "–")

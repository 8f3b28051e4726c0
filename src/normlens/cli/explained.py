"""Explanations on a terminal: tokens on colours, numbers, and the strongest components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from normlens.cli.printing import add_row, console_for, new_table, print_table
from normlens.precisions import cost_in_words
from normlens.results.contribution_rows import explained_rows
from normlens.results.explanation_words import (
    PREFIX,
    RES,
    decimals,
    percent,
    place_words,
    score_words,
    share_words,
    signed_number,
    total_words,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from normlens.results.explanation import Explanation
    from normlens.results.explanations import Explanations

_COMPONENTS = 8  # in the list of the strongest
_SOURCES = 3  # beside each next token
_BAR = 24  # characters
#: Red and blue that people with colour-blindness tell apart; both on white.
_POSITIVE, _NEGATIVE, _PALE = (178, 24, 43), (33, 102, 172), (247, 247, 247)


def show_explanation(why: Explanation) -> None:
    """Print one explanation."""
    console = console_for()
    _print_heading(console, why)
    console.print(Text(score_words(why)))
    console.print(Text(f"{place_words(why)}; {total_words(why)}"))
    if why.has_two_sequences:
        _print_target(console, why)
        console.print(Text(share_words(why)))
    console.print(completeness_words(why.completeness, why.provenance))
    if why.provenance.get("note"):
        console.print(Text(str(why.provenance["note"])))
    if console.is_terminal:
        largest = float(abs(why.contributions).max())
        for part in why.sequences:
            if part.name:
                console.print(Text(part.name, style="bold"))
            console.print(token_strip(part.tokens, part.contributions, largest))
    _print_contributions(console, why)
    _print_components(console, why)


def show_explanations(several: Explanations) -> None:
    """Print the explanation of each next token, a row for each."""
    console = console_for()
    first = several[0]
    two = several.has_two_sequences
    count = len(several) if two else len(several.tokens)
    about = f"{'token of a target' if two else 'next token'} of {count}"
    console.print(f"{first.provenance['model']}: why each {about}")
    if two:
        _print_target(console, first)
    console.print(completeness_words(several.completeness, first.provenance))
    places = decimals(max(abs(each.value) for each in several))
    table = new_table("position", "next token", "score", "probability", "no token", "from", left=2)
    table.columns[-1].justify = "left"
    for each in several:
        parts = [
            (f"{token} ({part.name})" if part.name == PREFIX else token, float(c))
            for part in each.sequences
            for token, c in zip(part.tokens, part.contributions, strict=True)
        ]
        strongest = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))
        sources = "   ".join(
            f"{token} {signed_number(value, places)}" for token, value in strongest[:_SOURCES]
        )
        add_row(
            table,
            str(each.position),
            str(each.target),
            signed_number(each.value, places),
            "–" if each.probability is None else percent(each.probability),
            signed_number(each.remainder, places),
            sources,
        )
    print_table(console, "Each next token, and the tokens that contribute most to its score", table)
    if two:
        _print_shares(console, several)


def _print_target(console: Console, why: Explanation) -> None:
    """Say what the decoder read, and where it came from."""
    text = why.text[1] if isinstance(why.text, tuple) else None
    words = "" if text is None else f": {text}"
    console.print(Text(f"target ({why.provenance.get('target')}){words}"))


def _print_shares(console: Console, several: Explanations) -> None:
    """What the source and the prefix supply of each token's score."""
    shares = [each.shares for each in several]
    places = decimals(max(abs(part) for s in shares for part in (s.source, s.prefix, s.bias)))
    columns = ("position", "token", "source", "prefix", "no token", "source's share", "of Σ|c|")
    table = new_table(*columns, "", left=2)
    table.columns[-1].justify = "left"
    for each, share in zip(several, shares, strict=True):
        parts = [signed_number(part, places) for part in (share.source, share.prefix, share.bias)]
        known = share.source_share == share.source_share  # NaN where both sequences give nothing
        filled = round(_BAR * share.source_share) if known else 0
        add_row(
            table,
            str(each.position),
            str(each.target),
            *parts,
            percent(share.source_share),
            percent(share.source_share_absolute),
            "█" * filled + ("░" * (_BAR - filled) if known else ""),
        )
    print_table(console, "What the source (█) and the prefix (░) supply of each score", table)


def completeness_words(
    completeness: float, provenance: dict[str, Any], what: str = "the model's own score"
) -> str:
    """How exactly parts and biases make what the model itself says."""
    tolerance = provenance.get("tolerance")
    behind = "" if tolerance is None else f"; tolerance {tolerance:.0e}"
    cost = cost_in_words(str(provenance.get("dtype")))
    return (
        f"completeness: {completeness:.1e}{cost} (worst relative error of parts + biases "
        f"against {what}{behind})"
    )


def _print_heading(console: Console, why: Explanation) -> None:
    about = why.provenance
    console.print(Text(f"{about.get('model')} ({why.task}): {why.question}", style="bold"))


def token_strip(
    tokens: Sequence[str], values: NDArray[np.floating], largest: float | None = None
) -> Text:
    """A text's tokens, each on the colour of its number; the strongest colour is for `largest`."""
    largest = (float(abs(values).max()) if largest is None else largest) or 1.0
    strip = Text()
    for token, value in zip(tokens, values, strict=True):
        strip.append(token, style=_style(float(value) / largest))
        strip.append(" ")
    return strip


def _style(share: float) -> str:
    """Text on the colour of a number between −1 and 1."""
    end = _POSITIVE if share > 0 else _NEGATIVE
    red, green, blue = (
        round(pale + (full - pale) * min(abs(share), 1.0))
        for pale, full in zip(_PALE, end, strict=True)
    )
    ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 128 else "black"
    return f"{ink} on rgb({red},{green},{blue})"


def _print_contributions(console: Console, why: Explanation) -> None:
    rows = explained_rows(why)
    largest = max(abs(row.value) for row in rows) or 1.0
    places = decimals(largest)
    table = new_table("token", "contribution", "")
    table.columns[-1].justify = "left"
    for row in rows:
        if row.is_heading:
            table.add_row(Text(row.label, style="bold"), "", "")
            continue
        bar = ("█" if row.value > 0 else "▒") * round(_BAR * abs(row.value) / largest)
        colour = "rgb({},{},{})".format(*(_POSITIVE if row.value > 0 else _NEGATIVE))
        table.add_row(
            Text(row.label), Text(signed_number(row.value, places)), Text(bar, style=colour)
        )
    add_row(table, "sum", signed_number(why.value, places), "")
    print_table(console, "What each token contributes (█ adds, ▒ takes away)", table)


def _print_components(console: Console, why: Explanation) -> None:
    """The strongest blocks over all positions, attentions by head."""
    import numpy as np

    sums = np.nansum(why.components, axis=-1)  # (layer, component)
    by_head = {"ATTN": why.heads}
    if why.cross_heads is not None:
        by_head["CROSS"] = why.cross_heads
    named = [
        (layer, name, float(sums[layer, place]))
        for layer in range(len(sums))
        for place, name in enumerate(why.component_names)
        if name not in by_head and name != RES
    ]
    named += [
        (layer, f"{name} head {head}", float(value))
        for name, heads in by_head.items()
        for layer, row in enumerate(np.nan_to_num(heads).sum(-1, dtype=np.float64))
        for head, value in enumerate(row)
    ]
    strongest = sorted(named, key=lambda part: -abs(part[2]))[:_COMPONENTS]
    places = decimals(max((abs(value) for *_, value in strongest), default=1.0))
    table = new_table("layer", "component", "passes", left=2)
    for layer, name, value in strongest:
        add_row(table, why.layer_names[layer], name, signed_number(value, places))
    print_table(
        console, "Strongest components: what of the score passes them first in a layer", table
    )

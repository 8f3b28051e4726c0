"""Explanations on a terminal: tokens on colours, numbers, and the strongest components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from normlens.cli.printing import add_row, console_for, new_table, print_table
from normlens.results.contribution_rows import rows_of
from normlens.results.explanation_words import (
    decimals,
    percent,
    place_words,
    score_words,
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
    console.print(completeness_words(why.completeness, why.provenance))
    if why.provenance.get("note"):
        console.print(Text(str(why.provenance["note"])))
    if console.is_terminal:
        console.print(token_strip(why.tokens, why.contributions))
    _print_contributions(console, why)
    _print_components(console, why)


def show_explanations(several: Explanations) -> None:
    """Print the explanation of each next token, a row for each."""
    console = console_for()
    first = several[0]
    console.print(f"{first.provenance['model']}: why each next token of {len(several.tokens)}")
    console.print(completeness_words(several.completeness, first.provenance))
    places = decimals(max(abs(each.value) for each in several))
    table = new_table("position", "next token", "score", "probability", "no token", "from", left=2)
    table.columns[-1].justify = "left"
    for each in several:
        parts = [
            (token, float(c)) for token, c in zip(each.tokens, each.contributions, strict=True)
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


def completeness_words(
    completeness: float, provenance: dict[str, Any], what: str = "the model's own score"
) -> str:
    """How exactly parts and biases make what the model itself says."""
    tolerance = provenance.get("tolerance")
    behind = "" if tolerance is None else f"; tolerance {tolerance:.0e}"
    return (
        f"completeness: {completeness:.1e} (worst relative error of parts + biases against {what}"
        f"{behind})"
    )


def _print_heading(console: Console, why: Explanation) -> None:
    about = why.provenance
    console.print(Text(f"{about.get('model')} ({why.task}): {why.question}", style="bold"))


def token_strip(tokens: Sequence[str], values: NDArray[np.floating]) -> Text:
    """A text's tokens, each on the colour of its number."""
    largest = float(abs(values).max()) or 1.0
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
    rows = rows_of(why.tokens, why.contributions, why.remainder)
    largest = max(abs(row.value) for row in rows) or 1.0
    places = decimals(largest)
    table = new_table("token", "contribution", "")
    table.columns[-1].justify = "left"
    for row in rows:
        bar = ("█" if row.value > 0 else "▒") * round(_BAR * abs(row.value) / largest)
        colour = "rgb({},{},{})".format(*(_POSITIVE if row.value > 0 else _NEGATIVE))
        table.add_row(
            Text(row.label), Text(signed_number(row.value, places)), Text(bar, style=colour)
        )
    add_row(table, "sum", signed_number(why.value, places), "")
    print_table(console, "What each token contributes (█ adds, ▒ takes away)", table)


def _print_components(console: Console, why: Explanation) -> None:
    """The strongest components over all positions, heads apart."""
    import numpy as np

    sums = np.nansum(why.components, axis=-1)  # (layer, component)
    heads = why.heads.sum(-1, dtype=np.float64)  # (layer, head)
    named = [
        (layer, name, float(sums[layer, place]))
        for layer in range(len(sums))
        for place, name in enumerate(why.component_names)
        if name != "ATTN"
    ]
    named += [
        (layer, f"ATTN head {head}", float(value))
        for layer, row in enumerate(heads)
        for head, value in enumerate(row)
    ]
    strongest = sorted(named, key=lambda part: -abs(part[2]))[:_COMPONENTS]
    places = decimals(max((abs(value) for *_, value in strongest), default=1.0))
    table = new_table("layer", "component", "adds", left=2)
    for layer, name, value in strongest:
        add_row(table, str(layer), name, signed_number(value, places))
    print_table(console, "Strongest components, over all positions (they overlap)", table)

"""The rows of a list of contributions: tokens, others together, and what no token owns.

Tokens of two sequences stand below a heading each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from normlens.results.explanation import Explanation

#: Tokens that have a row each; of a longer text the strongest have, and the others share one.
LONGEST = 24
NO_TOKEN_WORDS = "no token (biases)"


@dataclass(frozen=True)
class Row:
    """One row; `token` is its place, None for the others together and for no token."""

    label: str
    value: float
    token: int | None = None
    of_no_token: bool = False
    is_heading: bool = False  # the name of the sequence below it; its value, 0, is not shown


def explained_rows(why: Explanation, longest: int = LONGEST) -> list[Row]:
    """The rows of an explanation."""
    if not why.has_two_sequences:
        # Every patch has a name of its own.
        numbered = why.grid is None
        return rows_of(why.tokens, why.contributions, why.remainder, longest, numbered)
    rows: list[Row] = []
    for part in why.sequences:
        *own, _ = rows_of(part.tokens, part.contributions, 0.0, longest)
        rows.append(Row(part.name, 0.0, is_heading=True))
        rows += [
            row if row.token is None else replace(row, token=row.token + part.first) for row in own
        ]
    return [*rows, Row(NO_TOKEN_WORDS, why.remainder, of_no_token=True)]


def rows_of(
    tokens: Sequence[str],
    contributions: NDArray[np.floating],
    remainder: float,
    longest: int = LONGEST,
    numbered: bool = True,
) -> list[Row]:
    """Rows whose sum is the score: tokens in the order of the text, others, no token."""
    values = [float(value) for value in contributions]
    places = list(range(len(tokens)))
    labels = list(tokens)
    others: list[Row] = []
    if len(places) > longest:
        strongest = sorted(places, key=lambda place: -abs(values[place]))[: longest - 4]
        rest = [values[place] for place in places if place not in set(strongest)]
        places = sorted(strongest)
        if numbered:
            # Their neighbours are missing, so a place tells which of two equal tokens it is.
            labels = [f"{place}: {label}" for place, label in enumerate(labels)]
        others = [Row(f"{len(rest)} other tokens", sum(rest))]
    chosen = [Row(labels[place], values[place], place) for place in places]
    return [*chosen, *others, Row(NO_TOKEN_WORDS, remainder, of_no_token=True)]

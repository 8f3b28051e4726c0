"""Results as rows and words: contributions, explanations, cosines, both stacks, CSV."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from normlens.errors import InputError, check_choice, require
from normlens.scopes import resolve

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from normlens.results.explanation import Cosine, Explanation
    from normlens.results.maps import Maps


# The two stacks of an encoder–decoder's maps: one by one, or cut down alike.


#: The stacks of an encoder–decoder, in the order in which the model runs them.
STACKS = ENCODER, DECODER = ("encoder", "decoder")
#: Whose tokens the columns of a decoder's maps are: the targets', or those of the encoder.
OWN_SEQUENCE, OTHER_SEQUENCE = DECODER, ENCODER


def by_stack(maps: Maps, stack: str | None = None) -> list[Maps]:
    """The maps of each stack, the encoder's first; `stack` ("encoder", "decoder") takes one."""
    both = [maps] if maps.encoder is None else [maps.encoder, maps.decoder]
    if stack is None:
        return both
    check_choice(stack, STACKS, "stack")
    found = [one for one in both if one.stack == stack]
    if not found:
        what = f"the {maps.stack}'s alone" if maps.stack else "of a model with one stack"
        raise InputError(f"these maps are {what}; there is no {stack} to choose")
    return found


def choose_in_stacks(
    maps: Maps,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    stack: str | None = None,
) -> Maps:
    """Some of the layers and scopes of each stack that has them, as `Lens.maps` would give them.

    Layers count from 0 in each stack, and a short name means a scope of each. A stack that has none
    of them is left out.
    """
    both = by_stack(maps, stack)
    if len(both) == 1:
        return both[0].choose(layers, scopes)
    wanted: list[int] | None = None
    if layers is not None:
        wanted = list(layers) if isinstance(layers, Iterable) else [layers]
        lacking = [layer for layer in wanted if not any(_has_layer(one, layer) for one in both)]
        if lacking or not wanted:
            max(both, key=lambda one: len(one.layers)).wanted_layers(lacking)  # raises for them
    names: list[str] | None = None
    if scopes is not None and scopes != "all":
        names = [scopes] if isinstance(scopes, str) else list(scopes)
        require(names, "no scope is chosen; leave `scopes` out to take all")
        for name in names:
            if not any(name in one for one in both):
                resolve(name, [*both[0].scopes, *both[1].scopes])  # raises, and lists them all
    chosen = []
    for one in both:
        of_layers = None if wanted is None else [k for k in wanted if _has_layer(one, k)]
        of_scopes = None if names is None else [name for name in names if name in one]
        if of_layers != [] and of_scopes != []:
            chosen.append(one.choose(of_layers, of_scopes))
    if not chosen:
        raise InputError(
            "no stack has both the chosen layers and the chosen scopes; the encoder has "
            f"{', '.join(both[0].scopes)}, the decoder {', '.join(both[1].scopes)}"
        )
    return replace(chosen[-1], encoder=chosen[0] if len(chosen) == 2 else None)


def _has_layer(maps: Maps, layer: int) -> bool:
    return layer in maps.layers or layer in range(-len(maps.layers), 0)


def map_rows(maps: Maps, *groups: str) -> pd.DataFrame:
    """One row per stack, scope, layer, target and source of all maps ("arrays").

    With the group "heads", those of single heads as well, and a column `head`.
    """
    import pandas as pd  # which is slow to import, as NumPy is

    from normlens.measures.ranks import widened
    from normlens.results.axes import long_table

    frames = []
    for one in by_stack(maps):
        stack, sequences = {"stack": [one.stack]}, {"source_sequence": one.table_sequences}
        if not one.stack:
            stack, sequences = {}, {}
        targets = {"target": range(len(one.targets)), "target_token": one.tokens}
        sources = {
            "source": range(len(one.sources)),
            **sequences,
            "source_token": one.source_tokens,
        }
        for group in groups:
            for scope, array in one.groups[group].items():
                by_head = array.swapaxes(0, 1) if group == "heads" else array[None]
                numbers = range(len(by_head)) if group == "heads" else [None]
                head = {"head": pd.array(numbers, dtype="Int64")} if "heads" in groups else {}
                layers = {"layer": one.covered(group, scope)}
                axes = {**stack, "scope": [scope]}, head, layers, targets, sources
                frames.append(long_table(widened(by_head[None]), *axes))
    return pd.concat(frames, ignore_index=True)


# The rows of a list of contributions: tokens, others together, and what no token owns.
#
# Tokens of two sequences stand below a heading each.


#: Where contributions are read (`Explanation.read`): at the vectors that enter the first layer, or
#: at the input of every layer, on average.
READINGS = EMBEDDINGS, LAYERS = ("embeddings", "layers")
#: What pictures say of a reading that is not at the embeddings.
READING_WORDS = {LAYERS: "mean over the inputs of all layers, by position"}
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


def explained_rows(
    why: Explanation, longest: int = LONGEST, reading: str = EMBEDDINGS
) -> list[Row]:
    """The rows of an explanation, whose sum is the score."""
    rows: list[Row] = []
    for part in why.parts(reading):
        rows += [Row(part.name, 0.0, is_heading=True)] if part.name else []
        # Every patch has a name of its own.
        numbered = why.grid is None
        rows += token_rows(part.tokens, part.contributions, part.first, longest, numbered)
    return [*rows, no_token_row(why.remainder_of(reading))]


def no_token_row(remainder: float) -> Row:
    """The row of what no token owns."""
    return Row(NO_TOKEN_WORDS, remainder, of_no_token=True)


def token_rows(
    tokens: Sequence[str],
    contributions: NDArray[np.floating],
    first: int = 0,
    longest: int = LONGEST,
    numbered: bool = True,
) -> list[Row]:
    """Tokens in the order of the text, from place `first` on, and the others of a long one."""
    labels, values, places = list(tokens), contributions.tolist(), range(len(tokens))
    if len(tokens) <= longest:
        return [Row(labels[place], values[place], first + place) for place in places]
    strongest = sorted(places, key=lambda place: -abs(values[place]))[: longest - 4]
    rest = [values[place] for place in places if place not in set(strongest)]
    if numbered:
        # Their neighbours are missing, so a place tells which of two equal tokens it is.
        labels = [f"{place}: {label}" for place, label in enumerate(labels)]
    rows = [Row(labels[place], values[place], first + place) for place in sorted(strongest)]
    return [*rows, Row(f"{len(rest)} other tokens", sum(rest))]


# An explanation in words: its score, its probabilities, and what its parts sum to.


#: The sequences of an encoder–decoder's explanation.
SOURCE, PREFIX = "source", "prefix"
#: The component of what passes a layer by its residual connections, and no block.
RES = "RES"


def decimals(largest: float) -> int:
    """How many decimals show three digits of the largest of some numbers."""
    if not 0 < abs(largest) < math.inf:
        return 2
    return min(max(2 - math.floor(math.log10(abs(largest))), 0), 9)


def signed_number(value: float, places: int) -> str:
    """A number with its sign, or a zero without one; NaN is a dash."""
    if math.isnan(value):
        return "–"
    text = f"{value:+.{places}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def score_words(why: Explanation) -> str:
    """The score that is explained, and where the model has them its probabilities."""
    places = decimals(why.value)
    value = signed_number(why.value, places)
    if why.target is None:
        return f"product with the direction: {value}"
    if why.target_value is None or why.contrast_value is None:
        words = f"score of {(cut(why.target) if why.answer_ids else why.target)!r}: {value}"
    else:
        scores = [signed_number(score, places) for score in (why.target_value, why.contrast_value)]
        words = f"{why.target!r} {scores[0]}, {why.contrast!r} {scores[1]}: difference {value}"
    if why.log_probability is not None:
        likely = signed_number(why.log_probability, 2)
        of_which = "logits · log-probability" if why.score == "logit" else "log-probability"
        return f"{words}, of its {of_which} {likely}"
    if why.probability is None:
        return words
    words += f" · probability of {why.target!r} {percent(why.probability)}"
    if why.contrast_probability is not None:
        words += f", of {why.contrast!r} {percent(why.contrast_probability)}"
    return words


def cut(text: str, longest: int = 60) -> str:
    """A text in one line, without the end of a long one."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def place_words(why: Explanation) -> str:
    """Where the score is read."""
    behind = "" if why.layer is None else f" behind layer {why.layer}"
    if why.position is None:
        return f"read from all tokens{behind}"
    if why.answer_ids is not None and len(why.answer_ids) > 1 and why.position is not None:
        first = why.position + 1 - len(why.answer_ids)
        return f"read at positions {first} to {why.position}"
    if why.has_two_sequences:
        return f"read at position {why.position} of the target ({why.tokens[why.read_at or 0]!r})"
    return f"read at position {why.position} ({why.tokens[why.position]!r}){behind}"


def total_words(why: Explanation, reading: str = EMBEDDINGS) -> str:
    """What the tokens and the biases sum to, and how exactly."""
    parts = [(part.name or "tokens", part.total) for part in why.parts(reading)]
    parts += [("no token (biases)", why.remainder_of(reading)), ("sum", why.value)]
    places = decimals(max(abs(value) for _, value in parts))
    return ", ".join(f"{name} {signed_number(value, places)}" for name, value in parts)


def share_words(why: Explanation) -> str:
    """How much of the score an encoder–decoder's source supplies, beside the prefix."""
    shares = why.shares
    return (
        f"the source supplies {percent(shares.source_share)} of what both sequences do "
        f"({percent(shares.source_share_absolute)} of their tokens' sizes)"
    )


def percent(share: float) -> str:
    """A share in percent with two digits: 12 %, 0.031 %; NaN, a share of nothing, is a dash."""
    if math.isnan(share):
        return "–"
    if share >= 0.0995:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.2g} %" if share >= 1e-6 else f"{share:.0e}"


# A cosine in words.


PLACES = 3  # decimals of a cosine's parts


def cosine_words(pair: Cosine) -> str:
    """The cosine itself, or another score of two texts."""
    return f"{getattr(pair, 'kind', 'cosine')} {signed_number(pair.value, PLACES)}"


def parts_words(pair: Cosine) -> str:
    """What pairs of tokens and biases have of it."""
    parts = [("pairs of tokens", float(pair.matrix.sum())), *pair.remainder.items()]
    parts = parts if getattr(pair, "has_pairs", True) else parts[1:]
    return ", ".join(f"{name} {signed_number(value, PLACES)}" for name, value in parts)


# CSV for spreadsheets: numbers stay numbers, and no text is taken for a formula.
#
# A spreadsheet runs a cell that begins with one of `= + - @`, and tokens may come from anyone.
# Such a text gets an apostrophe in front, which is how spreadsheets mark plain text.


#: What a formula begins with, for Python and for DuckDB; some programs skip a tab or a return.
_FORMULA = r"^[=+\-@\t\r]"
_MARK = "'"
#: DuckDB's types that are written as numbers.
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|BIGNUM|DECIMAL(\(.*\))?|FLOAT|DOUBLE")


def harmless(cell: Any) -> Any:
    """The cell, marked as plain text if it is a text that a spreadsheet would run."""
    return _MARK + cell if isinstance(cell, str) and re.match(_FORMULA, cell) else cell


def write_csv(frame: pd.DataFrame, target: str | IO[str]) -> None:
    """Write a table as CSV."""
    from pandas.api.types import is_numeric_dtype

    safe = frame.copy(deep=False)
    safe.columns = [harmless(name) for name in frame.columns]
    quoting = csv.QUOTE_MINIMAL
    for position, dtype in enumerate(frame.dtypes):
        if is_numeric_dtype(dtype):
            continue
        column = frame.iloc[:, position].astype(object)  # the values of a category
        safe.isetitem(position, column.map(harmless))
        if any(isinstance(cell, str) and "\r" in cell for cell in column):
            quoting = csv.QUOTE_NONNUMERIC  # pandas does not quote a return inside a cell by itself
    safe.to_csv(target, index=False, encoding="utf-8", quoting=quoting, lineterminator="\n")


def harmless_sql(query: str, columns: Iterable[tuple[str, str]]) -> str:
    """A query with the same answer, its texts made harmless; `columns` are names and types."""
    aliases, cells = [], []
    for position, (name, kind) in enumerate(columns):
        alias = cell = f"c{position}"  # two columns of an answer may have one name
        aliases.append(alias)
        if not _NUMBERS.fullmatch(kind):
            text = f"CAST({alias} AS VARCHAR)"
            # An expression of the row alone keeps the answer's order; IN (…) may become a join.
            formula = f"regexp_matches({text}, '{_FORMULA}')"
            cell = f"CASE WHEN {formula} THEN '{2 * _MARK}' || {text} ELSE {text} END"
        quoted = str(harmless(name)).replace('"', '""')
        cells.append(f'{cell} AS "{quoted}"')
    return f"SELECT {', '.join(cells)} FROM ({query}\n) AS answer({', '.join(aliases)})"

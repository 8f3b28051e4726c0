"""``normlens explain`` and ``normlens cosine``: which tokens made a prediction or a cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from normlens.cli import parameters
from normlens.cli.common import (
    Output,
    add_row,
    check_result_needs,
    check_text,
    console_for,
    layers_status,
    load_lens,
    new_table,
    print_table,
    read_inputs,
)
from normlens.cli.parameters import Fields, option, with_field_options
from normlens.errors import InputError
from normlens.options import CosineOptions, ExplainOptions, LoadOptions, cost_in_words
from normlens.results.words import (
    PLACES,
    PREFIX,
    RES,
    cosine_words,
    decimals,
    explained_rows,
    parts_words,
    percent,
    place_words,
    rows_of,
    score_words,
    share_words,
    signed_number,
    total_words,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from normlens.lens import Lens
    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation, Explanations


# Explanations on a terminal: tokens on colours, numbers, and the strongest components.


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


# ``normlens explain``: which tokens made the model say this.


#: The model that explains where none is named: an embedded one with a head.
DEFAULT = "smollm2"
_ALL = "all"


@with_field_options
def explain_command(
    *,
    sentence: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text that the model reads; - is standard input."),
    ] = None,
    text: parameters.Text = None,
    pair: parameters.Pair = None,
    file: parameters.File = None,
    lines: parameters.Lines = False,
    image: parameters.Image = None,
    model: Annotated[
        str,
        option(
            "NAME", "Hub name, local folder, or embedded model, with its head.", "--model", "-m"
        ),
    ] = DEFAULT,
    tokenizer: parameters.Tokenizer = None,
    target: Annotated[
        str | None,
        option(
            "WORD",
            "The next token, the token at the mask, or a classifier's label; begin it with a "
            "space where a word does. Default: what the model says.",
        ),
    ] = None,
    contrast: Annotated[
        str | None, option("WORD", "Why the target (or token) and not this.")
    ] = None,
    target_text: parameters.TargetText = None,
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "Encoder–decoders: which token of the target is explained: its place from 0, a "
            "word, or all, each in turn. Default: the last.",
        ),
    ] = None,
    position: Annotated[
        str | None,
        option(
            "N", "Where the score is read, from 0 (negative: from the end); all: each next token."
        ),
    ] = None,
    direction: Annotated[
        Path | None, option("FILE", "Instead of a target: a vector in a .npy, .json or .txt file.")
    ] = None,
    layer: Annotated[
        int | None, option("N", "The direction is read behind this layer, from 0.")
    ] = None,
    options: Annotated[ExplainOptions, Fields(without=("batch_size",))],
    words: parameters.Words = False,
    loading: LoadOptions,
    truncate: parameters.Truncate = False,
    out: parameters.Out = None,
    as_json: parameters.ResultJson = False,
    picture: Annotated[
        str | None,
        option("KIND", "In pictures: tokens, flow or components; of all tokens: matrix or shares."),
    ] = None,
    force: parameters.Force = False,
    quiet: parameters.Quiet = False,
) -> None:
    """Which tokens made the model say this: its score, traced back to every token, exactly. Without
    --out it prints the tokens with what each contributes, what no token owns, and the strongest
    components. A model that sees takes an --image; its tokens are patches.
    """
    check_result_needs(model, out, image)
    output = Output(out, as_json, force, quiet, lines)
    inputs = read_inputs([sentence, text], pair, file, image, lines=lines)
    where, named = _place(position, "--position"), _token(token)
    if picture is not None and output.file is None:
        raise InputError("only pictures follow --picture; add --out why.png")
    _check_picture(output, picture, _ALL in (where, named))

    from normlens.explain.questions import read_direction

    vector = None if direction is None else read_direction(direction)
    lens = load_lens(model, tokenizer, loading, quiet)
    _check_stacks(lens, target, target_text)
    for given in inputs:
        with given.named(), layers_status("explaining", quiet) as advance:
            result: Any = lens.explain(
                given.value,
                target=target_text if lens.two_stacks else target,
                contrast=contrast,
                token=named,
                position=where,
                direction=vector,
                layer=layer,
                truncate=truncate,
                progress=advance or False,
                **asdict(options),
            )
        output.deliver(
            result.words() if words else result, given.line, show=_show_explained, picture=picture
        )


def _show_explained(result: Explanation | Explanations) -> None:
    from normlens.results.explanation import Explanations

    if isinstance(result, Explanations):
        show_explanations(result)
    else:
        show_explanation(result)


def _place(typed: str | None, option: str) -> int | str | None:
    """A place as it was typed: a number, or "all"."""
    if typed is None or typed.strip().lower() == _ALL:
        return None if typed is None else _ALL
    try:
        return int(typed)
    except ValueError:
        raise InputError(f"{option} is a number or {_ALL!r}, not {typed!r}") from None


def _token(typed: str | None) -> int | str | None:
    """A token as it was typed: a place, a word, or "all"."""
    try:
        return _place(typed, "--token")
    except InputError:
        return typed


def _check_stacks(lens: Lens, target: str | None, target_text: str | None) -> None:
    """Raise for a word where an encoder–decoder's text is meant, and the other way round."""
    if lens.two_stacks and target is not None:
        raise InputError(
            f"{lens.name} is an encoder–decoder: give the decoder's text as --target-text and say "
            "which of its tokens is explained with --token"
        )
    if not lens.two_stacks and target_text is not None:
        raise InputError(
            f"--target-text is for encoder–decoders; {lens.name} reads one text: say which word is "
            "explained with --target"
        )


def _check_picture(output: Output, picture: str | None, several: bool) -> None:
    from normlens.results.exports import PICTURE_KINDS, SEVERAL_KINDS, check_picture

    output.check(() if picture is None else ("picture",))
    check_picture(picture)
    if several and picture in PICTURE_KINDS:
        raise InputError(
            f"--picture {picture} is for one position; each next token is drawn as a matrix"
        )
    if not several and picture in SEVERAL_KINDS:
        raise InputError(f"--picture {picture} is for all tokens; add --token all")


# ``normlens cosine``: which tokens made the cosine of two texts.


_PAIRS = 10  # in the list of the strongest


@with_field_options
def cosine_command(
    *,
    a: Annotated[str, typer.Argument(metavar="A", help="The first text.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The second text; - reads standard input.")
    ] = None,
    file: parameters.File = None,
    lines: parameters.Lines = False,
    model: parameters.Model = None,
    tokenizer: parameters.Tokenizer = None,
    options: Annotated[CosineOptions, Fields(without=("batch_size",))],
    words: parameters.Words = False,
    loading: LoadOptions,
    truncate: parameters.Truncate = False,
    out: parameters.Out = None,
    as_json: parameters.ResultJson = False,
    force: parameters.Force = False,
    quiet: parameters.Quiet = False,
) -> None:
    """Which tokens made the cosine of two texts' vectors. Without --out it prints what each token
    has of it, the strongest pairs, and what no pair of tokens owns. With --lines the first text is
    compared with each line of the file, or of standard input.
    """
    check_result_needs(model, out)
    output = Output(out, as_json, force, quiet, lines)
    check_text(a)
    inputs = read_inputs([b], None, file, lines=lines)
    output.check()

    lens = load_lens(model, tokenizer, loading, quiet)
    for given in inputs:
        with given.named(), layers_status("comparing", quiet) as advance:
            pair = lens.cosine(
                a, str(given.value), truncate=truncate, progress=advance or False, **asdict(options)
            )
        output.deliver(pair.words() if words else pair, given.line, show=_show)


def _show(pair: Cosine) -> None:
    console = console_for()
    model = pair.provenance.get("model")
    console.print(Text(f"{model}: {cosine_words(pair)}", style="bold"))
    console.print(Text(parts_words(pair)))
    console.print(completeness_words(pair.completeness, pair.provenance, "the model's own cosine"))
    if pair.note:
        console.print(Text(pair.note))
    margins = pair.margins
    texts = (("A", pair.tokens_a, margins.a), ("B", pair.tokens_b, margins.b))
    if console.is_terminal:
        for name, tokens, own in texts:
            console.print(Text(f"{name} ").append_text(token_strip(tokens, own)))
    for name, tokens, own in texts:
        table = new_table("token", "part")
        for row in rows_of(tokens, own, pair.value - float(own.sum())):
            add_row(table, row.label, signed_number(row.value, PLACES))
        add_row(table, "sum", signed_number(pair.value, PLACES))
        title = f"What each token of {name} has of the cosine, with all of the other text"
        print_table(console, title, table)
    table = new_table("A", "B", "part", left=2)
    for a, b, value in pair.top(_PAIRS)[["a_token", "b_token", "value"]].itertuples(index=False):
        add_row(table, str(a), str(b), signed_number(value, PLACES))
    print_table(console, "Strongest pairs of tokens", table)

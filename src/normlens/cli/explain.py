"""``normlens explain`` and ``normlens cosine``: which tokens made a prediction or a cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from normlens.cli import common
from normlens.cli.common import console_for, print_table, say
from normlens.cli.map import completeness_words
from normlens.cli.parameters import Fields
from normlens.errors import InputError, valid_choice
from normlens.options import CosineOptions, ExplainOptions, LoadOptions
from normlens.results import words as in_words
from normlens.results.words import PLACES, decimals, percent, signed_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from normlens.lens import Lens
    from normlens.results.explanation import Cosine, Explanation, Explanations


# Explanations on a terminal: tokens on colours, numbers, and the strongest components.


_COMPONENTS = 8  # in the list of the strongest
_SOURCES = 3  # beside each next token
_BAR = 24  # characters
#: Red and blue that people with colour-blindness tell apart; both on white.
_POSITIVE, _NEGATIVE, _PALE = (178, 24, 43), (33, 102, 172), (247, 247, 247)
_OWN_SCORE = "biases against the model's own score"


def show_explanation(why: Explanation) -> None:
    """Print one explanation."""
    say(f"{why.provenance.get('model')} ({why.task}): {why.question}", style="bold")
    say(in_words.score_words(why), f"{in_words.place_words(why)}; {in_words.total_words(why)}")
    if why.has_two_sequences:
        say(_target_words(why), in_words.share_words(why))
    say(completeness_words(why.completeness, why.provenance, _OWN_SCORE))
    if why.provenance.get("note"):
        say(str(why.provenance["note"]))
    console, largest = console_for(), float(abs(why.contributions).max())
    for part in why.sequences if console.is_terminal else ():
        if part.name:
            say(part.name, style="bold")
        console.print(token_strip(part.tokens, part.contributions, largest))
    _print_contributions(why)
    _print_components(why)


def show_explanations(several: Explanations) -> None:
    """Print the explanation of each next token, a row for each."""
    first, two = several[0], several.has_two_sequences
    count = len(several) if two else len(several.tokens)
    about = f"{'token of a target' if two else 'next token'} of {count}"
    say(f"{first.provenance['model']}: why each {about}")
    if two:
        say(_target_words(first))
    say(completeness_words(several.completeness, first.provenance, _OWN_SCORE))
    places = decimals(max(abs(each.value) for each in several))
    rows = []
    for each in several:
        parts = [
            (f"{token} ({part.name})" if part.name == in_words.PREFIX else token, float(c))
            for part in each.sequences
            for token, c in zip(part.tokens, part.contributions, strict=True)
        ]
        strongest = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))
        rows.append(
            [
                str(each.position),
                str(each.target),
                signed_number(each.value, places),
                "–" if each.probability is None else percent(each.probability),
                signed_number(each.remainder, places),
                "   ".join(f"{t} {signed_number(c, places)}" for t, c in strongest[:_SOURCES]),
            ]
        )
    title = "Each next token, and the tokens that contribute most to its score"
    columns = ("position", "next token", "score", "probability", "no token", "from")
    print_table(title, columns, rows, left=(0, 1, -1))
    if two:
        _print_shares(several)


def _target_words(why: Explanation) -> str:
    """What the decoder read, and where it came from."""
    text = f": {why.text[1]}" if isinstance(why.text, tuple) and why.text[1] is not None else ""
    return f"target ({why.provenance.get('target')}){text}"


def _print_shares(several: Explanations) -> None:
    """What the source and the prefix supply of each token's score."""
    shares = [each.shares for each in several]
    places = decimals(max(abs(part) for s in shares for part in (s.source, s.prefix, s.bias)))
    rows = []
    for each, share in zip(several, shares, strict=True):
        parts = [signed_number(part, places) for part in (share.source, share.prefix, share.bias)]
        bar = ""
        if share.source_share == share.source_share:  # NaN where both sequences give nothing
            bar = ("█" * round(_BAR * share.source_share)).ljust(_BAR, "░")
        percents = percent(share.source_share), percent(share.source_share_absolute)
        rows.append([str(each.position), str(each.target), *parts, *percents, bar])
    title = "What the source (█) and the prefix (░) supply of each score"
    columns = ("position", "token", "source", "prefix", "no token", "source's share", "of Σ|c|")
    print_table(title, (*columns, ""), rows, left=(0, 1, -1))


def token_strip(
    tokens: Sequence[str], values: NDArray[np.floating], largest: float | None = None
) -> Text:
    """A text's tokens, each on the colour of its number; the strongest colour is for `largest`."""
    largest = (float(abs(values).max()) if largest is None else largest) or 1.0
    strip = Text()
    for token, value in zip(tokens, values, strict=True):
        share, end = abs(float(value)) / largest, _POSITIVE if value > 0 else _NEGATIVE
        red, green, blue = (
            round(pale + (full - pale) * min(share, 1.0))
            for pale, full in zip(_PALE, end, strict=True)
        )
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 128 else "black"
        strip.append(token, style=f"{ink} on rgb({red},{green},{blue})").append(" ")
    return strip


def _print_contributions(why: Explanation) -> None:
    rows = in_words.explained_rows(why)
    largest = max(abs(row.value) for row in rows) or 1.0
    places = decimals(largest)
    cells: list[list[str | Text]] = []
    for row in rows:
        if row.is_heading:
            cells.append([Text(row.label, style="bold"), "", ""])
            continue
        bar = ("█" if row.value > 0 else "▒") * round(_BAR * abs(row.value) / largest)
        colour = "rgb({},{},{})".format(*(_POSITIVE if row.value > 0 else _NEGATIVE))
        cells.append([row.label, signed_number(row.value, places), Text(bar, style=colour)])
    cells.append(["sum", signed_number(why.value, places), ""])
    title = "What each token contributes (█ adds, ▒ takes away)"
    print_table(title, ("token", "contribution", ""), cells, left=(0, -1))


def _print_components(why: Explanation) -> None:
    """The strongest blocks over all positions, attentions by head."""
    import numpy as np

    by_head = {"ATTN": why.heads, "CROSS": why.cross_heads}
    named = [
        (layer, name, float(value))
        for layer, row in enumerate(np.nansum(why.components, axis=-1))  # (layer, component)
        for name, value in zip(why.component_names, row, strict=True)
        if by_head.get(name) is None and name != in_words.RES
    ]
    named += [
        (layer, f"{name} head {head}", float(value))
        for name, heads in by_head.items()
        if heads is not None
        for layer, row in enumerate(np.nan_to_num(heads).sum(-1, dtype=np.float64))
        for head, value in enumerate(row)
    ]
    strongest = sorted(named, key=lambda part: -abs(part[2]))[:_COMPONENTS]
    places = decimals(max((abs(value) for *_, value in strongest), default=1.0))
    print_table(
        "Strongest components: what of the score passes them first in a layer",
        ("layer", "component", "passes"),
        ([why.layer_names[k], name, signed_number(value, places)] for k, name, value in strongest),
        left=(0, 1),
    )


# ``normlens explain``: which tokens made the model say this.


#: The model that explains where none is named: an embedded one with a head.
DEFAULT = "smollm2"
_ALL = "all"


def explain_command(
    sentence: str | None = None,
    *,
    inputs: Annotated[common.Inputs, Fields(without=("target_text",))],
    model: str = DEFAULT,
    tokenizer: str | None = None,
    target: str | None = None,
    contrast: str | None = None,
    decoder: Annotated[common.Inputs, Fields(only=("target_text",))],
    token: str | None = None,
    position: str | None = None,
    direction: Path | None = None,
    layer: int | None = None,
    options: Annotated[ExplainOptions, Fields(without=("batch_size",))],
    words: bool = False,
    loading: LoadOptions,
    truncate: bool = False,
    output: common.Output,
    picture: str | None = None,
) -> None:
    """Which tokens made the model say this: its score, traced back to every token, exactly. Without
    --out it prints the tokens with what each contributes, what no token owns, and the strongest
    components. A model that sees takes an --image; its tokens are patches.

    In the list: Which tokens made the model say this: printed here, or written to a file.

    Example: normlens explain "The keys to the cabinet" --target " are" --contrast " is"
    --out why.png

    Options:
        sentence TEXT: The text that the model reads; - is standard input.
        model NAME (--model, -m): Hub name, local folder, or embedded model, with its head.
        target WORD: The next token, the token at the mask, or a classifier's label; begin it with a
            space where a word does. Default: what the model says.
        contrast WORD: Why the target (or token) and not this.
        token TOKEN: Encoder–decoders: which token of the target is explained: its place from 0, a
            word, or all, each in turn. Default: the last.
        position N: Where the score is read, from 0 (negative: from the end); all: each next token.
        direction FILE: Instead of a target: a vector in a .npy, .json or .txt file.
        layer N: The direction is read behind this layer, from 0.
        picture KIND: In pictures: tokens, flow or components; of all tokens: matrix or shares.
    """
    common.check_result_needs(model, output.out, inputs.image)
    each_input = inputs.read(sentence)
    where, named = _place(position), _place(token, or_word=True)
    _check_picture(output, inputs.lines, picture, _ALL in (where, named))

    from normlens.explain.questions import read_direction
    from normlens.results.explanation import Explanations

    vector = None if direction is None else read_direction(direction)
    lens = common.load_lens(model, tokenizer, loading, output.quiet)
    _check_stacks(lens, target, decoder.target_text)
    for given in each_input:
        with given.named(), common.status("explaining", output.quiet) as advance:
            result: Any = lens.explain(
                given.value,
                target=decoder.target_text if lens.two_stacks else target,
                contrast=contrast,
                token=named,
                position=where,
                direction=vector,
                layer=layer,
                truncate=truncate,
                progress=advance or False,
                **asdict(options),
            )
        show = show_explanations if isinstance(result, Explanations) else show_explanation
        result = result.words() if words else result
        output.deliver(result, given.line, show=show, picture=picture)


def _place(typed: str | None, or_word: bool = False) -> int | str | None:
    """A place as it was typed: a number, "all", or for --token a word."""
    if typed is None or typed.strip().lower() == _ALL:
        return None if typed is None else _ALL
    try:
        return int(typed)
    except ValueError:
        if or_word:
            return typed
        raise InputError(f"--position is a number or {_ALL!r}, not {typed!r}") from None


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


def _check_picture(output: common.Output, lines: bool, picture: str | None, several: bool) -> None:
    from normlens.results.exports import PICTURE_KINDS, SEVERAL_KINDS

    if picture is not None and output.file is None:
        raise InputError("only pictures follow --picture; add --out why.png")
    output.check(lines, () if picture is None else ("picture",))
    if picture is not None:
        valid_choice(picture, PICTURE_KINDS + SEVERAL_KINDS, "picture")
    if several and picture in PICTURE_KINDS:
        raise InputError(
            f"--picture {picture} is for one position; each next token is drawn as a matrix"
        )
    if not several and picture in SEVERAL_KINDS:
        raise InputError(f"--picture {picture} is for all tokens; add --token all")


# ``normlens cosine``: which tokens made the cosine of two texts.


_PAIRS = 10  # in the list of the strongest


def cosine_command(
    a: str,
    b: str | None = None,
    *,
    inputs: Annotated[common.Inputs, Fields(only=("file", "lines"))],
    model: str | None = None,
    tokenizer: str | None = None,
    options: Annotated[CosineOptions, Fields(without=("batch_size",))],
    words: bool = False,
    loading: LoadOptions,
    truncate: bool = False,
    output: common.Output,
) -> None:
    """Which tokens made the cosine of two texts' vectors. Without --out it prints what each token
    has of it, the strongest pairs, and what no pair of tokens owns. With --lines the first text is
    compared with each line of the file, or of standard input.

    In the list: Which tokens made the cosine of two texts: printed here, or written to a file.

    Example: normlens cosine "A man is playing a flute." "Someone plays an instrument."

    Options:
        a A: The first text.
        b B: The second text; - reads standard input.
    """
    common.check_result_needs(model, output.out)
    common.check_text(a)
    each_input = inputs.read(b)
    output.check(inputs.lines)
    lens = common.load_lens(model, tokenizer, loading, output.quiet)
    for given in each_input:
        with given.named(), common.status("comparing", output.quiet) as advance:
            pair = lens.cosine(
                a, str(given.value), truncate=truncate, progress=advance or False, **asdict(options)
            )
        output.deliver(pair.words() if words else pair, given.line, show=show_cosine)


def show_cosine(pair: Cosine) -> None:
    """Print a cosine: each text's tokens with their parts of it, and the strongest pairs."""
    say(f"{pair.provenance.get('model')}: {in_words.cosine_words(pair)}", style="bold")
    against = "biases against the model's own cosine"
    say(in_words.parts_words(pair), completeness_words(pair.completeness, pair.provenance, against))
    if pair.note:
        say(pair.note)
    console, margins = console_for(), pair.margins
    texts = (("A", pair.tokens_a, margins.a), ("B", pair.tokens_b, margins.b))
    for name, tokens, own in texts if console.is_terminal else ():
        console.print(Text(f"{name} ").append_text(token_strip(tokens, own)))
    for name, tokens, own in texts:
        remainder = in_words.no_token_row(pair.value - float(own.sum()))
        rows = [*in_words.token_rows(tokens, own), remainder]
        cells = [[row.label, signed_number(row.value, PLACES)] for row in rows]
        title = f"What each token of {name} has of the cosine, with all of the other text"
        sum_row = ["sum", signed_number(pair.value, PLACES)]
        print_table(title, ("token", "part"), [*cells, sum_row])
    strongest = pair.top(_PAIRS)[["a_token", "b_token", "value"]].itertuples(index=False)
    pairs = ([str(a), str(b), signed_number(value, PLACES)] for a, b, value in strongest)
    print_table("Strongest pairs of tokens", ("A", "B", "part"), pairs, left=(0, 1))

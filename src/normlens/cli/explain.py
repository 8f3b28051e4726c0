"""``normlens explain``: which tokens made the model say this."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from normlens.cli.arguments import read_text
from normlens.cli.explained import show_explanation, show_explanations
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.options import (
    FileOption,
    ForceOption,
    OutOption,
    PairOption,
    QuietOption,
    TextOption,
    TokenizerOption,
    TruncateOption,
    WordsOption,
)
from normlens.cli.outputs import check_out, file_errors
from normlens.cli.printing import status
from normlens.errors import InputError
from normlens.explain_options import ExplainOptions
from normlens.options import LoadOptions

#: The model that explains where none is named: an embedded one with a head.
DEFAULT = "smollm2"
_ALL = "all"


@with_field_options
def explain_command(
    *,
    sentence: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text that the model reads.")
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    file: FileOption = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Hub name, local folder, or embedded model, with its head.",
        ),
    ] = DEFAULT,
    tokenizer: TokenizerOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="The next token, the token at the mask, or a classifier's label; begin it with a "
            "space where a word does. Default: what the model says.",
        ),
    ] = None,
    contrast: Annotated[
        str | None, typer.Option(metavar="WORD", help="Why the target and not this.")
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Where the score is read, from 0 (negative: from the end); all: each next token.",
        ),
    ] = None,
    direction: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead of a target: a vector in a .npy, .json or .txt file."
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", help="The direction is read behind this layer, from 0."),
    ] = None,
    options: Annotated[ExplainOptions, Fields(without=("batch_size",))],
    words: WordsOption = False,
    loading: LoadOptions,
    truncate: TruncateOption = False,
    out: OutOption = None,
    picture: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="In pictures: tokens, flow or components."),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Which tokens made the model say this: its score, traced back to every token, exactly. Without
    --out it prints the tokens with what each contributes, what no token owns, and the strongest
    components.
    """
    given = read_text([sentence, text], pair, file)
    where = _position(position)
    if out is not None:
        _check_out(out, picture, where, force)
    elif picture is not None:
        raise InputError("only pictures follow --picture; add --out why.png")
    vector = None
    if direction is not None:
        from normlens.direction_files import read_direction

        vector = read_direction(direction)

    from normlens.exports.explanation_export import write_explanation
    from normlens.loading import load
    from normlens.results.explanation import Explanation
    from normlens.results.explanations import Explanations

    with status(f"loading {model}", quiet):
        lens = load(model, tokenizer, **asdict(loading))
    with status("explaining", quiet):
        result = lens.explain(
            given,
            target=target,
            contrast=contrast,
            position=where,
            direction=vector,
            layer=layer,
            truncate=truncate,
            **asdict(options),
        )
    assert isinstance(result, Explanation | Explanations)
    result = result.words() if words else result
    if out is not None:
        with file_errors(out):
            write_explanation(result, out, overwrite=force, picture=picture)
        if not quiet:
            print(f"wrote {out}: {result!r}")
    elif isinstance(result, Explanations):
        show_explanations(result)
    else:
        show_explanation(result)


def _position(typed: str | None) -> int | str | None:
    """A position as it was typed: a number, or "all"."""
    if typed is None or typed.strip().lower() == _ALL:
        return None if typed is None else _ALL
    try:
        return int(typed)
    except ValueError:
        raise InputError(f"--position is a number or {_ALL!r}, not {typed!r}") from None


def _check_out(out: Path, picture: str | None, where: int | str | None, force: bool) -> None:
    from normlens.exports.explanation_export import check_picture

    check_out(out, force, () if picture is None else ("picture",))
    check_picture(picture)
    if picture is not None and where == _ALL:
        raise InputError("--picture is for one position; each next token is drawn as a matrix")

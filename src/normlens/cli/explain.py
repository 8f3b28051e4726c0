"""``normlens explain``: which tokens made the model say this."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.arguments import read_inputs
from normlens.cli.explained import show_explanation, show_explanations
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.needs import check_result_needs
from normlens.cli.options import (
    FileOption,
    ForceOption,
    ImageOption,
    LinesOption,
    OutOption,
    PairOption,
    QuietOption,
    ResultJsonOption,
    TargetTextOption,
    TextOption,
    TokenizerOption,
    TruncateOption,
    WordsOption,
)
from normlens.cli.outputs import check_out, file_errors, numbered, print_json, prints_json
from normlens.cli.printing import layers_status, status
from normlens.errors import InputError
from normlens.explain_options import ExplainOptions
from normlens.options import LoadOptions

if TYPE_CHECKING:
    from normlens.lens import Lens

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
    text: TextOption = None,
    pair: PairOption = None,
    file: FileOption = None,
    lines: LinesOption = False,
    image: ImageOption = None,
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
        str | None, typer.Option(metavar="WORD", help="Why the target (or token) and not this.")
    ] = None,
    target_text: TargetTextOption = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Encoder–decoders: which token of the target is explained: its place from 0, a "
            "word, or all, each in turn. Default: the last.",
        ),
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
    as_json: ResultJsonOption = False,
    picture: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="In pictures: tokens, flow or components; of all tokens: matrix or shares.",
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Which tokens made the model say this: its score, traced back to every token, exactly. Without
    --out it prints the tokens with what each contributes, what no token owns, and the strongest
    components. A model that sees takes an --image; its tokens are patches.
    """
    check_result_needs(model, out, image)
    printed = prints_json(out, as_json)
    inputs = read_inputs([sentence, text], pair, file, image, lines=lines)
    where, named = _place(position, "--position"), _token(token)
    if out is not None and not printed:
        _check_out(out, picture, _ALL in (where, named), force, lines)
    elif picture is not None:
        raise InputError("only pictures follow --picture; add --out why.png")
    vector = None
    if direction is not None:
        from normlens.direction_files import read_direction

        vector = read_direction(direction)

    from normlens.exports.explanation_export import to_document, write_explanation
    from normlens.loading import load
    from normlens.results.explanation import Explanation
    from normlens.results.explanations import Explanations

    with status(f"loading {model}", quiet):
        lens = load(model, tokenizer, **asdict(loading))
    _check_stacks(lens, target, target_text)
    for given in inputs:
        with given.named(), layers_status("explaining", quiet) as advance:
            result = lens.explain(
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
        assert isinstance(result, Explanation | Explanations)
        result = result.words() if words else result
        if printed:
            print_json(to_document(result))
        elif out is not None:
            path = numbered(out, given.line)
            with file_errors(path):
                write_explanation(result, path, overwrite=force, picture=picture)
            if not quiet:
                print(f"wrote {path}: {result!r}")
        elif isinstance(result, Explanations):
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


def _check_out(out: Path, picture: str | None, several: bool, force: bool, lines: bool) -> None:
    from normlens.exports.explanation_export import PICTURE_KINDS, SEVERAL_KINDS, check_picture

    check_out(out, force, () if picture is None else ("picture",), lines=lines)
    check_picture(picture)
    if several and picture in PICTURE_KINDS:
        raise InputError(
            f"--picture {picture} is for one position; each next token is drawn as a matrix"
        )
    if not several and picture in SEVERAL_KINDS:
        raise InputError(f"--picture {picture} is for all tokens; add --token all")

"""``normlens map``: attribution maps of a text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.arguments import read_text
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.options import (
    FileOption,
    ForceOption,
    ModelOption,
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
from normlens.cli.summary import completeness, layers_in_words, show_maps
from normlens.errors import InputError, valid_choice
from normlens.options import AnalysisOptions, LoadOptions

if TYPE_CHECKING:
    from normlens.results.maps import Maps


@with_field_options
def map_command(
    *,
    sentence: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text to analyse.")
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    file: FileOption = None,
    model: ModelOption = None,
    tokenizer: TokenizerOption = None,
    analysis: Annotated[AnalysisOptions, Fields(without=("batch_size",))],
    words: WordsOption = False,
    no_special_tokens: Annotated[
        bool,
        typer.Option("--no-special-tokens", help="Leave out \\[CLS], \\[SEP], <s>, …"),
    ] = False,
    loading: LoadOptions,
    truncate: TruncateOption = False,
    out: OutOption = None,
    normalise: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="In pictures, sums to 1: source, target or none."),
    ] = None,
    colour: Annotated[
        str | None, typer.Option(metavar="SCALE", help="In pictures: sqrt or linear.")
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Of a mixture of experts: write which experts each token used, with weights.",
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Attribution maps of a text: written to a file, or summed up here. Without --out it prints
    how similar each scope is to the one before and which pairs the feed-forward block amplifies
    most; with one --scope, the map itself.
    """
    given = read_text([sentence, text], pair, file)
    drawing = _drawing(normalise, colour)
    if out is not None:
        check_out(out, force, drawing)
    elif drawing:
        raise InputError(f"only pictures follow --{' and --'.join(drawing)}; add --out maps.png")

    if routing is not None:
        _check_routing(routing, force)

    from normlens.loading import load

    with status(f"loading {model or DEFAULT}", quiet):
        lens = load(model, tokenizer, **asdict(loading))
    with status("computing maps", quiet):
        encoded = lens.encode(given, truncate=truncate)
        (maps,) = lens.analyse(encoded, analysis)
    if routing is not None:
        _write_routing(maps, routing, force, quiet)
    maps = maps.words() if words else maps
    maps = maps.without_special_tokens() if no_special_tokens else maps
    if out is None:
        show_maps(maps)
    else:
        _write_maps(maps, out, force, quiet, drawing)


def _drawing(normalise: str | None, colour: str | None) -> dict[str, Any]:
    """What was said about pictures, judged before a model is loaded."""
    from normlens.analysis.amplification import AXES
    from normlens.figures import COLOUR_SCALES

    given = {"normalise": normalise, "colour": colour}
    choices = {"normalise": AXES, "colour": tuple(COLOUR_SCALES)}
    return {
        name: valid_choice(value, choices[name], f"--{name}")
        for name, value in given.items()
        if value is not None
    }


def _check_routing(path: Path, force: bool) -> None:
    """Judge the file of a routing before a model is loaded."""
    from normlens.exports import map_export as export
    from normlens.results import store

    export.check_routing(path)
    store.check_output(path, overwrite=force)


def _write_routing(maps: Maps, path: Path, force: bool, quiet: bool) -> None:
    from normlens.exports import map_export as export

    with file_errors(path):
        export.write_routing(maps, path, overwrite=force)
    if not quiet:
        print(f"wrote {path}: {maps.routing!r}")


def _write_maps(maps: Maps, out: Path, force: bool, quiet: bool, drawing: dict[str, Any]) -> None:
    from normlens.exports import map_export as export

    with file_errors(out):
        export.write(maps, out, overwrite=force, **drawing)
    if not quiet:
        print(
            f"wrote {out}: {len(maps.tokens)} tokens, {layers_in_words(maps)}, "
            f"{len(maps.scopes)} scopes; {completeness(maps)}"
        )

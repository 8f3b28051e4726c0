"""``normlens map``: attribution maps of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.arguments import Given, check_text, read_inputs
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.needs import check_result_needs
from normlens.cli.options import (
    FileOption,
    ForceOption,
    ImageOption,
    LinesOption,
    ModelOption,
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
from normlens.cli.summary import completeness, show_maps, sizes_in_words
from normlens.errors import InputError, valid_choice
from normlens.options import AnalysisOptions, LoadOptions
from normlens.origins import LAYER
from normlens.results.both_stacks import STACKS, by_stack

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.pairs import Item
    from normlens.results.maps import Maps

#: Flags whose name differs from that of the option of a picture.
_FLAGS = {"diagonal": "--no-diagonal", "heads_of": "--heads-of"}


@with_field_options
def map_command(
    *,
    sentence: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text to analyse; - reads standard input."),
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    target_text: TargetTextOption = None,
    file: FileOption = None,
    lines: LinesOption = False,
    image: ImageOption = None,
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
    as_json: ResultJsonOption = False,
    normalise: Annotated[
        str | None,
        typer.Option(metavar="AXIS", help="In pictures, sums to 1: source, target or none."),
    ] = None,
    colour: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE",
            help="In pictures: clipped (a square root that outliers and i = j do not stretch; "
            "default), sqrt or linear.",
        ),
    ] = None,
    no_diagonal: Annotated[
        bool, typer.Option("--no-diagonal", help="In pictures: leave out the pairs i = j.")
    ] = False,
    heads_of: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPE",
            help="In pictures: the single heads of ATTN-N or ATTN-W; adds --heads.",
        ),
    ] = None,
    sources: Annotated[
        str | None,
        typer.Option(
            metavar="SEQUENCE",
            help="In pictures of a decoder: sources of the encoder or of the decoder alone.",
        ),
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="In pictures of an image: what this token receives from each patch, such as "
            "\\[CLS] or 3,4 (row and column from 1). Default: the first token.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="In pictures of an image: what each patch receives from this token.",
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="STACK", help="Encoder–decoders: the maps of the encoder or decoder alone."
        ),
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
    most; with one --scope, the map itself. An encoder–decoder takes a source and --target-text, a
    model that sees an --image.
    """
    check_result_needs(model, out, image)
    printed = prints_json(out, as_json)
    inputs = read_inputs([sentence, text], pair, file, image, lines=lines)
    if target_text is not None:
        check_text(target_text, "target")
    if stack is not None:
        valid_choice(stack, STACKS, "--stack")
    if lines and (target_text is not None or routing is not None):
        raise InputError("--lines is for texts alone; leave --target-text and --routing out")
    drawing = _drawing(normalise, colour, sources)
    named = {"row": row, "column": column, "heads_of": heads_of}
    drawing |= {name: value for name, value in named.items() if value is not None}
    if no_diagonal:
        drawing["diagonal"] = False
    if out is not None and not printed:
        check_out(out, force, drawing, lines=lines)
    elif drawing:
        flags = [_FLAGS.get(name, f"--{name}") for name in drawing]
        raise InputError(f"only pictures follow {' and '.join(flags)}; add --out maps.png")
    if heads_of is not None:
        analysis = replace(analysis, heads=True)

    if routing is not None:
        _check_routing(routing, force)

    from normlens.exports.map_export import to_document
    from normlens.loading import load

    with status(f"loading {model or DEFAULT}", quiet):
        lens = load(model, tokenizer, **asdict(loading))
    _check_stacks(lens, pair, {"target-text": target_text, "stack": stack, "sources": sources})
    streams = not printed and _is_streamed(out, analysis, words, no_special_tokens, stack)
    for given in inputs:
        with given.named(), layers_status("computing maps", quiet) as advance:
            encoded = _encoded(lens, given, target_text, truncate)
            streamed = numbered(out, given.line) if out is not None and streams else None
            (maps,) = lens.analyse(
                encoded, analysis, out=streamed, overwrite=force, progress=advance
            )
        maps = maps if stack is None else by_stack(maps, stack)[0]
        if routing is not None:
            _write_routing(maps, routing, force, quiet or printed)
        maps = maps.words() if words else maps
        maps = maps.without_special_tokens() if no_special_tokens else maps
        if printed:
            print_json(to_document(maps))
        elif out is None:
            show_maps(maps)
        else:
            place = numbered(out, given.line)
            if streamed is None:
                _write_maps(maps, place, force, drawing)
            if not quiet:
                print(f"wrote {place}: {sizes_in_words(maps)}; {completeness(maps)}")


def _is_streamed(
    out: Path | None,
    analysis: AnalysisOptions,
    words: bool,
    no_special_tokens: bool,
    stack: str | None,
) -> bool:
    """Whether maps go to their file as they are, layer by layer."""
    changed = words or no_special_tokens or stack is not None
    is_maps_file = out is not None and out.suffix.lower() == ".safetensors"
    return is_maps_file and not changed and analysis.origin == LAYER


def _encoded(lens: Lens, given: Given, target: str | None, truncate: bool) -> Sequence[Item]:
    """The input as the lens reads it."""
    if not lens.two_stacks:
        return lens.encode(given.value, truncate=truncate)
    if not isinstance(given.value, str):
        raise InputError(f"{lens.name} reads texts; --image is for models that see")
    return lens.encode_pairs(given.value, target, truncate=truncate)


def _check_stacks(lens: Lens, pair: str | None, of_two: dict[str, str | None]) -> None:
    """Raise for options of encoder–decoders where there is one stack, and the other way round."""
    if lens.two_stacks and pair is not None:
        raise InputError(
            f"--pair is for models that read two texts as one; {lens.name} is an encoder–decoder: "
            "give the decoder's text as --target-text"
        )
    for name, value in of_two.items():
        if not lens.two_stacks and value is not None:
            raise InputError(f"--{name} is for encoder–decoders; {lens.name} reads one text")


def _drawing(normalise: str | None, colour: str | None, sources: str | None) -> dict[str, Any]:
    """What was said about pictures, judged before a model is loaded."""
    from normlens.analysis.amplification import AXES
    from normlens.figures import COLOUR_SCALES

    given = {"normalise": normalise, "colour": colour, "sources": sources}
    choices = {"normalise": AXES, "colour": tuple(COLOUR_SCALES), "sources": STACKS}
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


def _write_maps(maps: Maps, out: Path, force: bool, drawing: dict[str, Any]) -> None:
    from normlens.exports import map_export as export

    with file_errors(out):
        export.write(maps, out, overwrite=force, **drawing)

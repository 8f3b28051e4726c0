"""``normlens map`` and ``normlens view``: attribution maps of a text."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from normlens import scopes
from normlens.cli import parameters
from normlens.cli.common import (
    Given,
    Output,
    add_row,
    check_result_needs,
    check_text,
    console_for,
    file_errors,
    layers_status,
    load_lens,
    new_table,
    print_table,
    read_inputs,
)
from normlens.cli.parameters import Fields, option, with_field_options
from normlens.errors import InputError, valid_choice
from normlens.options import LAYER, AnalysisOptions, LoadOptions, cost_in_words
from normlens.results.words import STACKS, by_stack
from normlens.scopes import consecutive, holds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from normlens.inputs.text import Item
    from normlens.lens import Lens
    from normlens.results.maps import Maps


# Maps in words: what ``normlens map`` prints without --out.


PRINTED_TOKENS = 16  # a map with more tokens is too wide for a table
PRINTED_PAIRS = 3


def show_maps(maps: Maps) -> None:
    """Print what the maps are of, and what they say in short."""
    console = console_for()
    about = maps.provenance
    if maps.stack:
        console.print(
            f"{about['model']} ({about['model_type']}), {about['dtype']} on {about['device']}"
        )
    else:
        console.print(
            f"{about['model']} ({about['model_type']}): {layers_in_words(maps)} of "
            f"{about['components']}, {about['dtype']} on {about['device']}"
        )
        console.print(f"{len(maps.tokens)} tokens: {' '.join(maps.tokens)}")
        if maps.source_axis is not None:
            console.print(f"{len(maps.sources)} sources: {' '.join(maps.source_tokens)}")
    if others := _source_alone(maps):
        console.print(f"source, {len(others)} tokens: {' '.join(others)}")
    for one in by_stack(maps) if maps.stack else []:
        console.print(
            f"{one.stack}: {layers_in_words(one)} of {one.provenance['components']}; "
            f"{_sequence(one)}, {len(one.tokens)} tokens: {' '.join(one.tokens)}"
        )
    console.print(completeness(maps))
    if maps.origin_in_words:
        console.print(f"{maps.origin_in_words}, through all layers; what no token owns is left out")
    if "outside_scopes" in about:
        console.print(f"outside every scope: {about['outside_scopes']}")
    if any(one.heads for one in by_stack(maps)):
        console.print("head-level maps: keep them with --out maps.safetensors (or .csv, .json)")
    if maps.routing is not None:
        console.print(f"{maps.routing!r}; --routing experts.csv writes it")
    for one in by_stack(maps):
        if len(one.scopes) == 1:
            _show_scope(console, one)
        else:
            _show_similarity(console, one)
            _show_amplification(console, one)


def sizes_in_words(maps: Maps) -> str:
    """How many tokens, which layers and how many scopes; of an encoder–decoder in each stack."""
    if not maps.stack:
        return f"{len(maps.tokens)} tokens, {layers_in_words(maps)}, {len(maps.scopes)} scopes"
    others = _source_alone(maps)
    return "; ".join(
        [f"source of {len(others)} tokens"] * bool(others)
        + [
            f"{_sequence(one)} of {len(one.tokens)} tokens, {one.stack} {layers_in_words(one)}, "
            f"{len(one.scopes)} scopes"
            for one in by_stack(maps)
        ]
    )


def _source_alone(maps: Maps) -> list[str]:
    """The source's tokens where only the decoder's columns have them."""
    if not maps.stack or maps.encoder is not None:
        return []
    tokens = zip(maps.source_tokens, maps.source_sequences, strict=False)
    return [token for token, sequence in tokens if sequence == "encoder"]


def _sequence(maps: Maps) -> str:
    """What a stack reads: the source, or the target, and who wrote it."""
    if maps.source_axis is None:
        return "source"
    return f"target ({maps.provenance['target']})" if "target" in maps.provenance else "target"


def layers_in_words(maps: Maps) -> str:
    """``layers 0–2``; see `normlens.scopes`."""
    return scopes.layers_in_words(maps.layers)


def _titled(maps: Maps, title: str) -> str:
    return f"{maps.stack.capitalize()}: {title[0].lower()}{title[1:]}" if maps.stack else title


def completeness(maps: Maps) -> str:
    if not any(scope.endswith("-N") for scope in maps.scopes):
        return "completeness: not measured, because attention weights have no parts"
    cost = cost_in_words(str(maps.provenance.get("dtype")))
    compared = maps.provenance.get("compared_with_float32")
    return (
        f"completeness: {maps.completeness:.1e}{cost} (worst relative error of parts + bias "
        f"against the model's own vectors; tolerance {maps.provenance['tolerance']:.0e}"
        f"{f'; {compared}' if compared else ''})"
    )


def _show_similarity(console: Console, maps: Maps) -> None:
    steps = consecutive(maps.scopes)
    if not steps:
        return
    from_weights = {"ATTN-W": "ATTN-W → ATTN-N", "CROSS-W": "CROSS-W → CROSS-N"}
    heads = [from_weights.get(step.before, f"→ {step.component}") for step in steps]
    title = "Similarity of each scope to the one before (Spearman's ρ)"
    table = new_table("layer", *heads)
    columns = [maps.similarity(step.before, step.after) for step in steps]
    for index, layer in enumerate(maps.layers):
        add_row(table, str(layer), *(_rho(column[index]) for column in columns))
    print_table(console, _titled(maps, title), table)


def _rho(value: float) -> str:
    return "–" if value != value else f"{value:.2f}"


def _show_amplification(console: Console, maps: Maps) -> None:
    for before, after in maps.feed_forward_pairs():
        layers = maps.layers_of(before, after)
        title = f"Pairs that the feed-forward block amplifies most ({before} → {after})"
        table = new_table("layer", "source → target, FF-amp", left=2)
        amplified = maps.choose(layers, [before, after])
        values = amplified.amplification(before, after)
        _add_pairs(table, amplified, values, PRINTED_PAIRS, "+.3f")
        print_table(console, _titled(maps, title), table)


def _show_scope(console: Console, maps: Maps) -> None:
    """The one chosen scope: its map where it fits, else its largest pairs."""
    scope = maps.scopes[0]
    shown = _with_parts(maps, scope)
    if max(len(shown.targets), len(shown.sources)) > PRINTED_TOKENS:
        title = f"Largest values of {scope} between two tokens"
        table = new_table("layer", "source → target, value", left=2)
        _add_pairs(table, shown.choose(scopes=scope), shown[scope], 2 * PRINTED_PAIRS, ".3g")
        print_table(console, _titled(maps, title), table)
        return
    whose = dict.fromkeys(shown.source_sequences) if maps.stack else {}
    sources = f": {', then '.join(f'the {name}' for name in whose)}" if whose else ""
    stack = f"{maps.stack.capitalize()}: " if maps.stack else ""
    for layer in shown.layers_of(scope):
        title = f"{stack}{scope}, layer {layer} (rows are targets, columns sources{sources})"
        table = new_table("", *shown.source_tokens)
        for target, row in zip(shown.tokens, shown.at(scope, layer), strict=True):
            add_row(table, target, *(f"{value:.3g}" for value in row))
        print_table(console, title, table)


def _with_parts(maps: Maps, scope: str) -> Maps:
    """The maps with the columns of those sequences that a scope has parts of."""
    if not maps.stack or len(set(maps.source_sequences)) < 2:
        return maps
    own, other = holds(scope)
    return maps if own and other else maps.sources_of("decoder" if own else "encoder")


def _add_pairs(table: Table, maps: Maps, values: NDArray[Any], count: int, form: str) -> None:
    """A row per layer with the pairs of the largest values, (layer, i, j)."""
    from normlens.measures import strongest_pairs

    sources = maps.source_tokens
    if maps.stack and maps.source_sequences:
        labels = zip(sources, maps.source_sequences, strict=True)
        sources = [f"{token} ({sequence})" for token, sequence in labels]
    for index, layer in enumerate(maps.layers):
        pairs, _ = strongest_pairs(values[index], maps.allowed[index], count, maps.is_same_token)
        words = [
            f"{sources[pair.source]} → {maps.tokens[pair.target]} {pair.value:{form}}"
            for pair in pairs
        ]
        add_row(table, str(layer), "   ".join(words) or "–")


# ``normlens map``: attribution maps of a text.


#: Flags whose name differs from that of the option of a picture.
_FLAGS = {"diagonal": "--no-diagonal", "heads_of": "--heads-of"}


@with_field_options
def map_command(
    *,
    sentence: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The text to analyse; - reads standard input."),
    ] = None,
    text: parameters.Text = None,
    pair: parameters.Pair = None,
    target_text: parameters.TargetText = None,
    file: parameters.File = None,
    lines: parameters.Lines = False,
    image: parameters.Image = None,
    model: parameters.Model = None,
    tokenizer: parameters.Tokenizer = None,
    analysis: Annotated[AnalysisOptions, Fields(without=("batch_size",))],
    words: parameters.Words = False,
    no_special_tokens: Annotated[
        bool, typer.Option("--no-special-tokens", help="Leave out \\[CLS], \\[SEP], <s>, …")
    ] = False,
    loading: LoadOptions,
    truncate: parameters.Truncate = False,
    out: parameters.Out = None,
    as_json: parameters.ResultJson = False,
    normalise: Annotated[
        str | None, option("AXIS", "In pictures, sums to 1: source, target or none.")
    ] = None,
    colour: Annotated[
        str | None,
        option(
            "SCALE",
            "In pictures: clipped (a square root that outliers and i = j do not stretch; "
            "default), sqrt or linear.",
        ),
    ] = None,
    no_diagonal: Annotated[
        bool, typer.Option("--no-diagonal", help="In pictures: leave out the pairs i = j.")
    ] = False,
    heads_of: Annotated[
        str | None,
        option("SCOPE", "In pictures: the single heads of ATTN-N or ATTN-W; adds --heads."),
    ] = None,
    sources: Annotated[
        str | None,
        option(
            "SEQUENCE", "In pictures of a decoder: sources of the encoder or of the decoder alone."
        ),
    ] = None,
    row: Annotated[
        str | None,
        option(
            "TOKEN",
            "In pictures of an image: what this token receives from each patch, such as "
            "\\[CLS] or 3,4 (row and column from 1). Default: the first token.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        option("TOKEN", "In pictures of an image: what each patch receives from this token."),
    ] = None,
    stack: Annotated[
        str | None, option("STACK", "Encoder–decoders: the maps of the encoder or decoder alone.")
    ] = None,
    routing: Annotated[
        Path | None,
        option(
            "FILE.csv",
            "Of a mixture of experts: write which experts each token used, with weights.",
        ),
    ] = None,
    force: parameters.Force = False,
    quiet: parameters.Quiet = False,
) -> None:
    """Attribution maps of a text: written to a file, or summed up here. Without --out it prints
    how similar each scope is to the one before and which pairs the feed-forward block amplifies
    most; with one --scope, the map itself. An encoder–decoder takes a source and --target-text, a
    model that sees an --image.
    """
    check_result_needs(model, out, image)
    output = Output(out, as_json, force, quiet, lines)
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
    if drawing and output.file is None:
        flags = [_FLAGS.get(name, f"--{name}") for name in drawing]
        raise InputError(f"only pictures follow {' and '.join(flags)}; add --out maps.png")
    output.check(drawing)
    if heads_of is not None:
        analysis = replace(analysis, heads=True)

    from normlens.results import exports as export

    if routing is not None:
        _check_routing(routing, force)
    lens = load_lens(model, tokenizer, loading, quiet)
    _check_stacks(lens, pair, {"target-text": target_text, "stack": stack, "sources": sources})
    changed = words or no_special_tokens or stack is not None or analysis.origin != LAYER
    # Maps that stay as they are go to their file layer by layer.
    place = output.file
    streams = place is not None and place.suffix.lower() == ".safetensors" and not changed
    for given in inputs:
        with given.named(), layers_status("computing maps", quiet) as advance:
            (maps,) = lens.analyse(
                _encoded(lens, given, target_text, truncate),
                analysis,
                out=output.file_of(given.line) if streams else None,
                overwrite=force,
                progress=advance,
            )
        maps = maps if stack is None else by_stack(maps, stack)[0]
        if routing is not None:
            with file_errors(routing):
                export.write_routing(maps, routing, overwrite=force)
            if not (quiet or output.printed):
                print(f"wrote {routing}: {maps.routing!r}")
        maps = maps.words() if words else maps
        maps = maps.without_special_tokens() if no_special_tokens else maps
        output.deliver(
            maps,
            given.line,
            show=show_maps,
            written=streams,
            words=lambda maps: f"{sizes_in_words(maps)}; {completeness(maps)}",
            **drawing,
        )


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
    from normlens.figures import COLOUR_SCALES
    from normlens.measures.maps import AXES

    given = {"normalise": normalise, "colour": colour, "sources": sources}
    choices = {"normalise": AXES, "colour": tuple(COLOUR_SCALES), "sources": STACKS}
    return {
        name: valid_choice(value, choices[name], f"--{name}")
        for name, value in given.items()
        if value is not None
    }


def _check_routing(path: Path, force: bool) -> None:
    """Judge the file of a routing before a model is loaded."""
    from normlens.results import exports as export
    from normlens.results import store

    export.check_routing(path)
    store.check_output(path, overwrite=force)


# ``normlens view``: maps files in the browser.


def view_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Maps files (.safetensors), one or more.")
    ],
    out: Annotated[
        Path | None, option("FILE", "Write this .html and open no browser.", "--out", "-o")
    ] = None,
    precision: Annotated[
        int | None, option("BITS", "32, 16 or 8. Default: 32 for small maps, else 16.")
    ] = None,
    largest: Annotated[
        float, option("MB", "Layers are left out of a larger file; 0 keeps them all.")
    ] = 60.0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Write the file and say where it is.")
    ] = False,
    force: parameters.Force = False,
    quiet: parameters.Quiet = False,
) -> None:
    """Maps files as one HTML page, which works from disk without network. Several files can be
    compared: two texts, or two models.
    """
    from normlens.results import store
    from normlens.results.maps import Maps
    from normlens.viewer import to_html

    if out is not None:
        if out.suffix.lower() not in (".html", ".htm"):
            raise InputError(f"{str(out)!r} is not the name of an HTML file; end it in .html")
        store.check_output(out, overwrite=force)
    maps = [Maps.load(file) for file in files]
    browse = out is None and not no_browser
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="normlens-")) / f"{files[0].stem}.html"
    path = to_html(maps, out, precision=precision, largest=largest or None, overwrite=force)
    size = path.stat().st_size / 1e6
    if not quiet:
        print(f"wrote {path} ({size:.1f} MB)")
    if browse:
        webbrowser.open(path.resolve().as_uri())

"""``normlens cosine``: which tokens made the cosine of two texts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.arguments import check_text, read_inputs
from normlens.cli.explained import completeness_words, token_strip
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.needs import check_result_needs
from normlens.cli.options import (
    FileOption,
    ForceOption,
    LinesOption,
    ModelOption,
    OutOption,
    QuietOption,
    ResultJsonOption,
    TokenizerOption,
    TruncateOption,
    WordsOption,
)
from normlens.cli.outputs import check_out, file_errors, numbered, print_json, prints_json
from normlens.cli.printing import (
    add_row,
    console_for,
    layers_status,
    new_table,
    print_table,
    status,
)
from normlens.cosine_options import CosineOptions
from normlens.options import LoadOptions
from normlens.results.contribution_rows import rows_of
from normlens.results.cosine_words import PLACES, cosine_words, parts_words
from normlens.results.explanation_words import signed_number

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine

_PAIRS = 10  # in the list of the strongest


@with_field_options
def cosine_command(
    *,
    a: Annotated[str, typer.Argument(metavar="A", help="The first text.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The second text; - reads standard input.")
    ] = None,
    file: FileOption = None,
    lines: LinesOption = False,
    model: ModelOption = None,
    tokenizer: TokenizerOption = None,
    options: Annotated[CosineOptions, Fields(without=("batch_size",))],
    words: WordsOption = False,
    loading: LoadOptions,
    truncate: TruncateOption = False,
    out: OutOption = None,
    as_json: ResultJsonOption = False,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Which tokens made the cosine of two texts' vectors. Without --out it prints what each token
    has of it, the strongest pairs, and what no pair of tokens owns. With --lines the first text is
    compared with each line of the file, or of standard input.
    """
    check_result_needs(model, out)
    printed = prints_json(out, as_json)
    check_text(a)
    inputs = read_inputs([b], None, file, lines=lines)
    if out is not None and not printed:
        check_out(out, force, lines=lines)

    from normlens.exports.cosine_export import to_document, write_cosine
    from normlens.loading import load

    with status(f"loading {model or DEFAULT}", quiet):
        lens = load(model, tokenizer, **asdict(loading))
    for given in inputs:
        with given.named(), layers_status("comparing", quiet) as advance:
            pair = lens.cosine(
                a,
                str(given.value),
                truncate=truncate,
                progress=advance or False,
                **asdict(options),
            )
        pair = pair.words() if words else pair
        if printed:
            print_json(to_document(pair))
        elif out is None:
            _show(pair)
        else:
            path = numbered(out, given.line)
            with file_errors(path):
                write_cosine(pair, path, overwrite=force)
            if not quiet:
                print(f"wrote {path}: {pair!r}")


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

"""Options that several commands share and no dataclass has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlens.checkpoints.embedded import DEFAULT

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help=f"Hub name, local folder, or embedded model. Default: {DEFAULT}.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results alone.")]
NoProgressOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TokenizerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Another tokenizer: hub name or folder.")
]
TextOption = Annotated[
    str | None, typer.Option("--text", "-t", metavar="TEXT", help="The same, as an option.")
]
PairOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A second text, for models that read pairs.")
]
ImageOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Instead of a text: a picture, for models that see."),
]
TargetTextOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Encoder–decoders: the target that the decoder reads. Default: what the model "
        "generates.",
    ),
]
FileOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Read the text from a file; - is stdin.")
]
LinesOption = Annotated[
    bool,
    typer.Option(
        "--lines", help="Each line of the file, or of stdin, is a text; the model is loaded once."
    ),
]
ResultJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON; with --lines, a line for each.")
]
WordsOption = Annotated[bool, typer.Option("--words", help="Merge subwords into words.")]
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Take the beginning of a text that is too long.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help=".safetensors, .html, .csv, .json, .png, .svg or .pdf; - is JSON on stdout. With "
        "--lines a file for each line: maps-1.png, …",
    ),
]
PageOption = Annotated[
    bool, typer.Option("--page/--no-page", help="Build the page when the tables are done.")
]
RunModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
]
RunDataOption = Annotated[
    str | None,
    typer.Option("--data", "-d", metavar="DATA", help="File, folder, pattern or named data set."),
]

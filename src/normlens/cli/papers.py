"""The commands ``reproduce``, ``report`` and ``compare`` of ``normlens``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlens.cli.options import DTYPE_HELP
from normlens.corpus.runs import progress
from normlens.papers.settings import KINDS, MASK

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
_DATA = "Data, and how it is read"
_RUNS = "How the runs are done"


@app.command(
    "reproduce",
    epilog="Example: normlens reproduce ff --model minilm --data sample --out my-results",
)
def reproduce_command(
    experiments: Annotated[
        str,
        typer.Argument(
            metavar="ff|mixing|all",
            help="ff: Kobayashi et al. 2024. mixing: Kobayashi et al. 2021. all: both.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="File, folder, pattern or named data set; may be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for results.")],
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the hub.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first N sequences only.", rich_help_panel=_DATA),
    ] = None,
    max_length: Annotated[
        int,
        typer.Option(
            metavar="N", help="Tokens per sequence; longer ones are cut.", rich_help_panel=_DATA
        ),
    ] = 128,
    mask: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Masked share in the experiments that mask; causal models are never masked.",
            rich_help_panel=_DATA,
        ),
    ] = MASK,
    seed: Annotated[int, typer.Option(metavar="N", help="Of masks, samples and resamples.")] = 0,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of a table that holds the text.", rich_help_panel=_DATA
        ),
    ] = None,
    pair_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of the second text of a pair.", rich_help_panel=_DATA
        ),
    ] = None,
    paragraphs: Annotated[
        bool,
        typer.Option(
            "--paragraphs", help="Paragraphs of a .txt file, not lines.", rich_help_panel=_DATA
        ),
    ] = False,
    min_count: Annotated[
        int, typer.Option(metavar="N", help="Occurrences of a subword pair that counts.")
    ] = 2,
    top: Annotated[int, typer.Option(metavar="N", help="Most amplified pairs per layer.")] = 10,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Layer of the histograms, counted from 1 as in the papers. Default: the clearest.",
        ),
    ] = None,
    resamples: Annotated[int, typer.Option(metavar="N", help="Of every bootstrap.")] = 10_000,
    relation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your own relation between tokens: a function of an item that gives (n, n) "
            "booleans; may be repeated.",
        ),
    ] = None,
    ranks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Frequency ranks of subwords, `rank count id` per line. Default: the corpus's.",
        ),
    ] = None,
    sentence: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of the attention maps; 'first|second' is a pair."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="auto, cpu, cuda, mps, …", rich_help_panel=_RUNS),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help=DTYPE_HELP, rich_help_panel=_RUNS),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="local (default) or ray.", rich_help_panel=_RUNS),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Processes, each with a model. Default: 1.", rich_help_panel=_RUNS
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a Ray cluster.", rich_help_panel=_RUNS),
    ] = None,
    trust_remote_code: Annotated[
        bool | None,
        typer.Option(
            "--trust-remote-code",
            help="Run Python code that the model brings along.",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Every table and figure of the papers for a model, as one report.

    Runs that are there already are resumed; a folder may be used again for the other experiments.
    """
    from normlens.papers.reproduce import reproduce

    execution: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "engine": engine,
        "workers": workers,
        "address": address,
        "trust_remote_code": trust_remote_code,
    }
    shown = progress.for_stream(quiet)
    try:
        report = reproduce(
            KINDS if experiments == "all" else experiments,
            model,
            data,
            out,
            progress=shown,
            execution={name: value for name, value in execution.items() if value is not None},
            revision=revision,
            column=column,
            pair_column=pair_column,
            paragraphs=paragraphs,
            limit=limit,
            max_length=max_length,
            mask=mask,
            seed=seed,
            resamples=resamples,
            min_count=min_count,
            top=top,
            layer=layer,
            relations=tuple(relation or ()),
            ranks=None if ranks is None else str(ranks.absolute()),
            sentence=sentence,
        )
    finally:
        shown.stop()
    print(report)


@app.command("report", epilog="Example: normlens report my-results")
def report_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that reproduce has made.")],
) -> None:
    """Build the report again from what is on disk; needs neither model nor data."""
    from normlens.papers.reporting import build_report

    print(build_report(out))


@app.command("compare", epilog="Example: normlens compare bert/ gpt2/ --out comparison")
def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="OUT…", help="Folders that reproduce has made.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the comparison goes.")
    ] = Path("comparison"),
) -> None:
    """Several models side by side: their numbers, and their layers over each other."""
    from normlens.papers.report.compare import write_comparison

    write_comparison(folders, out)
    print(out / "comparison.html")

"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from normlens.cli.arguments import FROM_ZERO
from normlens.embedded import DEFAULT
from normlens.precisions import AUTO, DTYPES
from normlens.wording import listed

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help=f"Hub name, local folder, or embedded model. Default: {DEFAULT}.",
    ),
]
LayersOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help=f"For example 2 or 0,2-4; {FROM_ZERO}. Default: all."),
]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        "-s",
        metavar="NAME",
        help="Scope such as ATTNRESLN-N, or its last component (ATTN, RES1, LN1, FF, …); "
        "repeat it or separate names by commas. Default: all.",
    ),
]
DTYPE_HELP = f"{listed((AUTO, *DTYPES), 'or')}."
DtypeOption = Annotated[str, typer.Option(metavar="TYPE", help=DTYPE_HELP)]
RevisionOption = Annotated[
    str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the hub.")
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that the model brings along."),
]
LimitOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory for the feed-forward stage, for example 512MB."),
]
NonlinearityOption = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="How the feed-forward activation is passed on: ig, ig-bias, gradient or shapley.",
    ),
]
SamplesOption = Annotated[int, typer.Option(metavar="N", help="Permutations of shapley.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results alone.")]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")]

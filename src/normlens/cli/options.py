"""Options that several commands share and no dataclass has."""

from __future__ import annotations

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

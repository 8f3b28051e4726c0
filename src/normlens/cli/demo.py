"""``normlens demo``: a first look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normlens.cli.options import ForceOption


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")
    ] = Path("normlens-demo"),
    force: ForceOption = False,
) -> None:
    """A tour with the embedded models: maps, tables and pictures, without the network."""
    from normlens.demo import run_demo

    run_demo(out, force=force)

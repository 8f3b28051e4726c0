"""``normlens view``: maps files in the browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from normlens.cli.options import ForceOption, QuietOption
from normlens.errors import InputError


def view_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Maps files (.safetensors), one or more.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write this .html and open no browser."),
    ] = None,
    precision: Annotated[
        int | None,
        typer.Option(metavar="BITS", help="32, 16 or 8. Default: 32 for small maps, else 16."),
    ] = None,
    largest: Annotated[
        float,
        typer.Option(metavar="MB", help="Layers are left out of a larger file; 0 keeps them all."),
    ] = 60.0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Write the file and say where it is.")
    ] = False,
    force: ForceOption = False,
    quiet: QuietOption = False,
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

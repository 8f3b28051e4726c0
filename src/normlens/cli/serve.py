"""``normlens serve``: a local page for texts and their maps."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from typing import Annotated

import typer

from normlens.cli.fields import Fields, with_field_options
from normlens.cli.options import QuietOption
from normlens.cli.printing import status
from normlens.extras import PAGE_SERVER, check_installed
from normlens.options import AnalysisOptions, LoadOptions, at_least_one
from normlens.serve.limits import Limits
from normlens.serve.security import is_loopback

#: What a visitor chooses, or the page shows anyway.
_VISITORS = ("scopes", "layers", "heads", "nonlinearity", "batch_size", "origin")


@with_field_options
def serve_command(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Model that may be analysed: hub name, folder or embedded model; repeat it for "
            "more. Default: the embedded models that are installed.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes any free port.")
    ] = 8765,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0 is all of them.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name that browsers may know the server by."),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="Longest text, in tokens.")] = 512,
    loading: Annotated[LoadOptions, Fields(without=("revision", "part"))],
    analysis: Annotated[AnalysisOptions, Fields(without=(*_VISITORS, "map_dtype"))],
    example: Annotated[
        bool,
        typer.Option(
            "--example/--no-example", help="Analyse an example at the start, to open the page on."
        ),
    ] = True,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """A local page: type a text, choose a model, see the maps. Ctrl-C stops it."""
    at_least_one(tokens, "tokens")
    check_installed(PAGE_SERVER)

    from normlens.serve.models import ServedModels, installed_models
    from normlens.serve.server import PageServer

    limits = Limits(tokens=tokens)
    models = ServedModels(model or installed_models(), limits, loading=loading, analysis=analysis)
    page = PageServer(
        models, limits, host=host, port=port, allow_hosts=allow_host or (), example=example
    )
    try:
        with status("reading the models' configurations", quiet):
            page.start()
        print(page.url if quiet else f"{', '.join(models.names)} at {page.url}", flush=True)
        if not quiet:
            print("Ctrl-C stops it.", file=sys.stderr)
        if not is_loopback(host):
            print("warning: there is no password; keep strangers from", host, file=sys.stderr)
        if open_browser:
            # A browser in the terminal would keep the server from answering it.
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        page.run()
    finally:
        if not page.close():
            _leave()


def _leave() -> None:
    """End without waiting for a layer or a download in work.

    A thread inside torch does not survive the interpreter's own end in good order.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

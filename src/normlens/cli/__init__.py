"""The command ``normlens``: words to calls.

Results go to stdout, messages to stderr. What a user can do wrong is one line on stderr and exit
status 2. Layers are counted from 0, as in Python; only the papers' report counts them from 1.
torch and transformers take seconds to import, so only the commands that need them do it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from normlens._version import __version__
from normlens.cli.corpus import (
    SOME_FAILED,
    check_command,
    compact_command,
    query_command,
    run_command,
    status_command,
)
from normlens.cli.explain import cosine_command, explain_command
from normlens.cli.help import help_command
from normlens.cli.map import map_command, view_command
from normlens.cli.studies import (
    ablate_command,
    align_command,
    compare_command,
    evaluate_command,
    report_command,
    reproduce_command,
)
from normlens.cli.tools import (
    demo_command,
    doctor_command,
    estimate_command,
    models_command,
    serve_command,
)
from normlens.corpus.runs.errors import AllFailedError, StuckError
from normlens.errors import (
    SMALLER,
    NormLensError,
    OptionError,
    is_out_of_memory,
    one_line,
    process_limit,
)
from normlens.loading.hub import hush

# typer has its own copy of click in newer versions; this is click's base of errors in either.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


class _PlainFlags:
    """A flag is typed alone, so --help shows no ``<bool>`` beside it."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_PlainFlags, TyperCommand):
    """One of the commands."""


class Group(_PlainFlags, TyperGroup):
    """All commands together."""


app = typer.Typer(
    name="normlens",
    help="How every component of a Transformer layer mixes its tokens.",
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(
    name: str, command: Callable[..., None], example: str, short_help: str | None = None
) -> None:
    app.command(name, cls=Command, epilog=f"Example: {example}", short_help=short_help)(command)


_add(
    "map",
    map_command,
    'normlens map --text "She teaches soap opera history." --layers 0,2-4 --out maps.safetensors',
    "Attribution maps of a text: written to a file, or summed up here.",
)
_add(
    "explain",
    explain_command,
    'normlens explain "The keys to the cabinet" --target " are" --contrast " is" --out why.png',
    "Which tokens made the model say this: printed here, or written to a file.",
)
_add(
    "cosine",
    cosine_command,
    'normlens cosine "A man is playing a flute." "Someone plays an instrument."',
    "Which tokens made the cosine of two texts: printed here, or written to a file.",
)
_add(
    "view",
    view_command,
    "normlens view maps.safetensors --out soap.html",
    "Maps files as an interactive page, in the browser or in one HTML file.",
)
_add("serve", serve_command, "normlens serve --model minilm --open")
_add("models", models_command, "normlens models grouped windows")
_add("doctor", doctor_command, "normlens doctor")
_add(
    "help",
    help_command,
    "normlens help CompletenessError",
    "Pages that need no network: errors with cause and cure, adapters, …",
)
_add("estimate", estimate_command, "normlens estimate --model minilm --tokens 512")
_add("demo", demo_command, "normlens demo --out my-demo")
_add(
    "run",
    run_command,
    "normlens run --model minilm --data sample --out my-run && normlens query my-run "
    '"SELECT layer, avg(ratio) FROM mixing GROUP BY layer"',
)
_add(
    "evaluate",
    evaluate_command,
    "normlens evaluate --model minilm --data stsb:path/sts-dev.csv --limit 60 --out my-evaluation",
    "Which attributions are true of the model: every method put to the test.",
)
_add(
    "align",
    align_command,
    "normlens align --model my-marian --data parallel:pairs.txt --gold pairs.gold "
    "--scope all --out my-alignment",
    "Words of a source and of its translation, linked by an encoder–decoder's maps.",
)
_add("status", status_command, "normlens status my-run")
_add("check", check_command, "normlens check my-run")
_add("compact", compact_command, "normlens compact my-run")
_add(
    "query",
    query_command,
    'normlens query my-run "SELECT scope_a, scope_b, avg(rho) FROM similarity GROUP BY ALL" --csv',
)
_add(
    "reproduce",
    reproduce_command,
    "normlens reproduce ff --model minilm --data sample --out my-results",
)
_add(
    "ablate",
    ablate_command,
    "normlens ablate --model smollm2 --data wikitext:wiki.valid.raw --limit 300 --out my-ablation",
    "What each component of a model is worth: taken away, how does the loss change?",
)
_add("report", report_command, "normlens report my-results")
_add("compare", compare_command, "normlens compare bert/ gpt2/ --out comparison")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ρ should show something else rather than a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    hush()
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    try:
        status = command.main(
            args=None if argv is None else list(argv), prog_name="normlens", standalone_mode=False
        )
    except OptionError as error:
        return _fail(error.as_typed)
    except AllFailedError as error:
        _fail(str(error))
        return SOME_FAILED
    except StuckError as error:
        _fail(str(error))
        sys.stdout.flush()
        os._exit(2)  # where Python would wait for the thread that is stuck
    except NormLensError as error:
        return _fail(str(error))
    except _ClickError as error:
        return _fail(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.end]
        return _fail(f"the text {near!a} is not valid Unicode; encode it as UTF-8")
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail(f"there is not enough memory; {SMALLER}{process_limit()}")
    return status if isinstance(status, int) else 0


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", one_line(str(message)), file=sys.stderr)


def _fail(message: str) -> int:
    print("error:", one_line(message), file=sys.stderr)
    return 2


def _usage(error: Any) -> str:
    """What click has to say, and where to read more."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "normlens"
    return f"{error.format_message().rstrip('.')}; see: {path} --help"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"normlens {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog='Example: normlens map --text "Hello, world."')
def normlens(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How every component of a Transformer layer mixes its tokens."""
    if context.invoked_subcommand is None:
        print(context.get_help())

"""The command ``normlens``: words to calls.

Results go to stdout, messages to stderr. What a user can do wrong is one line on stderr and exit
status 2. Layers are counted from 0, as in Python; only the papers' report counts them from 1.
torch and transformers take seconds to import, so only the commands that need them do it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from normlens._version import __version__
from normlens.cli.common import Command, Group
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

app = typer.Typer(
    name="normlens",
    help="How every component of a Transformer layer mixes its tokens.",
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(
    "map",
    short_help="Attribution maps of a text: written to a file, or summed up here.",
    epilog='Example: normlens map --text "She teaches soap opera history." --layers 0,2-4 '
    "--out maps.safetensors",
)(map_command)
app.command(
    "explain",
    short_help="Which tokens made the model say this: printed here, or written to a file.",
    epilog='Example: normlens explain "The keys to the cabinet" --target " are" --contrast " is" '
    "--out why.png",
)(explain_command)
app.command(
    "cosine",
    short_help="Which tokens made the cosine of two texts: printed here, or written to a file.",
    epilog='Example: normlens cosine "A man is playing a flute." "Someone plays an instrument."',
)(cosine_command)
app.command(
    "view",
    short_help="Maps files as an interactive page, in the browser or in one HTML file.",
    epilog="Example: normlens view maps.safetensors --out soap.html",
)(view_command)
app.command("serve", epilog="Example: normlens serve --model minilm --open")(serve_command)
app.command("models", epilog="Example: normlens models grouped windows")(models_command)
app.command("doctor", epilog="Example: normlens doctor")(doctor_command)
app.command(
    "help",
    short_help="Pages that need no network: errors with cause and cure, adapters, …",
    epilog="Example: normlens help CompletenessError",
)(help_command)
app.command("estimate", epilog="Example: normlens estimate --model minilm --tokens 512")(
    estimate_command
)
app.command("demo", epilog="Example: normlens demo --out my-demo")(demo_command)
app.command(
    "run",
    epilog="Example: normlens run --model minilm --data sample --out my-run && "
    'normlens query my-run "SELECT layer, avg(ratio) FROM mixing GROUP BY layer"',
)(run_command)
app.command(
    "evaluate",
    short_help="Which attributions are true of the model: every method put to the test.",
    epilog="Example: normlens evaluate --model minilm --data stsb:path/sts-dev.csv --limit 60 "
    "--out my-evaluation",
)(evaluate_command)
app.command(
    "align",
    short_help="Words of a source and of its translation, linked by an encoder–decoder's maps.",
    epilog="Example: normlens align --model my-marian --data parallel:pairs.txt --gold pairs.gold "
    "--scope all --out my-alignment",
)(align_command)
app.command("status", epilog="Example: normlens status my-run")(status_command)
app.command("check", epilog="Example: normlens check my-run")(check_command)
app.command("compact", epilog="Example: normlens compact my-run")(compact_command)
app.command(
    "query",
    epilog='Example: normlens query my-run "SELECT scope_a, scope_b, avg(rho) FROM similarity '
    'GROUP BY ALL" --csv',
)(query_command)
app.command(
    "reproduce",
    epilog="Example: normlens reproduce ff --model minilm --data sample --out my-results",
)(reproduce_command)
app.command(
    "ablate",
    short_help="What each component of a model is worth: taken away, how does the loss change?",
    epilog="Example: normlens ablate --model smollm2 --data wikitext:wiki.valid.raw --limit 300 "
    "--out my-ablation",
)(ablate_command)
app.command("report", epilog="Example: normlens report my-results")(report_command)
app.command("compare", epilog="Example: normlens compare bert/ gpt2/ --out comparison")(
    compare_command
)

for _command in app.registered_commands:
    _command.cls = Command


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

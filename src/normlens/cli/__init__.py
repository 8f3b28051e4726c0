"""The command ``normlens``: words to calls.

Results go to stdout, messages to stderr. What a user can do wrong is one line on stderr and exit
status 2. Layers are counted from 0, as in Python; only the papers' report counts them from 1.
torch and transformers take seconds to import, so only the commands that need them do it.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from normlens import errors
from normlens._version import __version__
from normlens.cli import corpus, explain, map, studies, tools
from normlens.cli.parameters import as_typer_reads
from normlens.corpus.runs.folder import AllFailedError, StuckError
from normlens.loading.hub import hush

# typer has its own copy of click in newer versions; this is click's base of errors in either.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]
#: The commands in the order in which --help lists them.
_COMMANDS = (
    "map explain cite cosine score rank view serve models help run status check query evaluate "
    "reproduce"
)
#: What people type for a command that has another name.
_INSTEAD = {"page": "view"} | {
    name: f"reproduce {name}" for name in ("ablate", "align", "report", "compare", "demo")
}


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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _INSTEAD:
            raise errors.InputError(
                f"there is no command {args[0]!r}; type: normlens {_INSTEAD[args[0]]} …"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="normlens",
    help="Which tokens made a Transformer's prediction, and how each layer mixes its tokens: exact "
    "for the frozen network, in which attention weights, deviations of norms and slopes of "
    "activations keep their values for the text.",
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(name: str, command: Callable[..., None]) -> None:
    """Add a command, whose docstring says how --help describes it."""
    text, _, _ = inspect.cleandoc(command.__doc__ or "").partition("\n\nOptions:\n")
    text, _, _ = text.partition("\n\nOften: ")
    text, _, example = text.partition("\n\nExample: ")
    about, _, short = text.partition("\n\nIn the list: ")
    app.command(
        name,
        cls=Command,
        help=about,
        short_help=" ".join(short.split()) or None,
        epilog=f"Example: {' '.join(example.split())}",
    )(as_typer_reads(command))


_everything = vars(map) | vars(explain) | vars(tools) | vars(corpus) | vars(studies)
for _name in _COMMANDS.split():
    _add(_name, _everything[f"{_name}_command"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ρ should show something else rather than a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    hush()
    typed = list(sys.argv[1:] if argv is None else argv)
    if typed[:1] == ["help"] and typed[1:] and typed[1] in _COMMANDS.split():
        typed = [typed[1], "--help"]
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            status = typer.main.get_command(app).main(
                args=typed,
                prog_name="normlens",
                standalone_mode=False,
            )
        except (KeyboardInterrupt, typer.Abort):
            return 130
        except Exception as error:
            message = _in_words(error)
            if message is None:
                raise
            print("error:", errors.one_line(message), file=sys.stderr)
            if isinstance(error, StuckError):
                sys.stdout.flush()
                os._exit(2)  # where Python would wait for the thread that is stuck
            return corpus.SOME_FAILED if isinstance(error, AllFailedError) else 2
    return status if isinstance(status, int) else 0


def _in_words(error: Any) -> str | None:
    """What to say of an error that a user can cause; None for any other."""
    if isinstance(error, errors.OptionError):
        return error.as_typed
    if isinstance(error, errors.NormLensError):
        return str(error)
    if isinstance(error, _ClickError):
        path = getattr(getattr(error, "ctx", None), "command_path", "normlens")
        said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if owners := _commands_with(getattr(error, "option_name", None)):
            said += f" ({errors.listed(owners)} {'have' if owners[1:] else 'has'} it)"
        return f"{said}; see: {path} --help"
    if isinstance(error, UnicodeEncodeError):
        near = error.object[max(0, error.start - 40) : error.end]
        return f"the text {near!a} is not valid Unicode; encode it as UTF-8"
    kinds = MemoryError | RuntimeError | OSError | ImportError
    if isinstance(error, kinds) and errors.is_out_of_memory(error):
        return f"there is not enough memory; {errors.SMALLER}{errors.process_limit()}"
    return None


def _commands_with(option: str | None) -> list[str]:
    """The commands that take an option."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return [
        name
        for name, command in commands.items()
        if any(option in parameter.opts for parameter in command.params)
    ]


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", errors.one_line(str(message)), file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"normlens {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog='Example: normlens map "Hello, world."')
def normlens(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """How every component of a Transformer layer mixes its tokens."""
    if context.invoked_subcommand is None:
        print(context.get_help())

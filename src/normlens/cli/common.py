"""What commands share: options from dataclasses, texts from arguments and pipes, tables, files."""

from __future__ import annotations

import inspect
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args, get_origin, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from normlens.errors import (
    IMAGES,
    PICTURES,
    RAY,
    InputError,
    Need,
    NormLensError,
    OutputError,
    check_installed,
    missing,
    system_reason,
)
from normlens.loading.embedded import DEFAULT, EMBEDDED
from normlens.loading.hub import is_embedded
from normlens.options import Option, names_of, option_of
from normlens.pipeline.progress import Progress

# Help texts: a flag is typed alone, so that no type stands beside it.


class Command(TyperCommand):
    """A command whose flags are shown without ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Group(TyperGroup):
    """All commands together, whose flags are shown without ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


# Options that several commands share and no dataclass has.


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


# Tables and signs of life, on a terminal or in a pipe.


#: Seconds between two lines about progress, where there is no terminal.
LINE_EVERY = 10.0


def console_for(*, stderr: bool = False) -> Console:
    """A terminal, or a pipe whose lines are never broken."""
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=1 << 16)
    return console


@contextmanager
def status(message: str, quiet: bool) -> Iterator[None]:
    """A sign of life on a terminal; nothing anywhere else."""
    console = console_for(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{message} …"):
        yield


@contextmanager
def layers_status(message: str, quiet: bool) -> Iterator[Progress | None]:
    """What to tell of each layer: a terminal shows it, elsewhere stderr gets a line now and then.

    Nothing is printed to stdout, and nothing at all about work that is done at once.
    """
    console = console_for(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with console.status(f"{message} …") as shown:
            yield lambda done, total: shown.update(f"{message}: layer {done} of {total} …")
    else:
        yield _now_and_then(message, console)


def _now_and_then(message: str, console: Console) -> Progress:
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            console.print(f"{message}: layer {done} of {total}")

    return say


def new_table(*columns: str, left: int = 1) -> Table:
    """A plain table: the first `left` columns are words, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        justify: Any = "left" if index < left else "right"
        table.add_column(Text(column), justify=justify, overflow="fold")
    return table


def print_table(console: Console, title: str, table: Table) -> None:
    # As a table's own title it would be broken at the table's width.
    console.print(Text(f"\n{title}"))
    console.print(table)


def add_row(table: Table, *cells: str) -> None:
    # Tokens such as [CLS] would be taken for markup if they were passed as strings.
    table.add_row(*(Text(cell) for cell in cells))


# What commands write: files, judged before the work is done, or JSON on standard output.


STDOUT = Path("-")


def prints_json(out: Path | None, as_json: bool) -> bool:
    """Whether a result goes to standard output as JSON; raises where two things are asked for."""
    if as_json and out not in (None, STDOUT):
        raise InputError(
            f"--json prints the result and --out {str(out)!r} writes it; choose one (a file that "
            "ends in .json holds the same)"
        )
    return as_json or out == STDOUT


def print_json(document: dict[str, Any]) -> None:
    """Print a document in one line, as JSON that any program reads."""
    # A stream that cannot say ρ would replace it by a question mark.
    plain = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=plain, allow_nan=False))
    sys.stdout.write("\n")
    sys.stdout.flush()


def numbered(out: Path, line: int | None) -> Path:
    """The file of one of several results: ``maps-3.png`` for the third line."""
    return out if line is None else out.with_name(f"{out.stem}-{line}{out.suffix}")


def check_out(out: Path, force: bool, drawing: Iterable[str] = (), *, lines: bool = False) -> None:
    """Raise now what would otherwise fail at the end; `drawing` names options of pictures."""
    from normlens.results import exports as export
    from normlens.results import store

    export.check_format(out, drawing)
    with file_errors(out):
        store.check_output(numbered(out, 1) if lines else out, overwrite=force or lines)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is the user's to settle, so it is one line too."""
    try:
        yield
    except NormLensError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


# What a command needs beside the core, by its options; checked before it starts.


#: Endings of the files that Matplotlib writes.
_DRAWN = (".png", ".svg", ".pdf")


def check_result_needs(model: str | None, out: Path | None, image: Path | None = None) -> None:
    """Raise now for packages that a result's model, its file or its input will need."""
    needs = list(_of_model(model or DEFAULT))
    if out is not None and out.suffix.lower() in _DRAWN:
        needs.append(PICTURES)
    if image is not None:
        needs.append(IMAGES)
    check_installed(*needs)


def check_run_needs(
    model: str | None,
    execution: Mapping[str, Any],
    *results: Need,
    extra: str | None = None,
    instead: str = "",
) -> None:
    """Raise now for packages that a run's model, its engine or its `results` will need.

    `instead` says how to do without the packages of the results.
    """
    needs = list(() if model is None else _of_model(model))
    if execution.get("engine") == "ray":
        needs.append(RAY)
    check_installed(*needs, *results, extra=extra, instead="" if missing(needs) else instead)


def _of_model(name: str) -> Iterator[Need]:
    """What reading an embedded model's weights needs; one that is not there says so by itself."""
    if is_embedded(name) and EMBEDDED[name].installed:
        yield Need(f"the embedded model {name!r} needs", EMBEDDED[name].extras)


# Commands whose options are the fields of dataclasses.
#
# A command says which dataclass it takes, and gets an instance of it:
#
#     @with_field_options
#     def my_command(*, analysis: Annotated[AnalysisOptions, Fields(without=("seed",))]): ...
#
# Each field that carries an `Option` becomes an option of the command, with the field's name, type
# and default. A field more is therefore an option more, in every command that takes its dataclass.


@dataclass(frozen=True)
class Fields:
    """Which fields a command takes: all (that can be typed), some (`only`), or all but some."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    panel: str | None = None  # the box of --help in which they stand


@dataclass(frozen=True)
class TypedFields(Fields):
    """The parameter is a dictionary of those fields of dataclasses that were typed.

    It is for calls that must know what was given, such as `resume`.
    """

    of: tuple[Any, ...] = ()


def with_field_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of the dataclasses among its parameters."""
    groups: dict[str, _Group] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        group = _group(hints[name])
        if group is None:
            parameters.append(parameter.replace(kind=_KEYWORD, annotation=hints[name]))
        else:
            groups[name] = group
            parameters += group.parameters()

    def call(**typed: Any) -> None:
        values = {name: group.value(typed) for name, group in groups.items()}
        command(**typed, **values)

    # A signature refuses two options of one name.
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__, call.__name__ = command.__doc__, command.__name__
    return call


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class _Item:
    """A field with its type and its option."""

    field: Field[Any]
    type: Any
    option: Option

    def parameter(self, *, may_default: bool, panel: str | None) -> inspect.Parameter:
        """The field as typer reads it; without `may_default`, None says that it was not typed."""
        shows_default = may_default and self.option.typed is None
        default = self.field.default if shows_default else None
        typed = self.type if self.option.typed is None else self.option.typed
        name = self.field.name
        described = typer.Option(
            *(self.option.flags or (f"--{name.replace('_', '-')}",)),
            metavar=self.option.metavar,
            help=self.option.help if shows_default else self._help_with_default(),
            rich_help_panel=panel,
        )
        accepted: Any = typed if default is not None else typed | None
        annotation = Annotated[accepted, described]
        return inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)

    def _help_with_default(self) -> str:
        default = self.field.default
        tells = isinstance(default, str | int | float) and not isinstance(default, bool)
        return f"{self.option.help} Default: {default}." if tells else self.option.help


@dataclass(frozen=True)
class _Group:
    """The options that stand for one parameter of a command."""

    items: tuple[_Item, ...]
    make: Callable[..., Any]
    choice: Fields

    def parameters(self) -> list[inspect.Parameter]:
        may_default = not isinstance(self.choice, TypedFields)
        panel = self.choice.panel
        return [item.parameter(may_default=may_default, panel=panel) for item in self.items]

    def value(self, typed: dict[str, Any]) -> Any:
        """The parameter's value, made of what was typed; its options are taken out of `typed`."""
        values = {}
        for item in self.items:
            value, parse = typed.pop(item.field.name), item.option.parse
            # An option that may be repeated and was not typed is None or an empty list.
            if value is not None and value != []:
                values[item.field.name] = value if parse is None else parse(value)
        return self.make(**values)


def _group(hint: Any) -> _Group | None:
    """The options that a parameter of this type stands for; None for a plain parameter."""
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    choice = next((extra for extra in extras if isinstance(extra, Fields)), Fields())
    if isinstance(choice, TypedFields):
        return _Group(_items(choice.of, choice), dict, choice)
    if isinstance(kind, type) and is_dataclass(kind):
        return _Group(_items((kind,), choice), kind, choice)
    return None


def _items(kinds: tuple[Any, ...], choice: Fields) -> tuple[_Item, ...]:
    """The fields of these dataclasses that the command takes."""
    unknown = {*choice.only, *choice.without}.difference(*map(names_of, kinds))
    if unknown:
        raise TypeError(f"there is no field {unknown.pop()!r} among those of {kinds}")
    return tuple(
        _Item(item, get_type_hints(kind)[item.name], option)
        for kind in kinds
        for item in fields(kind)
        if (option := option_of(item)) is not None
        and item.name not in choice.without
        and (not choice.only or item.name in choice.only)
    )


# The texts that are typed, piped or in a file, or a picture.


STDIN = "-"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Given:
    """One input: a text, a pair or a picture, and its line in a file of several, from 1."""

    value: str | tuple[str, str] | Path
    line: int | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors about one of several inputs say which."""
        try:
            yield
        except NormLensError as error:
            if self.line is None:
                raise
            raise InputError(f"line {self.line}: {error}") from error


def read_inputs(
    texts: Sequence[str | None],
    pair: str | None,
    file: str | None,
    image: Path | None = None,
    *,
    lines: bool = False,
) -> Iterator[Given]:
    """The text, pair or picture that was given, or with `lines` each line of a file or of stdin.

    One input is read and judged at once; lines are read as they are asked for, but for the first.
    """
    if not lines:
        return iter([Given(_read_input(texts, pair, file, image))])
    if pair is not None or image is not None:
        raise InputError("--lines reads one text from each line; leave --pair and --image out")
    typed, name = _source(texts, file)
    if typed is not None:
        raise InputError("--lines reads texts from a file or a pipe; add --file FILE, or give -")
    every = _read_lines(name)
    first = next(every, None)
    if first is None:
        raise InputError(f"{_called(name)} holds no text; write one in each line")
    return chain([first], every)


def _read_input(
    texts: Sequence[str | None], pair: str | None, file: str | None, image: Path | None
) -> str | tuple[str, str] | Path:
    """The text or pair that was given, or the picture."""
    if image is None:
        return read_text(texts, pair, file)
    if any(given is not None for given in (*texts, pair, file)):
        raise InputError("give a text or an --image, not both")
    if not image.is_file():
        raise InputError(f"there is no file {str(image)!r}; --image names a picture")
    return image


def read_text(
    texts: Sequence[str | None], pair: str | None, file: str | None
) -> str | tuple[str, str]:
    """The one text that was given, or the pair; a file where one was named."""
    typed, name = _source(texts, file)
    first = read_file(name) if typed is None else typed
    for part in (first, pair):
        if part is not None:
            check_text(part)
    return first if pair is None else (first, pair)


def _source(texts: Sequence[str | None], file: str | None) -> tuple[str | None, str]:
    """The text that was typed, or None and the file to read it from; ``-`` is stdin."""
    given = [text for text in (*texts, file) if text is not None]
    if not given and _is_piped():
        return None, STDIN
    if len(given) != 1:
        raise InputError(
            'give one text, as "…" or with --text "…", with --file FILE, or through a pipe'
        )
    if file is not None or given == [STDIN]:
        return None, given[0]
    return given[0], ""


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file, rather than a terminal or nothing at all."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def check_text(text: str, name: str = "text") -> None:
    """Raise for a text that is empty."""
    if not text.strip():
        raise InputError(f"the {name} is empty; give at least one word")


def read_file(name: str) -> str:
    """The text of a file, or of stdin, without the space around it."""
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode("utf-8-sig").strip()
    except OSError as error:
        raise InputError(f"cannot read {_called(name)}: {system_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{_called(name)} is not UTF-8 text (byte {error.start}); convert it"
        ) from error


def _read_lines(name: str) -> Iterator[Given]:
    """Each line of a file, or of stdin, that is not blank."""
    try:
        if name == STDIN:
            yield from _lines(sys.stdin.buffer, name)
            return
        with open(name, "rb") as stream:
            yield from _lines(stream, name)
    except OSError as error:
        raise InputError(f"cannot read {_called(name)}: {system_reason(error)}") from error


def _lines(stream: BinaryIO, name: str) -> Iterator[Given]:
    for number, data in enumerate(stream, start=1):
        try:
            text = data.removeprefix(_BOM if number == 1 else b"").decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise InputError(
                f"line {number} of {_called(name)} is not UTF-8 text; convert it"
            ) from error
        if text:
            yield Given(text, number)


def _called(name: str) -> str:
    return "standard input" if name == STDIN else repr(name)

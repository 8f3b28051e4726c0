"""What can be typed: options that commands share, and options from the fields of dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from normlens.loading.embedded import DEFAULT
from normlens.options import Option, names_of, option_of


def option(metavar: str, help: str, *flags: str) -> Any:
    """An option that takes a value; without `flags` it is called like its parameter."""
    return typer.Option(*flags, metavar=metavar, help=help)


# Options that several commands share and no dataclass has.


Model = Annotated[
    str | None,
    option(
        "NAME", f"Hub name, local folder, or embedded model. Default: {DEFAULT}.", "--model", "-m"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results alone.")]
NoProgress = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tokenizer = Annotated[str | None, option("NAME", "Another tokenizer: hub name or folder.")]
Text = Annotated[str | None, option("TEXT", "The same, as an option.", "--text", "-t")]
Pair = Annotated[str | None, option("TEXT", "A second text, for models that read pairs.")]
Image = Annotated[Path | None, option("FILE", "Instead of a text: a picture, for models that see.")]
TargetText = Annotated[
    str | None,
    option(
        "TEXT",
        "Encoder–decoders: the target that the decoder reads. Default: what the model generates.",
    ),
]
File = Annotated[str | None, option("FILE", "Read the text from a file; - is stdin.")]
Lines = Annotated[
    bool,
    typer.Option(
        "--lines", help="Each line of the file, or of stdin, is a text; the model is loaded once."
    ),
]
ResultJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON; with --lines, a line for each.")
]
Words = Annotated[bool, typer.Option("--words", help="Merge subwords into words.")]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Take the beginning of a text that is too long.")
]
Out = Annotated[
    Path | None,
    option(
        "FILE",
        ".safetensors, .html, .csv, .json, .png, .svg or .pdf; - is JSON on stdout. With "
        "--lines a file for each line: maps-1.png, …",
        "--out",
        "-o",
    ),
]
Page = Annotated[
    bool, typer.Option("--page/--no-page", help="Build the page when the tables are done.")
]
RUN_MODEL = option("NAME", "Hub name, folder or embedded model.", "--model", "-m")
RunModel = Annotated[str | None, RUN_MODEL]
RUN_DATA = option("DATA", "File, folder, pattern or named data set.", "--data", "-d")
RunData = Annotated[str | None, RUN_DATA]


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

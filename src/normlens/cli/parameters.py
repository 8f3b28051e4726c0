"""What can be typed: a command's arguments and options, from its signature and its docstring.

A command is a function. What stands before ``*`` in its signature is an argument, what stands
behind it an option; types and defaults are those of the signature, and the rest is read from the
docstring: the help, the command's line in the list of commands, an example, the options that people
use (``Often:``; --help shows these alone, and --help-all every one), and for each option the
placeholder of its value, its flags where they are not ``--its-name``, and its help. Options that
several commands of a module share are described in the docstring of the module, and those of all
modules here.

A parameter that is a dataclass stands for its fields:

    def my_command(*, analysis: Annotated[AnalysisOptions, Fields(without=("seed",))]): ...

Each field that carries an `Option`, or that the dataclass's docstring describes, becomes an option
of the command. A field more is therefore an option more, in every command that takes its dataclass.

Options:
    model NAME (--model, -m): Hub name, local folder, or embedded model. Default: minilm.
    force (--force, -f): Overwrite what is there.
    as_json (--json): Print JSON.
    words: Merge subwords into words.
    truncate: Take the beginning of a text that is too long.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from textwrap import dedent
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from normlens.options import Option, names_of, options_of

#: One option in a docstring: its name, the placeholder, its flags, its help.
_ENTRY = re.compile(r"(\w+)(?: ([^\s(]\S*?))?(?: \((.+?)\))?: (.*)")
#: A field, what is typed for it, and its type.
_Item = tuple[Field[Any], Option, Any]
#: Options of dataclasses that stand at the end of --help.
_LAST = ("force", "quiet")
_HELP_ALL = "help_all"


@cache
def described(docstring: str | None) -> dict[str, Option]:
    """The options that a docstring describes, by the names of their parameters."""
    _, _, listed = inspect.cleandoc(docstring or "").partition("\nOptions:\n")
    entries = (" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", dedent(listed)))
    matches = [match for entry in entries if (match := _ENTRY.fullmatch(entry))]
    return {m[1]: Option(m[4], m[2], tuple(m[3].split(", ")) if m[3] else ()) for m in matches}


@dataclass(frozen=True)
class Fields:
    """Which fields a command takes: all (that can be typed), some (`only`), or all but some."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    panel: str | None = None  # the box of --help in which they stand
    #: These dataclasses' fields make a dictionary of what was typed, for calls such as `resume`
    #: that must know what was given.
    of: tuple[Any, ...] = ()

    def items(self, anew: dict[str, Option], *kinds: Any) -> list[_Item]:
        """The fields of these dataclasses that the command takes; it may describe some `anew`."""
        unknown = {*self.only, *self.without}.difference(*map(names_of, kinds))
        if unknown:
            raise TypeError(f"there is no field {unknown.pop()!r} among those of {kinds}")
        items = []
        for kind in kinds:
            told, hints = described(kind.__doc__).items(), get_type_hints(kind)
            options = {name: anew.get(name, option) for name, option in told} | options_of(kind)
            items += [
                (item, options[item.name], hints[item.name])
                for item in fields(kind)
                if item.name in (self.only or options.keys() - {*self.without})
            ]
        return items

    def parameter(self, item: Field[Any], option: Option, kind: Any) -> inspect.Parameter:
        """A field as typer reads it; None is an option that was not typed."""
        default, help_text, typed = item.default, option.help, option.typed or kind
        if self.of or option.typed is not None:
            if isinstance(default, str | int | float) and not isinstance(default, bool):
                help_text = f"{help_text} Default: {default}."
            default, typed = None, typed | None
        shown = _as_typed(item.name, option, default, help=help_text, rich_help_panel=self.panel)
        return _keyword(item.name, shown, typed)


def _as_typed(name: str, option: Option, default: Any, **more: Any) -> Any:
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(default, *flags, metavar=option.metavar, **{"help": option.help, **more})


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def as_typer_reads(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of the dataclasses among its parameters."""
    own = described(command.__doc__)
    options = described(__doc__) | described(inspect.getmodule(command).__doc__) | own
    groups: dict[str, tuple[Callable[..., Any], list[_Item]]] = {}
    parameters: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        choice = next((extra for extra in extras if isinstance(extra, Fields)), Fields())
        if choice.of or is_dataclass(kind):
            items = choice.items(own, *(choice.of or (kind,)))
            groups[name] = dict if choice.of else kind, items
            for item in items:
                (last if item[0].name in _LAST else parameters).append(choice.parameter(*item))
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        option = options.get(name, Option(""))
        if parameter.kind is not parameter.KEYWORD_ONLY:
            words: Any = {"metavar": option.metavar, "help": option.help}
            default = typer.Argument(default, show_default=False, **words)
        elif not isinstance(default, OptionInfo):
            default = _as_typed(name, option, default)
        parameters.append(_keyword(name, default, hint))

    def call(**typed: Any) -> None:
        typed.pop(_HELP_ALL, None)
        values = {name: make(**_values(items, typed)) for name, (make, items) in groups.items()}
        command(**typed, **values)

    if often := re.search(r"\n\nOften: (.+?)\n\n", inspect.cleandoc(command.__doc__ or ""), re.S):
        last.append(_hide_rare([*parameters, *last], often[1].split()))
    # A signature refuses two options of one name.
    signature = inspect.Signature([*parameters, *last])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    call.__doc__, call.__name__ = command.__doc__, command.__name__
    return call


def _hide_rare(parameters: list[inspect.Parameter], often: list[str]) -> inspect.Parameter:
    """Hide the options from --help that are not used `often`; gives the option --help-all."""
    options = {p.name: p.default for p in parameters if isinstance(p.default, OptionInfo)}
    if unknown := {*often}.difference(options):
        raise TypeError(f"there is no option {unknown.pop()!r}")
    for name, option in options.items():
        option.hidden = name not in often
    shown = f"Show all {len(options)} options and exit."
    every = typer.Option(False, "--help-all", callback=_show_all, is_eager=True, help=shown)
    return _keyword(_HELP_ALL, every, bool)


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with every option."""
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit


def _values(items: list[_Item], typed: dict[str, Any]) -> dict[str, Any]:
    """The values of the fields that were typed, which are taken out of `typed`."""
    values = {}
    for item, option, _ in items:
        value = typed.pop(item.name)
        # An option that may be repeated and was not typed is None or an empty list.
        if value is not None and value != []:
            values[item.name] = value if option.parse is None else option.parse(value)
    return values

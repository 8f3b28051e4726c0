"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from normlens import cli
from normlens.cli.parameters import Fields, as_typer_reads, described
from normlens.corpus.runs.options import RunOptions
from normlens.options import (
    AnalysisOptions,
    ExplainOptions,
    LoadOptions,
    Option,
    options_of,
    whole_number,
)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@dataclass(frozen=True)
class Drawing:
    width: int = Option("How wide.", metavar="N").field(3)
    colour: str | None = Option("Which colour.", flags=("--colour", "-c")).field(None)
    filled: bool = Option("Fill it.").field(False)
    sides: tuple[int, ...] = Option("Its sides.", typed=str, parse=numbers).field((1, 2))
    names: tuple[str, ...] = Option(
        "A name.", flags=("--name",), typed=list[str], parse=tuple
    ).field(())
    share: float = Option("A share.").field(0.5)
    secret: int = 7

    def __post_init__(self) -> None:
        whole_number(self.width, "width", 1)


def run(command: Any, *words: str) -> tuple[Any, str]:
    """What the command was called with, and what it printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def calls():
    return []


def test_a_dataclass_is_made_of_what_was_typed(calls):
    @as_typer_reads
    def draw(*, text: str = "a", drawing: Drawing, quiet: bool = False) -> None:
        """Draw."""
        calls.append((text, drawing, quiet))

    words = (
        "--width",
        "4",
        "-c",
        "red",
        "--filled",
        "--sides",
        "3,4",
        "--name",
        "x",
        "--name",
        "y",
    )
    assert run(draw, *words, "--share", "0.25", "--text", "b", "--quiet")[0] == 0
    assert run(draw)[0] == 0
    made = Drawing(4, "red", True, (3, 4), ("x", "y"), 0.25)
    assert calls == [("b", made, True), ("a", Drawing(), False)]


def test_wrong_values_are_refused_as_the_dataclass_refuses_them(calls):
    @as_typer_reads
    def draw(*, drawing: Drawing) -> None:
        calls.append(drawing)

    with pytest.raises(ValueError, match="width must be at least 1, not 0"):
        run(draw, "--width", "0")
    status, printed = run(draw, "--width", "wide")
    assert status == 2
    assert "--width" in printed
    assert calls == []


def test_what_was_typed_alone(calls):
    @as_typer_reads
    def draw(*, given: Annotated[dict[str, Any], Fields(of=(Drawing, LoadOptions))]) -> None:
        calls.append(given)

    run(draw)
    run(draw, "--width", "3", "--filled", "--sides", "5", "--device", "cpu")
    assert calls == [{}, {"width": 3, "filled": True, "sides": (5,), "device": "cpu"}]


def test_help_tells_names_texts_and_defaults():
    @as_typer_reads
    def draw(*, drawing: Annotated[Drawing, Fields(panel="How it is drawn")]) -> None:
        """Draw."""

    @as_typer_reads
    def again(*, given: Annotated[dict[str, Any], Fields(of=(Drawing,))]) -> None:
        """Draw again."""

    printed = run(draw, "--help")[1]
    for words in ("How wide.", "[default: 3]", "--colour", "-c", "Fill it.", "How it is drawn"):
        assert words in printed
    assert "--secret" not in printed
    assert "--no-filled" not in printed
    printed = run(again, "--help")[1]
    assert "How wide. Default: 3." in printed
    assert "A share. Default: 0.5." in printed


def test_fields_that_are_not_there_and_names_that_are_taken():
    with pytest.raises(TypeError, match="no field 'height'"):

        @as_typer_reads
        def draw(*, drawing: Annotated[Drawing, Fields(without=("height",))]) -> None: ...

    with pytest.raises(ValueError, match="width"):

        @as_typer_reads
        def twice(*, width: int = 1, drawing: Drawing) -> None: ...


# NormLens's commands ------------------------------------------------------------------------------


def flags_of(command: str) -> dict[str, Any]:
    """The names of a command's options, with click's objects."""
    group: Any = typer.main.get_command(cli.app)
    return {parameter.name: parameter for parameter in group.commands[command].params}


def test_every_option_of_every_command_has_help():
    group: Any = typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        assert command.help, name
        assert command.epilog.startswith(f"Example: normlens {name}"), name
        for parameter in command.params:
            assert parameter.help, (name, parameter.name)
            assert parameter.metavar or parameter.is_flag, (name, parameter.name)


def test_docstrings_describe_options():
    def draw(
        shape: str, sizes: list[int] | None = None, *, width: int = 3, filled: bool = False
    ) -> None:
        """Draw.

        Options:
            shape SHAPE|all[,…]: What: a circle, or
                all.
            width N (--wide, -w): How wide: 1, 2 or 3.
            filled: Fill it.
        """

    assert described(draw.__doc__) == {
        "shape": Option("What: a circle, or all.", "SHAPE|all[,…]"),
        "width": Option("How wide: 1, 2 or 3.", "N", ("--wide", "-w")),
        "filled": Option("Fill it."),
    }
    assert described(None) == {}
    printed = run(as_typer_reads(draw), "--help")[1]
    assert "SHAPE|all[,…]" in printed
    assert "--wide" in printed
    assert "--no-filled" not in printed


@pytest.mark.parametrize(
    ("command", "kind", "without"),
    [
        ("map", AnalysisOptions, set()),
        ("map", LoadOptions, set()),
        ("explain", ExplainOptions, {"nonlinearity", "heads"}),
        ("explain", LoadOptions, {"part"}),
        ("run", RunOptions, {"extra_columns", "precision", "paragraphs"}),
    ],
)
def test_commands_have_an_option_for_each_field(command, kind, without):
    flags = flags_of(command)
    assert {name for name in options_of(kind) if name not in flags} == without
    for name, option in options_of(kind).items():
        if name in flags:
            assert flags[name].help.startswith(option.help)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mask", "1.5"), "--mask is a share between 0 and 1, not 1.5"),
        (("--block-size", "0"), "--block-size must be at least 1, not 0"),
        (("--batch-size", "many"), "--batch-size is a number from 1 or 'auto', not 'many'"),
        (("--engine", "cloud"), "unknown --engine 'cloud'"),
        (("--set", "axis=target"), "--set takes MEASURE.OPTION=VALUE"),
    ],
)
def test_a_runs_wrong_options_are_named_by_their_flags(words, message, tmp_path, capsys):
    out = tmp_path / "run"
    given = ["run", "--model", "minilm", "--data", "sample", "--out", str(out), *words]
    assert cli.main(given) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not out.exists()

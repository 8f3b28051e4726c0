"""Options in one place: keywords, signatures and the server follow the dataclasses."""

from __future__ import annotations

import inspect
import pickle
import re
import runpy
import typing
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

import normlens
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import InputError, OptionError
from normlens.inputs.encode import RawInput
from normlens.options import (
    AnalysisOptions,
    LoadOptions,
    Option,
    check_keywords,
    options_of,
    shows_fields_of,
)
from normlens.studies.papers.reproduce import reproduce
from normlens.studies.papers.settings import Settings
from normlens.viewer.pages import ViewerState

#: Fields that calls take by name.
BY_NAME = {RunOptions: {"model", "data"}, Settings: {"kinds", "model", "data", "limits"}}


def test_the_stub_is_what_the_signatures_say() -> None:
    """After a change of an option: ``python tools/write_keywords.py``."""
    tool = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "write_keywords.py"))
    assert tool["PATH"].read_text("utf-8") == tool["stub"]()
    inputs = [item for item in fields(RawInput) if item.name not in ("source", "target")]
    assert tool["keywords"]()["AnalysisKeywords"] == {
        item.name: item.type for item in (*inputs, *fields(AnalysisOptions))
    }
    assert tool["keywords"]()["RunKeywords"]["measures"] == "str | Sequence[str | Measure] | None"


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (normlens.Lens.maps, [AnalysisOptions]),
        (normlens.run, [RunOptions, Execution]),
        (normlens.resume, [RunOptions, Execution]),
        (normlens.Run.resume, [RunOptions, Execution]),
        (reproduce, [Settings]),
        (normlens.load, [LoadOptions]),
    ],
)
def test_signatures_show_the_fields_with_their_defaults(function: Any, kinds: list[Any]) -> None:
    parameters = inspect.signature(function).parameters
    for kind in kinds:
        for item in fields(kind):
            if item.name not in BY_NAME.get(kind, ()):
                default = None if item.default is MISSING else item.default
                assert parameters[item.name].default == default
                assert parameters[item.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_a_shown_signature_leaves_the_call_alone() -> None:
    @dataclass(frozen=True)
    class Sizes:
        width: int = Option("How wide.").field(3)

    @shows_fields_of(Sizes)
    def draw(**options: int) -> dict[str, int]:
        return options

    assert str(inspect.signature(draw)) == "(*, width: 'int' = 3) -> 'dict[str, int]'"
    assert draw(width=2) == {"width": 2}
    assert draw() == {}


def test_a_shown_signature_says_what_a_keyword_takes() -> None:
    @dataclass(frozen=True)
    class Names:
        names: tuple[str, ...] = Option("Which.", takes="str | Sequence[str]").field(())

    @shows_fields_of(Names)
    def draw(**options: object) -> None:
        check_keywords(draw, options)

    assert inspect.signature(draw).parameters["names"].annotation == "str | Sequence[str]"
    draw(names="a")
    with pytest.raises(InputError, match=r"^draw takes no option 'name'; did you mean 'names'\?$"):
        draw(name="a")
    with pytest.raises(InputError, match=r"^draw takes no option 'magic'$"):
        draw(magic=1)


def test_an_option_is_named_as_python_or_the_shell_names_it() -> None:
    error = OptionError("block_size", "{option} must be at least 1, not '{option}'")
    assert str(error) == "block_size must be at least 1, not '{option}'"
    assert error.as_typed == "--block-size must be at least 1, not '{option}'"
    arrived = pickle.loads(pickle.dumps(error))  # as from a worker
    assert (str(arrived), arrived.as_typed) == (str(error), error.as_typed)


def test_the_server_asks_for_the_rule_as_the_options_do() -> None:
    pytest.importorskip("fastapi")
    from normlens.serve.analyses import AnalysisRequest

    asked = AnalysisRequest.model_fields["rule"]
    assert asked.default == AnalysisOptions().nonlinearity
    assert asked.description == options_of(AnalysisOptions)["nonlinearity"].help


def test_the_viewers_state_has_the_words_of_the_page() -> None:
    source = Path(__file__).parents[1] / "viewer" / "src" / "state.ts"
    text = source.read_text("utf-8")
    listed = re.search(r"CHOICES = \{(.*?)\} as const", text, re.DOTALL)
    assert listed is not None
    choices = {
        name: tuple(re.findall(r'"(\w+)"', values))
        for name, values in re.findall(r"(\w+): \[(.*?)\]", listed[1])
    }
    types = typing.get_type_hints(ViewerState)
    assert {name: typing.get_args(types[name]) for name in choices} == choices
    assert set(types) == {*choices, *re.findall(r"\bgiven\.(\w+)", text)}

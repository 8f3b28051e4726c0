"""Options in one place: keywords, signatures and the server follow the dataclasses."""

from __future__ import annotations

import inspect
import pickle
import re
import typing
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

import normlens
from normlens.corpus.measures import Measure
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunKeywords, RunOptions
from normlens.errors import OptionError
from normlens.frozen.rules import GATED_RULES, PLAIN_RULES
from normlens.options import (
    RULES,
    SHAPLEY,
    AnalysisKeywords,
    AnalysisOptions,
    LoadOptions,
    Option,
    options_of,
    shows_fields_of,
)
from normlens.papers.reproduce import reproduce
from normlens.papers.settings import Settings, SettingsKeywords
from normlens.viewer.pages import ViewerState

#: Fields that calls take by name, and keywords that take more than the field keeps.
BY_NAME = {RunOptions: {"model", "data"}, Settings: {"kinds", "model", "data", "limits"}}
WIDER = {
    RunOptions: {"measures", "settings", "extra_columns"},
    Settings: {"methods", "components", "ablation_kinds"},
}


@pytest.mark.parametrize(
    ("keywords", "kinds"),
    [
        (AnalysisKeywords, [AnalysisOptions]),
        (ExecutionKeywords, [Execution]),
        (RunKeywords, [RunOptions, Execution]),
        (SettingsKeywords, [Settings]),
    ],
)
def test_keywords_are_the_fields(keywords: Any, kinds: list[Any]) -> None:
    types = typing.get_type_hints(keywords, localns={"Measure": Measure})
    expected: dict[str, Any] = {}
    for kind in kinds:
        for name, type_ in typing.get_type_hints(kind).items():
            if name not in BY_NAME.get(kind, ()):
                expected[name] = types[name] if name in WIDER.get(kind, ()) else type_
    assert types == expected
    assert keywords.__total__ is False


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


def test_an_option_is_named_as_python_or_the_shell_names_it() -> None:
    error = OptionError("shard_size", "{option} must be at least 1, not '{option}'")
    assert str(error) == "shard_size must be at least 1, not '{option}'"
    assert error.as_typed == "--shard-size must be at least 1, not '{option}'"
    arrived = pickle.loads(pickle.dumps(error))  # as from a worker
    assert (str(arrived), arrived.as_typed) == (str(error), error.as_typed)


def test_every_rule_has_a_name_and_every_name_a_rule() -> None:
    assert set(RULES) == {*PLAIN_RULES, SHAPLEY} == {*GATED_RULES, SHAPLEY}


def test_the_server_asks_for_the_rule_as_the_options_do() -> None:
    pytest.importorskip("fastapi")
    from normlens.serve.jobs import AnalysisRequest

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

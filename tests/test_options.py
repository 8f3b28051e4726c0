"""Options in one place: keywords, signatures and the server follow the dataclasses."""

from __future__ import annotations

import inspect
import pickle
import re
import runpy
import typing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer
from one_case import in_one_case

import normlens
from normlens import cli
from normlens.errors import InputError, OptionError
from normlens.inputs.encode import RawInput
from normlens.options import (
    AnalysisOptions,
    CiteOptions,
    CosineOptions,
    ExplainOptions,
    Option,
    check_keywords,
    options_of,
    shows_fields_of,
)
from normlens.studies.papers.reproduce import reproduce
from normlens.viewer.pages import ViewerState

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "write_keywords.py"))
IDS = " ".join([*TOOL["IDS"], "sampling_rate"])
COSTS = "batch_size memory_limit"
SCORE = "document_prompt label no nonlinearity query_prompt similarity template truncate_dim yes"
OF_DATA, OF_WORK = "max_length paragraphs revision seed", "attempts heartbeat verify"
OF_RUNS = (
    "address batch_size block_size dtype engine file_minutes file_size resources sequence_timeout "
    "steps truncate trust_remote_code"
)
OF_REPORTS = "ablation_kinds layer min_count others ranks relations resamples sentence top"
#: Commands: what each calls, and the options of that which can be given in Python alone.
COMMANDS: dict[str, tuple[Any, str]] = {
    "map": (normlens.Lens.maps, f"{IDS} batch_size map_dtype precision samples seed statistics"),
    "explain": (normlens.Lens.explain, f"{IDS} {COSTS} heads nonlinearity scopes"),
    "cite": (
        normlens.Lens.cite,
        f"{COSTS} generation nonlinearity prompt score seed separator system",
    ),
    "cosine": (normlens.Lens.cosine, f"{COSTS} nonlinearity"),
    "score": (normlens.Lens.score, f"{COSTS} {SCORE}"),
    "rank": (normlens.Lens.rank, f"{COSTS} {SCORE}"),
    "run": (normlens.run, f"{OF_WORK} extra_columns file_size paragraphs precision"),
    "evaluate": (normlens.evaluate, f"{OF_DATA} {OF_WORK} {OF_RUNS}"),
    "reproduce": (reproduce, f"{OF_DATA} {OF_REPORTS}"),
}
#: What the server is asked for: the dataclass of its options, and those that a request may have.
REQUESTS = {
    "AnalysisRequest": (AnalysisOptions, {"heads", "nonlinearity"}),
    "ExplanationRequest": (ExplainOptions, {"nonlinearity"}),
    "CitationRequest": (CiteOptions, {"nonlinearity"}),
    "CosineRequest": (CosineOptions, {"nonlinearity"}),
}


@in_one_case("name", COMMANDS)
def test_an_option_is_on_the_command_line_or_is_said_to_be_pythons(name: str) -> None:
    function, python_only = COMMANDS[name]
    shown = inspect.signature(function).parameters.values()
    assert not any(each.kind is each.VAR_KEYWORD for each in shown)
    typed = typer.main.get_command(cli.app).commands[name].params
    missing = TOOL["options_of"](function).keys() - {parameter.name for parameter in typed}
    assert missing == {*python_only.split()}


@in_one_case("name", REQUESTS)
def test_the_server_asks_for_options_as_their_dataclass_does(name: str) -> None:
    kind, served = REQUESTS[name]
    analyses = pytest.importorskip("normlens.serve.analyses", exc_type=ImportError)
    asked = getattr(analyses, name).model_fields
    asked = {"nonlinearity" if key == "rule" else key: field for key, field in asked.items()}
    options = {item.name: item for item in fields(kind)}
    assert options.keys() & asked.keys() == served
    for option in served:
        assert asked[option].default == options[option].default
        assert asked[option].description == options_of(kind)[option].help


def test_the_stub_is_what_the_signatures_say() -> None:
    """After a change of an option: ``python tools/write_keywords.py``."""
    assert TOOL["PATH"].read_text("utf-8") == TOOL["stub"]()
    inputs = [item for item in fields(RawInput) if item.name not in ("source", "target")]
    assert TOOL["keywords"]()["AnalysisKeywords"] == {
        item.name: item.type for item in (*inputs, *fields(AnalysisOptions))
    }
    assert TOOL["keywords"]()["RunKeywords"]["measures"] == "str | Sequence[str | Measure] | None"


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

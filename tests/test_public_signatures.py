"""Every public signature says what it takes and gives: no `Any`, no keywords without types."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_case import in_one_case

import normlens
from normlens.studies.papers.reporting import build_report
from normlens.studies.papers.reproduce import reproduce

PageServer = pytest.importorskip("normlens.serve.server", exc_type=ImportError).PageServer

if sys.version_info < (3, 11):
    pytest.skip("older versions cannot list overloads", allow_module_level=True)

# The stub has no module beside it; its types are read from it as from one.
STUB = types.ModuleType("normlens._keywords")
STUB.__file__ = str(Path(normlens.__file__).with_name("_keywords.pyi"))
exec(Path(STUB.__file__).read_text("utf-8"), vars(STUB))
sys.modules[STUB.__name__] = STUB

EXPORTED = [getattr(normlens, name) for name in normlens.__all__ if not name.startswith("_")]


def public_functions() -> dict[str, Callable[..., Any]]:
    """Functions, methods and their overloads, by their names."""
    found = {}
    for thing in (*EXPORTED, reproduce, build_report, PageServer):
        for name, function in _functions_of(thing):
            found[name] = function
            for number, overload in enumerate(typing.get_overloads(function)):
                found[f"{name}, overload {number}"] = overload
    return found


def _functions_of(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if inspect.ismodule(thing):
        for member in vars(thing).values():
            if inspect.isfunction(member) and member.__name__ in thing.__all__:
                yield from _functions_of(member)
        return
    if not isinstance(thing, type):
        yield thing.__name__, thing
        return
    for name in dir(thing):
        member = inspect.getattr_static(thing, name)
        if isinstance(member, property):
            member = member.fget
        elif hasattr(member, "func"):  # a cached property
            member = member.func
        member = inspect.unwrap(getattr(member, "__func__", member))
        if not name.startswith("_") or name == "__init__":
            is_ours = inspect.isfunction(member) and member.__module__.startswith("normlens")
            if is_ours and "__dataclass" not in str(member.__qualname__):
                yield f"{thing.__name__}.{name}", member


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters and result, those of optional packages included."""
    module = importlib.import_module(function.__module__)
    names = {**vars(module), **_imported_for_types(module.__name__)}
    return typing.get_type_hints(function, names, names, include_extras=True)


def _imported_for_types(module: str) -> dict[str, Any]:
    """What a module, and those of its package that it imports, import for their types alone."""
    names: dict[str, Any] = {}
    for node in ast.parse(Path(sys.modules[module].__file__ or "").read_text("utf-8")).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            exec(compile(ast.Module(node.body, []), module, "exec"), names)
    return names


def places_of_any(hint: Any, where: str) -> Iterator[str]:
    """Where a type, or a type inside it, is Any."""
    if hint is Any:
        yield where
    elif typing.get_origin(hint) is np.ndarray:
        return  # NumPy says Any for a shape; `normlens.results.axes` names the axes
    elif typing.is_typeddict(hint):
        module = hint.__module__
        names = {**vars(sys.modules[module]), **_imported_for_types(module)}
        for key, kind in typing.get_type_hints(hint, names, names).items():
            yield from places_of_any(kind, f"{where}, {key}")
    else:
        for argument in typing.get_args(hint):
            parts = argument if isinstance(argument, list) else [argument]
            for part in parts:
                yield from places_of_any(part, where)


FUNCTIONS = public_functions()
#: These are made by a lens or from a file; their provenance holds whatever JSON does.
for noun in ("Maps", "Cosine", "Citation", "Explanation", "Score"):
    del FUNCTIONS[f"{noun}.__init__"]


def parameters_of(function: Callable[..., Any]) -> tuple[set[str], str | None]:
    """The names of the parameters, and the one that takes any keywords.

    They are read from the code: a signature may show the fields of a dataclass instead.
    """
    code = inspect.unwrap(function).__code__
    has_args, has_keywords = (
        bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    )
    count = code.co_argcount + code.co_kwonlyargcount + has_args + has_keywords
    names = code.co_varnames[:count]
    return {*names} - {"self", "cls"}, names[-1] if has_keywords else None


def test_the_functions_are_there():
    for name in ("Lens.maps, overload 4", "Lens.layers", "run", "Run.resume", "Maps.show", "load"):
        assert name in FUNCTIONS
    assert len(FUNCTIONS) > 60


@in_one_case("name", FUNCTIONS)
def test_no_any(name):
    hints = hints_of(FUNCTIONS[name])
    assert [place for what, hint in hints.items() for place in places_of_any(hint, what)] == []


@in_one_case("name", FUNCTIONS)
def test_every_parameter_has_a_type(name):
    hints = hints_of(FUNCTIONS[name])
    assert parameters_of(FUNCTIONS[name])[0] <= hints.keys()
    assert name.endswith("__init__") or "return" in hints


@in_one_case("name", FUNCTIONS)
def test_keywords_are_named_by_a_typed_dictionary(name):
    keywords = parameters_of(FUNCTIONS[name])[1]
    if keywords is not None:
        (kind,) = typing.get_args(hints_of(FUNCTIONS[name])[keywords])
        assert typing.is_typeddict(kind)


def test_the_check_sees_any():
    def wrong(self, a: dict[str, list[Any]], b, *others: int, **options: int) -> int:
        return 0

    assert list(places_of_any(typing.get_type_hints(wrong)["a"], "a")) == ["a"]
    assert parameters_of(wrong) == ({"a", "b", "others", "options"}, "options")
    assert list(places_of_any(typing.Unpack[Loose], "options")) == ["options, other"]


class Loose(typing.TypedDict):
    other: Any

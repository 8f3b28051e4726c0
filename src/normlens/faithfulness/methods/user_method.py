"""A user's own method: ``my_module:my_function``.

def my_function(lens, question): …                    # → one score per token
def my_function(lens, questions, options): …          # → a list of them, for a batch
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from normlens.corpus.measures.user_code import imported
from normlens.errors import InputError, NormLensError, reason_of
from normlens.faithfulness.methods.base import Method, MethodOptions
from normlens.faithfulness.questions import Question

if TYPE_CHECKING:
    from normlens.lens import Lens


def user_method(name: str) -> Method:
    """Import a function and make a method of it."""
    function = imported(name, "method")
    if isinstance(function, Method):
        return Method(
            name,
            function.compute,
            function.needs,
            function.frozen_passes,
            function.function or getattr(function.compute, "func", function.compute),
        )
    if not callable(function):
        raise InputError(
            f"{name!r} is a {type(function).__name__}, not a method; write a function "
            "my_function(lens, question) that returns one score per token"
        )
    taken = _arguments(name, function)
    compute = partial(_of_batch if taken == 3 else _one_by_one, name=name, function=function)
    return Method(name, compute, function=function)


def _arguments(name: str, function: Callable[..., Any]) -> int:
    """How many arguments a function takes: a lens with one question, or with several."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(needed) in (2, 3) and all(p in places for p in needed):
        return len(needed)
    raise InputError(
        f"the method {name!r} must take (lens, question), or (lens, questions, options) for "
        f"several at a time; it needs {', '.join(p.name for p in needed) or 'nothing'}"
    )


def _one_by_one(
    lens: Lens,
    questions: Sequence[Question],
    options: MethodOptions,
    *,
    name: str,
    function: Callable[..., Any],
) -> list[Any]:
    return [_called(name, partial(function, lens, question)) for question in questions]


def _of_batch(
    lens: Lens,
    questions: Sequence[Question],
    options: MethodOptions,
    *,
    name: str,
    function: Callable[..., Any],
) -> Sequence[Any]:
    given = _called(name, partial(function, lens, questions, options))
    if not hasattr(given, "__len__") or isinstance(given, (str, bytes)):
        raise InputError(
            f"the method {name!r} gave {type(given).__name__} for {len(questions)} questions; "
            "return a list with one array of scores for each"
        )
    return list(given)


def _called(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (NormLensError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"the method {name!r} failed: {type(error).__name__}: {reason_of(error)}"
        ) from error

"""Importing a user's functions by the names of their modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from normlens.errors import InputError, reason_of


def imported(name: str, kind: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Import ``my_module:my_name``.

    Messages call it a `kind` and offer the module's values that `fits` accepts.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{name!r} names no {kind}; write my_module:my_{kind}")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"{name!r} names a file; write the module: {dotted}:{attribute}")
    try:
        with current_folder():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InputError(
                f"there is no module {module_name!r} for the {kind} {name!r}; run in the folder "
                "that holds it, or put that folder on PYTHONPATH"
            ) from error
        raise InputError(f"cannot import {module_name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(
            f"cannot import {module_name!r}: {type(error).__name__}: {reason_of(error)}"
        ) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            offered = [key for key, candidate in vars(module).items() if fits(candidate)]
            raise InputError(
                f"the module {module_name!r} has no {attribute!r}; its {kind}s are: "
                f"{', '.join(offered) or 'none'}"
            )
        value = getattr(value, part)
    return value


@contextmanager
def current_folder() -> Iterator[None]:
    """Allow imports from the current folder, as ``python -m`` does; installed modules go first."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)

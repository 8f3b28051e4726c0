"""What a user reads without a model: public signatures, and the help of every command."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import normlens
from golden.results import Values, as_json
from golden.shell import run_command

#: Methods of Python's own syntax that a class may have beside its public ones.
SYNTAX = ("__init__", "__getitem__", "__len__", "__iter__", "__contains__", "__eq__")
DOCUMENTS = ("README.md", "docs/*.md", "docs/tutorials/*.md")


def signatures(documented: list[str]) -> Values:
    """Names, parameters and defaults of everything public; types apart, which may be renamed."""
    values: Values = {"__all__": as_json(sorted(normlens.__all__))}
    for name in sorted(normlens.__all__):
        values |= _described(name, getattr(normlens, name))
    for name in documented:
        values[f"documented: {name}"] = _found(name)
    return values


def _described(name: str, thing: Any) -> Values:
    if isinstance(thing, ModuleType):
        values: Values = {f"{name}.__all__": as_json(sorted(thing.__all__))}
        for inner in sorted(thing.__all__):
            values |= _described(f"{name}.{inner}", getattr(thing, inner))
        return values
    if not isinstance(thing, type):
        return _callable(name, thing) if callable(thing) else {name: type(thing).__name__}
    values = {name: "class"}
    if dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            values[f"{name}.{field.name}"] = "field"
            values[f"{name}.{field.name}: types"] = str(field.type)
    for member in dir(thing):
        label, static = f"{name}.{member}", inspect.getattr_static(thing, member)
        owner = next((kind for kind in thing.__mro__ if member in vars(kind)), object)
        is_shown = member in SYNTAX or not member.startswith("_")
        if label not in values and is_shown and owner.__module__ != "builtins":
            values |= _member(label, static, getattr(thing, member))
    return values


def _member(label: str, static: Any, value: Any) -> Values:
    getter = getattr(static, "fget", None) or getattr(static, "func", None)
    if getter is not None:
        types = _text(inspect.signature(getter).return_annotation)
        return {label: "property", f"{label}: types": types}
    if callable(value):
        return _callable(label, value)
    return {label: f"attribute {_text(value)}"}


def _callable(label: str, function: Any) -> Values:
    signature = inspect.signature(function)
    bare = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    overloads = getattr(typing, "get_overloads", lambda _: ())(inspect.unwrap(function))
    types = [str(inspect.signature(each)) for each in (function, *overloads)]
    return {label: _text(bare, str), f"{label}: types": "\n".join(map(_plain, types))}


def _text(value: Any, write: Any = repr) -> str:
    return _plain(write(value))


def _plain(text: str) -> str:
    """Without addresses in memory and the modules of classes."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return re.sub(r"<(?:class|function) '?(?:\w+\.)*(\w+)'?>", r"\1", text)


def documented_names(root: Path) -> list[str]:
    """What the documents import of the package's modules: ``normlens.layers.Attention``."""
    imports = re.compile(r"^from (normlens\.[\w.]+) import (.+)$", re.M)
    texts = [path.read_text("utf-8") for pattern in DOCUMENTS for path in root.glob(pattern)]
    found = [pair for text in texts for pair in imports.findall(text)]
    return sorted(
        {f"{module}.{name.strip()}" for module, names in found for name in names.split(",")}
    )


def _found(name: str) -> str:
    module, _, member = name.rpartition(".")
    try:
        return "there" if hasattr(importlib.import_module(module), member) else "gone"
    except ImportError:
        return "gone"


def help_pages() -> Values:
    """``--help`` of the command and, as far as it lists some, of its commands."""
    values: Values = {}
    waiting: list[list[str]] = [[]]
    while waiting:
        words = waiting.pop()
        status, out, err = run_command([*words, "--help"])
        values[" ".join(["normlens", *words, "--help"])] = f"exit {status}\n{out}{err}"
        box = re.search(r"╭─ Commands ─.*?╰", out, re.S)
        if box:
            waiting += [[*words, name] for name in re.findall(r"^│ (\w[\w-]*) ", box[0], re.M)]
    for words in (["--version"], ["help"], ["models"]):
        status, out, err = run_command(words)
        values[" ".join(["normlens", *words])] = f"exit {status}\n{out}{err}"
    return values

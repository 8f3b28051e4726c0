"""A user's own measures and relations: made, imported by name, and the files they come from."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.base import WHOSE, Item, Needs, RowMeasure, schema_of
from normlens.corpus.measures.tokens import GROUPS, RELATIONS
from normlens.errors import InputError, reason_of
from normlens.inputs import is_table

# Importing a user's functions by the names of their modules.


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


# The files that a user's code comes from: its module, and the user's modules it imports.


_NORMLENS = __name__.partition(".")[0]


def sources_of(name: str, measure: Any) -> dict[str, str | None] | None:
    """Hash each module that a measure's code comes from (SHA-256); None for a built-in measure.

    That is the module that defines it, and the one that it is named by (``my_module:my_measure``),
    which may make it of something from elsewhere.
    """
    code = getattr(measure, "function", type(measure))
    home = str(getattr(code, "__module__", None) or "__main__")
    named, separator, _ = name.partition(":")
    hashes = module_sources(named) if separator else {}
    if home.partition(".")[0] == _NORMLENS:
        return hashes if separator else None
    hashes |= module_sources(home)
    if home not in hashes:
        try:  # a notebook has no file, but remembers what was typed
            hashes[home] = _hash(inspect.getsource(code).encode())
        except (OSError, TypeError):
            hashes[home] = None
    return dict(sorted(hashes.items()))


def module_sources(module: str) -> dict[str, str | None]:
    """Hash a module's file and every file of the user's that it imports (SHA-256), by module.

    Imports are read from the text, those inside functions too, and followed as long as they lead to
    the user's own files: the module's own package, and whatever is neither installed nor Python's.
    """
    hashes: dict[str, str | None] = {}
    waiting = [module]
    package = module.partition(".")[0]
    with current_folder():
        while waiting:
            name = waiting.pop()
            path = None if name in hashes else _user_file(name, package)
            if path is None:
                continue
            text = path.read_bytes()
            hashes[name] = _hash(text)
            # Importing a.b.c runs a and a.b first.
            parts = name.split(".")
            waiting += [".".join(parts[:end]) for end in range(1, len(parts))]
            waiting += _imported(text, name, is_package=path.name == "__init__.py")
    return dict(sorted(hashes.items()))


def _imported(text: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """List the modules that a file imports; of ``from a import b``, both a and a.b."""
    package = module if is_package else module.rpartition(".")[0]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # whoever imports it will say so
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, *([base] if base else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _user_file(module: str, package: str) -> Path | None:
    """Find the file of a module that the user wrote or that belongs to `package`; else None."""
    top = module.partition(".")[0]
    # To find a submodule runs its package; for this, only the user's own may be run.
    top_file = None if top in (package, module) else _file(top)
    if top_file is not None and not _is_written(top_file):
        return None
    path = _file(module)
    return path if top == package or _is_written(path) else None


def _file(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except Exception:  # ``from a import b`` where b is no module, or a package that fails
            return None
        file = None if spec is None else spec.origin
    path = None if file is None else Path(file).resolve()
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


def _is_written(path: Path | None) -> bool:
    """Whether a file is the user's own: not of Python, of an installed package or of NormLens."""
    return path is not None and not any(path.is_relative_to(place) for place in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    return (Path(__file__).parents[2], *(Path(place).resolve() for place in places if place))


def _hash(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


# Relations of a user's own between two tokens: their names in the tables.


def called(name: str) -> str:
    """Name a relation ``my_module:my_relation`` as the tables do."""
    return name.rpartition(":")[2].rpartition(".")[2]


def check_names(relations: tuple[str, ...]) -> None:
    """Raise where two relations have one name, or where one cannot be imported."""
    names = [*map(called, relations)]
    for name, full in zip(names, relations, strict=True):
        if names.count(name) > 1 or name in RELATIONS or name in GROUPS:
            raise InputError(f"another relation is called {name!r} already; rename {full!r}")
        imported(full, "relation")


# Making a measure of a user's function.


_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_ADDED = [field.name for field in WHOSE]


class CustomMeasure(RowMeasure):
    """A function ``f(maps)`` or ``f(item)`` whose result is one table, named like the measure."""

    def __init__(
        self, function: Callable[..., Any], name: str, columns: pa.Schema, needs: Needs
    ) -> None:
        self.function = function
        self.name = name
        self.columns = columns
        self.needs = needs
        self.tables = {name: schema_of(*WHOSE, *columns)}
        self.order = {name: ("index",)}
        self._argument = _argument(function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function itself, as if it had not been decorated."""
        return self.function(*args, **options)

    def __reduce__(self) -> Any:
        """Pickle by name: another process finds the measure where the function used to be."""
        module = self.function.__module__
        name = getattr(self.function, "__qualname__", "")
        value: Any = sys.modules.get(module)
        for part in name.split("."):
            value = getattr(value, part, None)
        if module == "__main__" or value is not self:
            return CustomMeasure, (self.function, self.name, self.columns, self.needs)
        return imported, (f"{module}:{name}", "measure")

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Call the function on this sequence, and add its index and id to each row."""
        result = self.function(item if self._argument == "item" else item.maps)
        table = self._table(result)
        whose = zip(WHOSE, (item.index, item.sequence), strict=True)
        for place, (field, value) in enumerate(whose):
            column = pa.repeat(pa.scalar(value, field.type), len(table))
            table = table.add_column(place, field, column)
        return {self.name: table}

    def _table(self, result: Any) -> pa.Table:
        """Convert a list of dicts, dict of columns, DataFrame or Arrow table to the schema."""
        try:
            columns = _columns(result)
            if columns is None:
                raise InputError(
                    f"the measure {self.name!r} returned {type(result).__name__}; return a list of "
                    "dicts, a dict of columns or a DataFrame"
                )
            if not columns:
                return self.columns.empty_table()
            if set(columns) != set(self.columns.names):
                raise InputError(
                    f"the measure {self.name!r} returned the columns {', '.join(columns)}; its "
                    f"schema says {', '.join(self.columns.names)}"
                )
            return pa.table(columns).select(self.columns.names).cast(self.columns)
        except KeyError as error:
            raise InputError(
                f"the measure {self.name!r} returned rows without the column {error.args[0]!r}"
            ) from error
        except (pa.ArrowException, TypeError) as error:
            raise InputError(
                f"what the measure {self.name!r} returned does not fit its schema: "
                f"{reason_of(error)}"
            ) from error


def _columns(result: Any) -> dict[str, Any] | None:
    """The columns of a result by their names; None if it has none."""
    if result is None:
        return {}
    if isinstance(result, pa.Table):
        return dict(zip(result.column_names, result.columns, strict=True))
    if isinstance(result, Mapping) or is_table(result):
        return {str(name): _column(values) for name, values in result.items()}
    if isinstance(result, Sequence) and all(isinstance(row, Mapping) for row in result):
        names = dict.fromkeys(name for row in result for name in row)
        return {str(name): [row[name] for row in result] for name in names}
    return None


def _column(values: Any) -> Any:
    """The values of a column; NaN of pandas is not null: a result that is no number has to show."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return [values]
    is_float = isinstance(getattr(values, "dtype", None), np.dtype) and values.dtype.kind == "f"
    return np.asarray(values) if is_float else values


def measure(
    function: Callable[..., Any] | None = None,
    *,
    schema: Mapping[str, Any] | pa.Schema | None = None,
    name: str | None = None,
    scopes: Sequence[str] | None = None,
    statistics: bool = False,
    heads: bool = False,
) -> Any:
    """Make a measure of a function: one table with what it returns for each sequence.

    >>> @measure(schema={"layer": int, "mean": float})
    ... def self_attention(maps):
    ...     diagonal = maps["ATTN-N"].diagonal(axis1=1, axis2=2)
    ...     return {"layer": maps.layers, "mean": diagonal.mean(axis=1)}

    The function takes ``maps`` (or ``item``, with the tokens' words and entities) and returns a
    list of dicts, a dict of columns or a DataFrame. `index` and `sequence` are added to each row.
    None is a missing value; NaN is none, and makes the sequence a failure. With `heads`,
    ``maps.heads["ATTN-N"]`` are the maps [layer, head, target, source] of single heads, and
    ``maps.heads["ATTN-W"]`` their weights.
    """
    if function is None:
        return partial(
            measure, schema=schema, name=name, scopes=scopes, statistics=statistics, heads=heads
        )
    called = str(name or getattr(function, "__name__", ""))
    if not called.isidentifier():
        raise InputError(
            f"{called!r} cannot name a table; give the measure a name of letters, digits and _"
        )
    if not schema:
        raise InputError(
            f"the measure {called!r} has no schema; write "
            '@measure(schema={"layer": int, "value": float}) with the columns that it returns'
        )
    needs = Needs(None if scopes is None else tuple(scopes), statistics, heads=heads)
    return CustomMeasure(function, called, _schema(called, schema), needs)


def _schema(name: str, given: Mapping[str, Any] | pa.Schema) -> pa.Schema:
    if isinstance(given, pa.Schema):
        given = dict(zip(given.names, given.types, strict=True))
    fields = []
    for column, kind in given.items():
        if column in _ADDED:
            raise InputError(
                f"leave {column!r} out of the schema of {name!r}; it is added to every row"
            )
        try:
            declared = _TYPES.get(kind, kind)
            arrow_type = pa.type_for_alias(declared) if isinstance(declared, str) else declared
            fields.append(pa.field(column, arrow_type))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the column {column!r} of {name!r} cannot be {kind!r}; choose int, float, str, "
                "bool or an arrow type"
            ) from error
    return pa.schema(fields)


def _argument(function: Callable[..., Any]) -> str:
    """Tell by its first parameter's name whether a function takes the maps or the whole item."""
    parameters = list(inspect.signature(function).parameters)
    if not parameters:
        raise InputError(
            f"{getattr(function, '__name__', function)!r} takes no argument; a measure takes `maps`"
            " or `item`"
        )
    return parameters[0]

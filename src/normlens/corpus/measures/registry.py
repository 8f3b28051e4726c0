"""Measures by name: the built-in ones, and a user's own as ``my_module:my_measure``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from normlens.corpus.measures.amplification import Amplification
from normlens.corpus.measures.base import WHOSE, Item, Measure, Needs, RowMeasure
from normlens.corpus.measures.explanations import ExplanationsMeasure
from normlens.corpus.measures.rows import Mixing, Norms, Similarity
from normlens.corpus.measures.user_code import imported
from normlens.errors import InputError, reason_of

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
        self.tables = {name: pa.schema([*WHOSE, *columns])}
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
        return get, (f"{module}:{name}",)

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Call the function on this sequence, and add its index and id to each row."""
        result = self.function(item if self._argument == "item" else item.maps)
        table = self._table(result)
        size = len(table)
        whose = [
            pa.repeat(pa.scalar(value, field.type), size)
            for value, field in zip((item.index, item.sequence), WHOSE, strict=True)
        ]
        schema = self.tables[self.name]
        return {self.name: pa.Table.from_arrays([*whose, *table.columns], schema=schema)}

    def _table(self, result: Any) -> pa.Table:
        """Convert a list of dicts, dict of columns, DataFrame or Arrow table to the schema."""
        try:
            if result is None or (isinstance(result, Sequence) and not len(result)):
                return self.columns.empty_table()
            if isinstance(result, Mapping):
                table = pa.table({str(name): _column(values) for name, values in result.items()})
            elif isinstance(result, pa.Table):
                table = result
            elif isinstance(result, Sequence) and all(isinstance(row, Mapping) for row in result):
                names = dict.fromkeys(str(name) for row in result for name in row)
                table = pa.table({name: [row[name] for row in result] for name in names})
            elif hasattr(result, "to_dict") and hasattr(result, "columns"):
                table = _with_nan(pa.Table.from_pandas(result, preserve_index=False), result)
            else:
                raise InputError(
                    f"the measure {self.name!r} returned {type(result).__name__}; return a list of "
                    "dicts, a dict of columns or a DataFrame"
                )
            if set(table.column_names) != set(self.columns.names):
                raise InputError(
                    f"the measure {self.name!r} returned the columns "
                    f"{', '.join(table.column_names) or 'none'}; its schema says "
                    f"{', '.join(self.columns.names)}"
                )
            return table.select(self.columns.names).cast(self.columns)
        except KeyError as error:
            raise InputError(
                f"the measure {self.name!r} returned rows without the column {error.args[0]!r}"
            ) from error
        except (pa.ArrowException, TypeError) as error:
            raise InputError(
                f"what the measure {self.name!r} returned does not fit its schema: "
                f"{reason_of(error)}"
            ) from error


def measure(
    function: Callable[..., Any] | None = None,
    *,
    schema: Mapping[str, Any] | pa.Schema | None = None,
    name: str | None = None,
    scopes: Sequence[str] | None = None,
    statistics: bool = False,
) -> Any:
    """Make a measure of a function: one table with what it returns for each sequence.

    >>> @measure(schema={"layer": int, "mean": float})
    ... def self_attention(maps):
    ...     diagonal = maps["ATTN-N"].diagonal(axis1=1, axis2=2)
    ...     return {"layer": maps.layers, "mean": diagonal.mean(axis=1)}

    The function takes ``maps`` (or ``item``, with the tokens' words and entities) and returns a
    list of dicts, a dict of columns or a DataFrame. `index` and `sequence` are added to each row.
    None is a missing value; NaN is none, and makes the sequence a failure.
    """
    if function is None:
        return lambda given: measure(
            given, schema=schema, name=name, scopes=scopes, statistics=statistics
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
    needs = Needs(None if scopes is None else tuple(scopes), statistics)
    return CustomMeasure(function, called, _schema(called, schema), needs)


def _schema(name: str, given: Mapping[str, Any] | pa.Schema) -> pa.Schema:
    pairs = [(f.name, f.type) for f in given] if isinstance(given, pa.Schema) else given.items()
    fields = []
    for column, kind in pairs:
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


def _column(values: Any) -> Any:
    return [values] if isinstance(values, str) or not hasattr(values, "__len__") else values


def _with_nan(table: pa.Table, frame: Any) -> pa.Table:
    """A DataFrame's table in which NaN is not null: a result that is no number has to show."""
    for place, (name, column) in enumerate(frame.items()):
        if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
            table = table.set_column(place, str(name), pa.array(column.to_numpy()))
    return table


def _argument(function: Callable[..., Any]) -> str:
    """Tell by its first parameter's name whether a function takes the maps or the whole item."""
    parameters = list(inspect.signature(function).parameters)
    if not parameters:
        raise InputError(
            f"{getattr(function, '__name__', function)!r} takes no argument; a measure takes `maps`"
            " or `item`"
        )
    return parameters[0]


# Measures by name: the built-in ones, and a user's own as ``my_module:my_measure``.


BUILT_IN: dict[str, Callable[..., Measure]] = {
    "similarity": Similarity,
    "mixing": Mixing,
    "amplification": Amplification,
    "norms": Norms,
    "explanations": ExplanationsMeasure,
}


#: Measures that run the model, behind commands of their own; their modules need torch.
OF_MODEL = {
    "faithfulness": "normlens.studies.faithfulness.measure:FaithfulnessMeasure",
    "ablation": "normlens.studies.ablation.measure:AblationMeasure",
    "alignment": "normlens.studies.alignment.align:AlignmentMeasure",
}


def names() -> list[str]:
    """List the names of the built-in measures of maps and explanations."""
    return list(BUILT_IN)


def get(name: str, **options: Any) -> Measure:
    """Make a measure by its name, or by module and name (``my_module:my_measure``)."""
    wanted = str(name).strip()
    if ":" in wanted:
        return _made(imported(wanted, "measure", _is_measure), wanted, options)
    if wanted in OF_MODEL:
        return _made(imported(OF_MODEL[wanted], "measure", _is_measure), wanted, options)
    if wanted not in BUILT_IN:
        raise InputError(
            f"unknown measure {wanted!r}; choose one of: {', '.join(names())}, or your own as "
            "my_module:my_measure"
        )
    return _made(BUILT_IN[wanted], wanted, options)


def parse(
    given: str | Iterable[str], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Measure]:
    """Make several measures: ``"similarity,mixing"`` or a list of names; `options` by name."""
    listed = given.split(",") if isinstance(given, str) else [str(name) for name in given]
    wanted = list(dict.fromkeys(name.strip() for name in listed if name.strip()))
    if not wanted:
        raise InputError(f"no measure is chosen; choose some of: {', '.join(BUILT_IN)}")
    unused = [name for name in options or {} if name not in wanted]
    if unused:
        raise InputError(f"options for {unused[0]!r}, which is not among {', '.join(wanted)}")
    measures = [get(name, **(options or {}).get(name, {})) for name in wanted]
    owners: dict[str, str] = {}
    for measure in measures:
        for table in measure.tables:
            if table in owners:
                raise InputError(
                    f"the measures {owners[table]!r} and {measure.name!r} both write a table "
                    f"{table!r}; rename one of them"
                )
            owners[table] = measure.name
    return measures


def _made(target: Any, name: str, options: dict[str, Any]) -> Measure:
    """Call a measure's factory with these options, or take a measure that is ready."""
    if not isinstance(target, type) and isinstance(target, Measure):
        if options:
            raise InputError(f"the measure {name!r} takes no options, got {', '.join(options)}")
        return target
    if not isinstance(target, type):
        raise InputError(
            f"{name!r} is a {type(target).__name__}, not a measure; put above the function: "
            '@normlens.corpus.measures.measure(schema={"layer": int, "value": float})'
        )
    try:
        made = target(**options)
    except TypeError as error:
        raise InputError(f"the measure {name!r} cannot be made: {error}") from error
    if not isinstance(made, Measure):
        raise InputError(f"{name!r} is not a measure; see normlens.corpus.measures.Measure")
    return made


def _is_measure(value: Any) -> bool:
    return isinstance(value, Measure)

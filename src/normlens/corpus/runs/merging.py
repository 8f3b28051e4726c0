"""Merging the parts of a table by SQL from the measures' code, never from a run's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.manifest import Manifest, has_two_stacks
from normlens.corpus.runs.options import MEASURES
from normlens.errors import InputError, NormLensError

if TYPE_CHECKING:
    from normlens.corpus.measures import Measure

#: Options of measures that may name functions; SQL does not depend on them, so they are not
#: followed.
NAMES_CODE = ("relations", "methods")


def code_named(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """The functions that a measure's options name (``my_module:my_function``), by the option."""
    given = {option: options.get(option) or () for option in NAMES_CODE}
    named = {
        option: [
            str(name)
            for name in (value if isinstance(value, (list, tuple)) else [value])
            if ":" in str(name)
        ]
        for option, value in given.items()
    }
    return {option: names for option, names in named.items() if names}


def merging_sql(manifest: Manifest, table: str, named: Sequence[Measure] = ()) -> str | None:
    """Write SQL that merges the rows of all files (`parts`); None for a table that only grows.

    A built-in measure is made again from its recorded options. A user's own has to be among
    `named`: the modules that a run's manifest names are not imported.
    """
    described = manifest.tables[table]
    if not described["merged"]:
        return None
    for measure in named:
        if table in measure.tables:
            return measure.sql.get(table)
    name = str(described["measure"])
    if _is_built_in(manifest, name):
        return _built_in(manifest, table).sql[table]
    raise InputError(
        f"the table {table!r} is merged by a measure of your own, which is imported only if you "
        f"name it: --measures {name} (in Python: Run.open(…, measures={name!r}))"
    )


def _is_built_in(manifest: Manifest, name: str) -> bool:
    return (manifest.measures.get(name) or {}).get("source") is None


def _built_in(manifest: Manifest, table: str) -> Measure:
    """The measure of this package that merges a table, made from its recorded options."""
    name = str(manifest.tables[table]["measure"])
    try:
        if name not in MEASURES:
            raise InputError(f"there is no measure {name!r}")
        measure = _get(name, **_harmless(manifest.measures[name]["options"]))
        if has_two_stacks(manifest.model):
            measure = _for_two_stacks(measure)
        if table not in measure.sql:
            raise InputError(f"{name!r} merges no table {table!r}")
        return measure
    except (NormLensError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"the manifest describes a measure that cannot be made: {error}") from error


def named_measures(manifest: Manifest, names: Sequence[str]) -> list[Measure]:
    """Make the measures that users name, with the options that the run gave them."""
    for name in names:
        if name not in manifest.options.measures:
            raise InputError(
                f"the run did not take the measure {name!r}; it took: "
                f"{', '.join(manifest.options.measures)}"
            )
    return [
        _get(name, **_harmless(manifest.options.settings.get(name, {})))
        for name in names
        if ":" in name
    ]


def _get(name: str, **options: Any) -> Measure:
    # Measures are slow to import, and a run is mostly asked for its state or for plain tables.
    from normlens.corpus.measures import get

    return get(name, **options)


def _for_two_stacks(measure: Measure) -> Measure:
    from normlens.corpus.measures.rows import for_two_stacks

    return for_two_stacks(measure)


def _harmless(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NAMES_CODE}

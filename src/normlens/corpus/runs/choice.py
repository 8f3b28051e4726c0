"""Which model, data and measures a run takes, and what its manifest says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normlens.corpus import measures
from normlens.corpus.data.readers import NAME, MemoryData, find_data, is_in_memory, open_data
from normlens.corpus.data.records import Data, ReadOptions
from normlens.corpus.engines.shard_rows import schemas
from normlens.corpus.measures import Measure
from normlens.corpus.measures.rows import for_two_stacks
from normlens.corpus.measures.user_code import module_sources, sources_of
from normlens.corpus.runs.folder import OBJECT, fixed_path, model_name
from normlens.corpus.runs.manifest import has_two_stacks
from normlens.corpus.runs.merging import code_named
from normlens.corpus.runs.options import Execution, RunOptions, parse_measures
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.loading.load import load

# What a run is given: names and paths, or a user's objects.


def given_model(model: Any, execution: Execution) -> tuple[Lens | None, str]:
    """The lens of a model that was passed as an object, and what the run calls the model."""
    if isinstance(model, Lens):
        return model, model_name(model)
    if model is None or isinstance(model, (str, os.PathLike)):
        return None, "" if model is None else model_name(model)
    lens = load(model, device=execution.device, dtype=execution.dtype)
    return lens, f"{lens.source}{OBJECT}"


def data_name(data: Any) -> str:
    """What a run calls its data."""
    if is_in_memory(data):
        return NAME
    return data.name if isinstance(data, Data) else fixed_path(data)


def data_to_compare(options: RunOptions, given: Any) -> Data:
    """The data set of a run that is resumed.

    Whoever wrote the run's files may have named any file, so nothing is read of one that only they
    name before its fingerprint is compared.
    """
    if given is None:
        return find_data(options.data, _reading(options), options.limit)
    return opened_data(options, given)


def _reading(options: RunOptions) -> ReadOptions:
    return ReadOptions(
        options.column, options.pair_column, options.paragraphs, options.extra_columns
    )


def opened_data(options: RunOptions, given: Any) -> Data:
    """The data set that was passed, or the one that the options name."""
    if isinstance(given, Data):
        return given
    if given is not None and is_in_memory(given):
        if options.paragraphs:
            raise InputError("paragraphs are for .txt files; leave it out for data in memory")
        return MemoryData(given, _reading(options), options.limit)
    return open_data(
        options.data,
        column=options.column,
        pair_column=options.pair_column,
        paragraphs=options.paragraphs,
        limit=options.limit,
        extra=options.extra_columns,
    )


# Which measures a run takes, and what its manifest says of them.


@dataclass(frozen=True)
class Choice:
    """Measures and the names that they were asked for by."""

    #: as they were asked for: names, or ready measures
    wanted: tuple[str | Measure, ...]
    settings: dict[str, dict[str, Any]]
    names: tuple[str, ...]
    measures: tuple[Measure, ...]
    #: what other processes get: a name where there was one, because a function that a user made a
    #: measure of cannot be pickled
    portable: tuple[str | Measure, ...]

    @classmethod
    def of(
        cls,
        wanted: str | Sequence[str | Measure] | None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Choice:
        """Measures by name, with their `settings`, or ready ones."""
        listed = parse_measures(wanted) if wanted is None or isinstance(wanted, str) else wanted
        names = measure_names(listed)
        left = dict(settings or {})
        portable: list[str | Measure] = []
        for measure in listed:
            its = left.pop(measure, None) if isinstance(measure, str) else None
            portable.append(measure if its is None else measures.get(str(measure), **its))
        if left:
            raise InputError(
                f"there are settings for {next(iter(left))!r}, which is not among the measures "
                f"{', '.join(names)}"
            )
        given = {name: dict(chosen) for name, chosen in (settings or {}).items()}
        return cls(tuple(listed), given, tuple(names), made(portable), tuple(portable))

    def described(self) -> dict[str, Any]:
        """What the measures' numbers depend on beside the version of NormLens.

        `source` is None for a built-in measure, and for a user's own the checksum of each of the
        files that its code comes from.
        """
        described: dict[str, dict[str, Any]] = {
            name: {"options": measure.options, "source": sources_of(name, measure)}
            for name, measure in zip(self.names, self.measures, strict=True)
        }
        for measure in described.values():
            for option, functions in code_named(measure["options"]).items():
                measure[option] = {
                    name: module_sources(name.partition(":")[0]) for name in functions
                }
        return json.loads(json.dumps(described, default=str))

    def for_model(self, identity: Mapping[str, Any]) -> Choice:
        """The same measures for the model that a manifest describes."""
        return replace(self, measures=made(self.portable, has_two_stacks(identity)))

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every table as a manifest describes it."""
        owners = {
            table: (name, measure)
            for name, measure in zip(self.names, self.measures, strict=True)
            for table in measure.tables
        }
        tables: dict[str, dict[str, Any]] = {}
        for table, schema in schemas(self.measures).items():
            name, measure = owners.get(table, (None, None))
            tables[table] = {
                "measure": name,
                "columns": {field.name: str(field.type) for field in schema},
                "order": ["index"] if measure is None else list(measure.order[table]),
                "merged": measure is not None and table in measure.sql,
            }
        return tables


def measure_names(wanted: Sequence[str | Measure]) -> list[str]:
    """What a run calls its measures; nothing is imported for it."""
    return [m if isinstance(m, str) else m.name for m in wanted]


def made(listed: Sequence[str | Measure], two_stacks: bool = False) -> tuple[Measure, ...]:
    """The measures behind names; with `two_stacks`, in their form for an encoder–decoder."""
    named = (measures.get(m) if isinstance(m, str) else m for m in listed)
    return tuple(map(for_two_stacks, named) if two_stacks else named)

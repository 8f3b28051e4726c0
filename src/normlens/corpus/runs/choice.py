"""Which model, data and measures a run takes, what its manifest says of them, what is refused."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normlens.corpus import measures
from normlens.corpus.data.formats import has_target
from normlens.corpus.data.readers import NAME, MemoryData, find_data, is_in_memory, open_data
from normlens.corpus.data.records import Data, ReadOptions, sha256_of
from normlens.corpus.engines.block_rows import schemas
from normlens.corpus.measures import Measure
from normlens.corpus.measures.base import for_two_stacks
from normlens.corpus.measures.user_code import module_sources, sources_of
from normlens.corpus.runs.folder import (
    OBJECT,
    TEMPORARY,
    Folder,
    RunError,
    fixed_path,
    model_name,
)
from normlens.corpus.runs.ledger import SIDE_FILES
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest, has_two_stacks
from normlens.corpus.runs.options import Execution, RunOptions, code_named, parse_measures
from normlens.errors import InputError, OutputError
from normlens.lens import Lens
from normlens.loading.hub import is_cached, is_embedded, is_local
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


# Reasons to refuse a run before it starts or goes on.


#: Settings of measures that name a file, whose checksum the manifest has among their options.
FILES = (("alignment", "gold"),)


def check_free(folder: Folder) -> None:
    """Refuse a folder that holds anything else."""
    names = folder.names()
    if MANIFEST in names:
        raise RunError(
            f"{str(folder)!r} holds a run already; finish it with normlens run --resume {folder}, "
            "or choose another --out"
        )
    # The manifest comes before everything else but the lock.
    foreign = [name for name in names if name not in SIDE_FILES and not name.endswith(TEMPORARY)]
    if foreign:
        raise OutputError(
            f"{str(folder)!r} holds other files ({foreign[0]!r}); give --out a new folder"
        )


def check_targets(model: Mapping[str, Any], data: Data) -> None:
    """Refuse sources without any target for an encoder–decoder that cannot generate them."""
    if model.get("generates", True) or any(has_target(record) for record in data):
        return
    raise InputError(
        f"{data.name!r} has no targets, and {model['name']} has no head that could generate them; "
        "give pairs (source ||| target, or --pair-column), or a model with its head"
    )


def check_named(folder: Folder, options: RunOptions, measures: bool, settings: bool) -> None:
    """Refuse to import code that a run's options name unless the user names it too."""
    user_measures = [name for name in options.measures if ":" in name]
    functions = any(code_named(given) for given in options.settings.values())
    if (not user_measures or measures) and (not functions or settings):
        return
    again = [f"--measures {','.join(options.measures)}"] if user_measures else []
    for measure, given in options.settings.items() if functions else ():
        for name, value in given.items():
            text = value if isinstance(value, str) else json.dumps(value)
            again.append(f"--set {shlex.quote(f'{measure}.{name}={text}')}")
    raise InputError(
        f"{str(folder)!r} takes code of your own, which is imported only if you name it: add "
        f"{' '.join(again)}"
    )


def check_model_is_here(folder: Folder, options: RunOptions) -> None:
    """Refuse to fetch a model from the hub because a run's files name it."""
    name = options.model
    if is_embedded(name) or is_local(name) or is_cached(name, options.revision):
        return
    raise InputError(
        f"{str(folder)!r} names a model that is not on this machine, and a model is fetched from "
        f"the hub only if you name it: add --model {shlex.quote(name[:200])}"
    )


def check_files(folder: Folder, manifest: Manifest) -> None:
    """Refuse files that the settings of a run's measures name unless they are the run's.

    Whoever wrote the run's files may have named any file, so they are compared before they are
    read.
    """
    for measure, option in FILES:
        path = manifest.options.settings.get(measure, {}).get(option)
        if path is None:
            continue
        recorded = manifest.measures.get(measure, {}).get("options", {}).get(option)
        try:
            file = Path(str(path)).expanduser()
            same = file.is_file() and f"sha256:{sha256_of(file)}" == recorded
        except (OSError, ValueError, RuntimeError):  # a name that no file can have
            same = False
        if not same:
            raise RunError(
                f"cannot resume {str(folder)!r}: {str(path)[:200]!r} is not the file ({option}) "
                "that the run began with; put that one back, or start a new run with another --out"
            )


def check_objects(options: RunOptions, model: bool, data: bool) -> None:
    """Refuse to go on without the objects that a run was given, which no name can bring back."""
    lacking = [
        f"{name}=…"
        for name, given, is_object in (
            ("model", model, options.model.endswith(OBJECT)),
            ("data", data, options.data == NAME),
        )
        if is_object and not given
    ]
    if lacking:
        raise InputError(
            "this run was given objects, so pass the same again in Python: "
            f"normlens.resume(out, {', '.join(lacking)})"
        )

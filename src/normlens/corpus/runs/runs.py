"""Runs over a corpus: start one, or resume one that was stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data
from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.choice import open_engine
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.choice import Choice, measure_names
from normlens.corpus.runs.folder import Folder, open_folder
from normlens.corpus.runs.lock import locked
from normlens.corpus.runs.manifest import (
    Manifest,
    changed_options,
    changed_tables,
    changes,
    refuse,
)
from normlens.corpus.runs.options import (
    Execution,
    RunKeywords,
    RunOptions,
    parse_measures,
    parse_names,
    split_keywords,
)
from normlens.corpus.runs.paths import fixed_path, model_name
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.recovery import recover
from normlens.corpus.runs.refusals import check_free, check_named, check_targets
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.work import compute_shards
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.option_fields import shows_fields_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@shows_fields_of(RunOptions, Execution, without=("model", "data"))
def run(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Data,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[RunKeywords],
) -> Run:
    """Measure every sequence of `data` with `model` and keep the tables in the folder `out`.

    `out` is a new folder or a URL that fsspec knows. A sequence that cannot be analysed is a row of
    the table `failures`. The options are those of `RunOptions`, on which the tables depend, and of
    `Execution`, which say how the work is done; measures may also be ready ones.
    """
    given, how = split_keywords(options, "run")
    given["extra_columns"] = parse_names(given.get("extra_columns", ()))
    chosen = Choice.of(given.pop("measures", None), given.pop("settings", None))
    fixed = RunOptions(
        model=model_name(model),
        data=data.name if isinstance(data, Data) else fixed_path(data),
        measures=chosen.names,
        settings=chosen.settings,
        **given,
    )
    execution = Execution(**how)
    chosen.tables()  # raises where two measures write one
    folder = open_folder(out)
    progress = progress or Progress()
    check_free(folder)
    source = data if isinstance(data, Data) else _open_data(fixed)
    if isinstance(data, Data) and fixed.limit is not None:
        raise InputError("the data is open already; pass its limit to open_data")
    described = _described(source)
    with locked(folder) as lock:
        check_free(folder)
        progress.say(f"loading {fixed.model}")
        with _engine(fixed, chosen, execution, model) as engine:
            check_targets(engine.identity, source)
            manifest = Manifest(
                options=fixed,
                model=engine.identity,
                data=described,
                tables=chosen.for_model(engine.identity).tables(),
                measures=chosen.described(),
                execution=asdict(execution),
                versions=engine.by["versions"],
                machine={k: v for k, v in engine.by.items() if k not in ("versions", "model")},
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            )
            # What lies there without a manifest is of a run that was stopped before it began.
            recover(folder, manifest)
            manifest.save(folder)
            compute_shards(folder, lock, manifest, source, engine, {}, progress)
    return _run(folder, manifest, chosen)


@shows_fields_of(RunOptions, Execution, without=("model", "data"))
def resume(
    out: str | os.PathLike[str],
    *,
    model: Lens | str | os.PathLike[str] | None = None,
    data: Data | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[RunKeywords],
) -> Run:
    """Finish a run that was stopped; one that is complete is checked and left as it is.

    Everything that the tables depend on comes from the run itself. Such an option may be given
    again, but not another value. Code of your own (measures ``my_module:my_measure``, relations in
    `settings`) has to be named again: nothing is imported because a run's files say so. Shards
    whose files are damaged are computed again.
    """
    folder = open_folder(out)
    manifest = Manifest.load(folder)
    progress = progress or Progress()
    given, how = split_keywords(options, "resume")
    if model is not None:
        given["model"] = model_name(model)
    if data is not None:
        given["data"] = data.name if isinstance(data, Data) else fixed_path(data)
    fixed = manifest.options
    measures = given.pop("measures", None)
    wanted = fixed.measures if measures is None else measures
    listed = parse_measures(wanted) if isinstance(wanted, str) else wanted
    given["measures"] = measure_names(listed)
    if "extra_columns" in given:
        given["extra_columns"] = parse_names(given["extra_columns"])
    settings = given.pop("settings", None)
    if settings is not None:
        given["settings"] = json.loads(json.dumps(settings))
    refuse(folder, changed_options(manifest, given))
    check_named(folder, fixed, measures is not None, settings is not None)
    chosen = Choice.of(listed, fixed.settings)
    refuse(folder, changed_tables(manifest, chosen.for_model(manifest.model).tables()))
    with locked(folder) as lock:
        source = data if isinstance(data, Data) else _open_data(fixed)
        now = {"data": _described(source), "measures": chosen.described()}
        refuse(folder, changes(manifest, now))
        progress.say(f"loading {fixed.model}")
        # "auto" must come to what it came to before, whatever a checkpoint or a machine suggests.
        before = {name: manifest.model[name] for name in ("device", "dtype")}
        execution = Execution(**{**before, **how})
        with _engine(fixed, chosen, execution, model) as engine:
            refuse(
                folder,
                changes(manifest, {"model": engine.identity, "versions": engine.by["versions"]}),
            )
            _warn(manifest, engine, progress)
            done = recover(folder, manifest)
            compute_shards(folder, lock, manifest, source, engine, done, progress)
    return _run(folder, manifest, chosen)


# What a run is made of ----------------------------------------------------------------------------


def _run(folder: Folder, manifest: Manifest, chosen: Choice) -> Run:
    """The run, with the measures that the user named for it."""
    given: RunKeywords = {"measures": chosen.wanted, "settings": chosen.settings}
    return Run(folder, manifest, chosen.for_model(manifest.model).measures, given)


def _described(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "sequences": sum(1 for _ in data),
    }


def _open_data(options: RunOptions) -> Data:
    return open_data(
        options.data,
        column=options.column,
        pair_column=options.pair_column,
        paragraphs=options.paragraphs,
        limit=options.limit,
        extra=options.extra_columns,
    )


def _engine(
    options: RunOptions,
    chosen: Choice,
    execution: Execution,
    model: Lens | str | os.PathLike[str] | None,
) -> Engine:
    task = Task(
        options=options,
        measures=chosen.portable,
        device=execution.device,
        dtype=execution.dtype,
        batch_size=execution.batch_size,
        trust_remote_code=execution.trust_remote_code,
    )
    loaded = None if model is None or isinstance(model, (str, os.PathLike)) else model
    return open_engine(task, execution, loaded)


def _warn(manifest: Manifest, engine: Engine, progress: Progress) -> None:
    """Other versions of libraries may change last digits; the shards say which they came from."""
    now = engine.by["versions"]
    other = [
        f"{name} {then} then, {now.get(name)} now"
        for name, then in manifest.versions.items()
        if now.get(name) != then
    ]
    if other:
        progress.say(f"note: the run goes on with other versions ({'; '.join(other)})")

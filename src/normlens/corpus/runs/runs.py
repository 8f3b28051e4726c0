"""Runs over a corpus: start one, or resume one that was stopped."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from torch import nn

from normlens.corpus.data.records import Data
from normlens.corpus.engines.local import open_pool
from normlens.corpus.engines.pool import Pool
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.choice import (
    Choice,
    check_files,
    check_free,
    check_model_is_here,
    check_named,
    check_objects,
    check_targets,
    data_name,
    data_to_compare,
    given_model,
    measure_names,
    opened_data,
)
from normlens.corpus.runs.data_index import index_data, reopen
from normlens.corpus.runs.driver import Driver, recovered
from normlens.corpus.runs.folder import AllFailedError, Folder, SomeFailedWarning, open_folder
from normlens.corpus.runs.kept_pairs import load_kept_pairs, with_kept_pairs
from normlens.corpus.runs.ledger import Ledger, Lock, State, locked
from normlens.corpus.runs.manifest import (
    Manifest,
    changed_options,
    changes,
    refuse,
)
from normlens.corpus.runs.options import Execution, RunOptions, parse_measures, parse_names
from normlens.corpus.runs.progress import Progress, for_caller
from normlens.corpus.runs.results import Run, failures_told
from normlens.corpus.runs.status import check_heartbeat
from normlens.errors import InputError, NormLensError
from normlens.lens import Lens
from normlens.options import check_keywords, shows_fields_of, split_keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import RunKeywords


@shows_fields_of(RunOptions, Execution, without=("model", "data"))
def run(
    model: str | os.PathLike[str] | Lens | nn.Module | Callable[..., object],
    data: str | os.PathLike[str] | Data | Iterable[object],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[RunKeywords],
) -> Run:
    """Measure every sequence of `data` with `model` and keep the tables in the folder `out`.

    `model` is a name, a folder, a lens, or an object that `normlens.load` takes. `data` is a name,
    a path, an open data set, an iterable of texts, or a table (pandas, pyarrow, datasets) with the
    text in the column `column`. A run of objects is resumed with the same ones.

    `out` is a new folder or a URL that fsspec knows. A sequence that cannot be analysed is a row of
    the table `failures`: a warning tells how many there are, and if they are all, that is an error
    (`AllFailedError`). The options are those of `RunOptions`, on which the tables depend, and of
    `Execution`, which say how the work is done; measures may also be ready ones.
    """
    check_keywords(run, options)
    how, given = split_keywords(options, Execution)
    given["extra_columns"] = parse_names(given.get("extra_columns", ()))
    chosen = Choice.of(given.pop("measures", None), given.pop("settings", None))
    execution = Execution(**how)
    lens, name = given_model(model, execution)
    fixed = RunOptions(
        model=name,
        data=data_name(data),
        measures=chosen.names,
        settings=chosen.settings,
        **given,
    )
    chosen.tables()  # raises where two measures write one
    folder = open_folder(out)
    progress = progress or for_caller()
    check_free(folder)
    check_heartbeat(execution.heartbeat)
    source = opened_data(fixed, data)
    if isinstance(data, Data) and fixed.limit is not None:
        raise InputError("the data is open already; pass its limit to open_data")
    indexed = index_data(source, fixed.block_size)
    trust = execution.trust_remote_code
    chosen = with_kept_pairs(chosen, fixed, source, lens, progress, trust_remote_code=trust)
    with locked(folder) as lock:
        check_free(folder)
        progress.say(f"loading {fixed.model}")
        with _pool(fixed, chosen, execution, lens, folder, lock) as pool:
            check_targets(pool.identity, source)
            manifest = Manifest(
                options=fixed,
                model=pool.identity,
                data=indexed.described,
                tables=chosen.for_model(pool.identity).tables(),
                measures=chosen.described(),
                execution=asdict(execution),
                versions=pool.by["versions"],
                machine={k: v for k, v in pool.by.items() if k not in ("versions", "model")},
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            )
            manifest.create(folder)
            ledger = Ledger.claim(folder, manifest)
            driver = Driver(folder, lock, manifest, indexed, pool, ledger, progress)
            state = driver.finish(State(0), chosen, execution.heartbeat)
    return _run(folder, manifest, chosen, state)


@shows_fields_of(RunOptions, Execution, without=("model", "data"))
def resume(
    out: str | os.PathLike[str],
    *,
    model: Lens | str | os.PathLike[str] | nn.Module | Callable[..., object] | None = None,
    data: Data | str | os.PathLike[str] | Iterable[object] | None = None,
    progress: Progress | None = None,
    **options: Unpack[RunKeywords],
) -> Run:
    """Finish a run that was stopped; one that is complete is checked and left as it is.

    Everything that the tables depend on comes from the run itself. Such an option may be given
    again, but not another value. Code of your own (measures ``my_module:my_measure``, relations in
    `settings`) has to be named again: nothing is imported because a run's files say so. Nor is
    anything fetched from the hub: a model that is not in its cache has to be named, too. Data that
    is not named again is compared with its fingerprint before a record of it is read. Blocks are
    computed again if files of theirs are lost or were seen to be damaged; `verify` reads them all.
    """
    folder = open_folder(out)
    manifest = Manifest.load(folder)
    progress = progress or for_caller()
    check_keywords(resume, options)
    how, given = split_keywords(options, Execution)
    fixed = manifest.options
    check_objects(fixed, model is not None, data is not None)
    # "auto" must come to what it came to before, whatever a checkpoint or a machine suggests.
    before = {name: manifest.model[name] for name in ("device", "dtype")}
    execution = Execution(**{**before, **how})
    check_heartbeat(execution.heartbeat)
    lens, name = given_model(model, Execution(**how))
    if model is not None:
        given["model"] = name
    if data is not None:
        given["data"] = data_name(data)
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
    check_files(folder, manifest)
    if model is None:
        check_model_is_here(folder, fixed)
    chosen = Choice.of(listed, fixed.settings)
    refuse(folder, changes(manifest, {"tables": chosen.for_model(manifest.model).tables()}))
    with locked(folder) as lock:
        source = data_to_compare(fixed, data)
        indexed = reopen(folder, manifest, source)
        kept = load_kept_pairs(folder, manifest)
        chosen = with_kept_pairs(
            chosen,
            fixed,
            source,
            lens,
            progress,
            trust_remote_code=execution.trust_remote_code,
            stored=kept,
        )
        now = {"data": indexed.described, "measures": chosen.described()}
        refuse(folder, changes(manifest, now))
        progress.say(f"loading {fixed.model}")
        with _pool(fixed, chosen, execution, lens, folder, lock) as pool:
            refuse(
                folder,
                changes(manifest, {"model": pool.identity, "versions": pool.by["versions"]}),
            )
            _warn(manifest, pool, progress)
            state, is_whole = recovered(folder, manifest, verify=execution.verify)
            if is_whole:
                progress.start(manifest.sequences, state.sequences + state.failures)
            else:
                ledger = Ledger.claim(folder, manifest)
                # What the driver before had committed by the time of the claim counts.
                state, _ = recovered(folder, manifest, verify=execution.verify)
                driver = Driver(folder, lock, manifest, indexed, pool, ledger, progress)
                state = driver.finish(state, chosen, execution.heartbeat)
    return _run(folder, manifest, chosen, state)


# What a run is made of ----------------------------------------------------------------------------


def _run(folder: Folder, manifest: Manifest, chosen: Choice, state: State) -> Run:
    """The run, with the measures that the user named for it; raises or warns of failures."""
    given: RunKeywords = {"measures": chosen.wanted, "settings": chosen.settings}
    run = Run(folder, manifest, chosen.for_model(manifest.model).measures, given)
    if state.failures:
        told = failures_told(folder, state.failures, manifest.sequences)
        if not state.sequences:
            raise AllFailedError(f"{told}; the first: {_first_reason(run)}")
        warnings.warn(told, SomeFailedWarning, stacklevel=3)
    return run


def _first_reason(run: Run) -> str:
    """Why the first sequence that failed did."""
    try:
        first = run.sql('SELECT reason FROM failures ORDER BY "index" LIMIT 1')
    except NormLensError as error:
        return str(error)
    return str(first["reason"][0])


def _pool(
    options: RunOptions,
    chosen: Choice,
    execution: Execution,
    lens: Lens | None,
    folder: Folder,
    lock: Lock,
) -> Pool:
    task = Task(options, chosen.portable, folder.everywhere, lock.token, execution)
    return open_pool(task, lens)


def _warn(manifest: Manifest, pool: Pool, progress: Progress) -> None:
    """Other versions of libraries may change last digits; the records say which they came from."""
    now = pool.by["versions"]
    other = [
        f"{name} {then} then, {now.get(name)} now"
        for name, then in manifest.versions.items()
        if now.get(name) != then
    ]
    if other:
        progress.say(f"note: the run goes on with other versions ({'; '.join(other)})")

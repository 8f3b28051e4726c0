"""Runs over a corpus: start one, or resume one that was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from typing import Any

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data
from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.choice import open_engine
from normlens.corpus.engines.worker import Task
from normlens.corpus.measures import Measure
from normlens.corpus.runs.choice import Choice, measure_names
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import Folder, open_folder
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.lock import Lock, locked
from normlens.corpus.runs.manifest import (
    Manifest,
    changed_options,
    changed_tables,
    changes,
    refuse,
)
from normlens.corpus.runs.options import Execution, Options, fixed_path, parse_measures
from normlens.corpus.runs.plan import shards_to_do
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.recovery import check_complete, recover
from normlens.corpus.runs.refusals import check_free, check_named
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.shards import Done, Finished, commit
from normlens.errors import InputError, NormLensError, OutputError
from normlens.lens import Lens

_EXECUTION = tuple(field.name for field in fields(Execution))


def run(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Data,
    out: str | os.PathLike[str],
    *,
    measures: str | Sequence[str | Measure] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    mask: float | None = None,
    limit: int | None = None,
    max_length: int | None = 128,
    truncate: bool = True,
    seed: int = 0,
    column: str | None = None,
    pair_column: str | None = None,
    paragraphs: bool = False,
    revision: str | None = None,
    precision: str = "auto",
    shard_size: int = 64,
    progress: Progress | None = None,
    **execution: Any,
) -> Run:
    """Measure every sequence of `data` with `model` and keep the tables in the folder `out`.

    `out` is a new folder or a URL that fsspec knows. `settings` are options of measures, such as
    ``{"amplification": {"axis": "target"}}``. `mask` replaces that share of the tokens by mask
    tokens. A sequence that cannot be analysed is a row of the table `failures`. The rest says how
    the work is done: `device`, `dtype`, `engine` ("local" or "ray"), `workers`, `batch_size`,
    `address`, `gpus_per_worker`, `trust_remote_code`.
    """
    chosen = Choice.of(measures, settings)
    options = Options(
        model=model_name(model),
        data=data.name if isinstance(data, Data) else fixed_path(data),
        measures=chosen.names,
        settings={name: dict(own) for name, own in (settings or {}).items()},
        mask=mask,
        limit=limit,
        max_length=max_length,
        truncate=truncate,
        seed=seed,
        column=column,
        pair_column=pair_column,
        paragraphs=paragraphs,
        revision=revision,
        precision=precision,
        shard_size=shard_size,
    )
    how = _execution(execution)
    tables = chosen.tables()
    folder = open_folder(out)
    progress = progress or Progress()
    check_free(folder)
    source = data if isinstance(data, Data) else _open_data(options)
    if isinstance(data, Data) and limit is not None:
        raise InputError("the data is open already; pass its limit to open_data")
    described = _described(source)
    with locked(folder) as lock:
        check_free(folder)
        progress.say(f"loading {options.model}")
        with _engine(options, chosen, how, model) as engine:
            manifest = Manifest(
                options=options,
                model=engine.identity,
                data=described,
                tables=tables,
                measures=chosen.described(),
                execution=asdict(how),
                versions=engine.by["versions"],
                machine={k: v for k, v in engine.by.items() if k not in ("versions", "model")},
                created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            )
            # What lies there without a manifest is of a run that was stopped before it began.
            recover(folder, manifest)
            manifest.save(folder)
            _work(folder, lock, manifest, source, engine, {}, progress)
    return _run(folder, manifest, chosen)


def resume(
    out: str | os.PathLike[str],
    *,
    model: Lens | str | os.PathLike[str] | None = None,
    data: Data | str | os.PathLike[str] | None = None,
    measures: str | Sequence[str | Measure] | None = None,
    progress: Progress | None = None,
    **given: Any,
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
    how = {name: given.pop(name) for name in _EXECUTION if name in given}
    if model is not None:
        given["model"] = model_name(model)
    if data is not None:
        given["data"] = data.name if isinstance(data, Data) else fixed_path(data)
    own = manifest.options
    wanted = own.measures if measures is None else measures
    listed = parse_measures(wanted) if isinstance(wanted, str) else wanted
    given["measures"] = measure_names(listed)
    if "settings" in given:
        given["settings"] = json.loads(json.dumps(given["settings"]))
    unknown = [name for name in given if name not in own.as_json()]
    if unknown:
        raise InputError(f"resume takes no option {unknown[0]!r}")
    refuse(folder, changed_options(manifest, given))
    check_named(folder, own, measures is not None, "settings" in given)
    chosen = Choice.of(listed, own.settings)
    refuse(folder, changed_tables(manifest, chosen.tables()))
    with locked(folder) as lock:
        source = data if isinstance(data, Data) else _open_data(own)
        now = {"data": _described(source), "measures": chosen.described()}
        refuse(folder, changes(manifest, now))
        progress.say(f"loading {manifest.options.model}")
        # "auto" must come to what it came to before, whatever a checkpoint or a machine suggests.
        before = {name: manifest.model[name] for name in ("device", "dtype")}
        execution = _execution({**before, **how})
        with _engine(manifest.options, chosen, execution, model) as engine:
            refuse(
                folder,
                changes(manifest, {"model": engine.identity, "versions": engine.by["versions"]}),
            )
            _warn(manifest, engine, progress)
            done = recover(folder, manifest)
            _work(folder, lock, manifest, source, engine, done, progress)
    return _run(folder, manifest, chosen)


def _work(
    folder: Folder,
    lock: Lock,
    manifest: Manifest,
    data: Data,
    engine: Engine,
    done: dict[int, Done],
    progress: Progress,
) -> None:
    counts = [shard.sequences + shard.failures for shard in done.values()]
    progress.start(manifest.sequences, sum(counts))
    expected = digest(manifest.model)
    for shard in _memory_checked(engine.compute(shards_to_do(data, manifest, done))):
        if shard.by["model"] != expected:
            raise RunError(
                f"the worker on {shard.by['host']} has another model, or another kind of device, "
                "than the run began with; give every node the same and resume"
            )
        lock.check()
        try:
            commit(folder, manifest, shard)
        except OutputError as error:
            raise OutputError(
                f"{error}; what is done is kept, go on with: normlens run --resume {folder}"
            ) from error
        progress.advance(shard.sequences + shard.failures, shard.failures)
    lock.check()
    check_complete(folder, manifest)


def _memory_checked(shards: Iterator[Finished]) -> Iterator[Finished]:
    try:
        yield from shards
    except MemoryError as error:
        if isinstance(error, NormLensError):
            raise
        raise RunError(
            "there is not enough memory; what is done is kept: resume the run, with fewer "
            "--workers or a smaller --batch-size"
        ) from error


# What a run is made of ----------------------------------------------------------------------------


def model_name(model: Any) -> str:
    """What a run calls a model: a folder absolutely, everything else as it is given."""
    if not isinstance(model, (str, os.PathLike)):
        return model.name
    name = os.fspath(model)
    # A folder without a model may happen to be called like one that is not a folder.
    no_model = os.path.isdir(name) and not os.path.isfile(os.path.join(name, "config.json"))
    return name if no_model else fixed_path(name)


def _run(folder: Folder, manifest: Manifest, chosen: Choice) -> Run:
    """The run, with the measures that the user named for it."""
    given = {"measures": chosen.wanted, "settings": chosen.settings}
    return Run(folder, manifest, chosen.measures, given)


def _described(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "sequences": sum(1 for _ in data),
    }


def _open_data(options: Options) -> Data:
    return open_data(
        options.data,
        column=options.column,
        pair_column=options.pair_column,
        paragraphs=options.paragraphs,
        limit=options.limit,
    )


def _execution(given: Mapping[str, Any]) -> Execution:
    unknown = [name for name in given if name not in _EXECUTION]
    if unknown:
        raise InputError(f"run takes no option {unknown[0]!r}")
    return Execution(**given)


def _engine(options: Options, chosen: Choice, execution: Execution, model: Any) -> Engine:
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

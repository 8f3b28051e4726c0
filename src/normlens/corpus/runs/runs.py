"""Runs over a corpus: start one, or resume one that was stopped."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from torch import nn

from normlens.corpus.data.records import Data
from normlens.corpus.engines.local import open_pool
from normlens.corpus.engines.pool import Pool
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.check import Verified
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
from normlens.corpus.runs.data_index import IndexedData, index_data, reopen
from normlens.corpus.runs.folder import (
    AllFailedError,
    Folder,
    RunError,
    SomeFailedWarning,
    open_folder,
)
from normlens.corpus.runs.identity import digest
from normlens.corpus.runs.kept_pairs import load_kept_pairs, save_kept_pairs, with_kept_pairs
from normlens.corpus.runs.ledger import (
    Block,
    FileSet,
    Ledger,
    Lock,
    State,
    Unwritten,
    locked,
    read_state,
    strays,
    wrong_files,
)
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import (
    Manifest,
    changed_options,
    changes,
    refuse,
)
from normlens.corpus.runs.options import Execution, RunOptions, parse_measures, parse_names
from normlens.corpus.runs.progress import Progress, for_caller
from normlens.corpus.runs.results import Run, failures_told
from normlens.corpus.runs.status import HeartbeatWriter, check_heartbeat
from normlens.errors import InputError, NormLensError, OutputError
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


# The work of a driver: blocks handed out, and files recorded as workers report them.


def recovered(folder: Folder, manifest: Manifest, *, verify: bool = False) -> tuple[State, bool]:
    """Read which blocks can be kept, and whether there is nothing left to do; nothing is written.

    The size of every file is compared. Files that `check` or a query has seen damaged are read
    again; the others are compared with their checksums by whoever reads them, or here if `verify`.
    """
    state, stamps = read_state(folder, manifest, salvage=True), folder.stamps()
    wrong = wrong_files(state, stamps)
    verified = Verified(folder)
    suspects = verified.suspects()
    doubtful = [file for file in state.all_files() if verify or file.name in suspects]
    state = state.without([*wrong, *verified.wrong(doubtful, again=True)])
    is_whole = state.blocks_done == manifest.blocks and not state.damaged
    return state, is_whole and not strays(state, stamps, state.epoch)


@dataclass
class Driver:
    """A run in the hands of the process that has claimed it."""

    folder: Folder
    lock: Lock
    manifest: Manifest
    data: IndexedData
    pool: Pool
    ledger: Ledger
    progress: Progress

    def __post_init__(self) -> None:
        self._model = digest(self.manifest.model)
        self._deaths: Counter[int] = Counter()  # of workers, by block
        self._commits = False  # whether it is about to
        self._shown = bytearray(self.manifest.blocks)  # whether progress counts a block

    def finish(self, state: State, chosen: Choice, heartbeat: str | None) -> State:
        """Go on from a state that was read after the claim, until every block is done."""
        try:
            self._begin(state, chosen)
            with HeartbeatWriter(
                self.folder, self.manifest, state, self.ledger.epoch, heartbeat
            ) as heartbeat_writer:
                self.progress.start(self.manifest.sequences, state.sequences + state.failures)
                self._compute(heartbeat_writer)
                self.progress.stop()
            self.lock.check()
            return self._checked()
        except OutputError as error:
            raise OutputError(
                f"{error}; what is done is kept, go on with: normlens run --resume {self.folder}"
            ) from error

    def _begin(self, state: State, chosen: Choice) -> None:
        self._deaths.update(state.deaths)
        first = state.done(self.manifest.blocks).find(0)
        if self.pool.dies_with_workers and self.ledger.epoch > 1 and first >= 0:
            self._deaths[first] += 1  # which the process before may have died of
            self.pool.write_early()
        self.ledger.begin(replace(state, deaths=dict(self._deaths)))
        self.data.save(self.folder)
        save_kept_pairs(self.folder, self.manifest, chosen)

    def _compute(self, beat: HeartbeatWriter) -> None:
        def read(number: int) -> Block:
            start = time.perf_counter()
            records, first = self.data.block(number), number * self.manifest.options.block_size
            beat.handed_out(number)
            return Block(number, first, records, time.perf_counter() - start, self.ledger.epoch)

        try:
            for result in self.pool.compute(self.ledger.left(), read, self._deaths):
                if isinstance(result, Unwritten):
                    self._show(result, beat)
                else:
                    self._commit(result, beat)
        except (KeyboardInterrupt, NormLensError, MemoryError) as error:
            self.lock.check()  # where the folder is gone, that is what to say
            if not self._commits or isinstance(error, KeyboardInterrupt):
                with suppress(NormLensError, MemoryError):
                    for written in self.pool.rest():
                        self._commit(written, beat)
            if not isinstance(error, MemoryError) or isinstance(error, NormLensError):
                raise
            raise RunError(
                "there is not enough memory; what is done is kept: resume the run, with fewer "
                "--workers or a smaller --batch-size"
            ) from error

    def _commit(self, written: FileSet, beat: HeartbeatWriter) -> None:
        self._commits = True
        if written.by["model"] != self._model:
            raise RunError(
                f"the worker on {written.by['host']} has another model, or another kind of "
                "device, than the run began with; give every node the same and resume"
            )
        self.lock.check()
        deaths = {number: self._deaths[number] for number in written.blocks}
        told = {number: count for number, count in deaths.items() if count}
        written = replace(written, deaths=told)
        self.ledger.commit(written)
        self._commits = False
        beat.recorded(written)
        for number in written.blocks:
            self._show(Unwritten(number), beat)
        if written.failures:
            self.progress.advance(0, written.failures)

    def _show(self, block: Unwritten, beat: HeartbeatWriter) -> None:
        """Count a block once it is computed, and no longer if that is lost."""
        number, lost = block
        if self._shown[number] == lost:
            self._shown[number] = not lost
            count = self.manifest.size(number) * (-1 if lost else 1)
            beat.computed(number, count)
            self.progress.advance(count, 0)

    def _checked(self) -> State:
        """Refuse to end a run whose records, files or manifest are gone; remove what is stray."""
        try:
            same = Manifest.load(self.folder).digest == self.manifest.digest
        except RunError:
            same = False
        if not same:
            raise RunError(
                f"{MANIFEST} vanished from {str(self.folder)!r} or was changed while the run went "
                "on; the blocks are done, put it back"
            )
        self.ledger.check()
        state, stamps = read_state(self.folder, self.manifest, salvage=True), self.folder.stamps()
        lost = [*state.damaged, *wrong_files(state, stamps)]
        if state.epoch != self.ledger.epoch or state.blocks_done < self.manifest.blocks:
            lost.append("records")
        if lost:
            raise RunError(
                f"{len(lost)} files, such as {lost[0]}, vanished from {str(self.folder)!r} or were "
                "changed while the run went on; compute them again with normlens run --resume "
                f"{self.folder}"
            )
        self.ledger.sweep(state, stamps)
        return state


# What a run is made of.


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

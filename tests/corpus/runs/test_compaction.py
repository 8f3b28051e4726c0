"""Compaction: few files, the same bits, whatever stops it, and readers that do not notice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from forking import run_python

from normlens import cli
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import compaction as compaction_module
from normlens.corpus.runs import compaction_plan
from normlens.corpus.runs import folder as folders
from normlens.corpus.runs.folder import LocalFolder, RunError
from normlens.corpus.runs.log import empty_state
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.progress import Progress
from normlens.errors import InputError, NormLensError, OutputError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N, SHARD = 24, 2
SHARDS = N // SHARD
OPTIONS: dict[str, Any] = {"shard_size": SHARD, "measures": examples.MEASURES}


@pytest.fixture(scope="module")
def whole(place: Path, lens: Any) -> Run:
    """A run whose files are as its workers wrote them."""
    return run(lens, place / "corpus.txt", place / "whole", file_size=0, **OPTIONS)


@pytest.fixture(scope="module")
def small(place: Path, lens: Any) -> Run:
    """The same with fewer tables and shards."""
    options = {"measures": "norms", "shard_size": 2, "limit": 6, "file_size": 0}
    return run(lens, place / "corpus.txt", place / "small", **options)


@pytest.fixture
def copied(whole: Run, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(whole.folder.url, tmp_path / "run"))


@pytest.fixture
def three_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_plan, "FILES", 3)


def files(out: Any) -> list[str]:
    """The files of tables, as they lie in a run's folder."""
    path = Path(str(out))
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*.parquet"))


def test_a_run_is_compacted_and_stays_the_same(copied: Run, whole: Run) -> None:
    before = files(copied.folder)
    assert len(before) == SHARDS * len(copied.tables)
    told = copied.compact()
    assert (told.before, told.after) == (len(before), len(copied.tables))
    after = files(copied.folder)
    assert len(after) == len(copied.tables)
    assert all(name.startswith("tables/") for name in after)
    examples.assert_same_tables(copied, whole, tolerance=0)
    examples.assert_each_once(copied)
    assert copied.check().sound
    assert copied.status().complete
    # A second time there is nothing to do, and no file is written again.
    assert str(copied.compact()) == f"{len(after)} files, none of which are to be joined"
    assert files(copied.folder) == after


def test_queries_without_an_order_give_the_rows_in_theirs(copied: Run, whole: Run) -> None:
    copied.compact()
    for table in ("sequences", "similarity", "mixing", "amplification_distance"):
        query = f"SELECT * FROM {table}"
        examples.assert_same_frames(copied.sql(query), whole.sql(query), table, tolerance=0)


def test_aggregates_hold_each_key_once(copied: Run, whole: Run) -> None:
    """What is over the corpus does not grow with it, and a query has little to sum."""
    copied.compact()
    state = read_state(copied.folder, copied.manifest)
    for table in ("norms_dimensions", "amplification_pairs"):
        [file] = state.files(table)
        assert file.rows == len(whole.table(table))
    [sample] = state.files("amplification_sample")
    assert sample.rows == len(whole.table("amplification_sample"))


def test_a_run_compacts_itself(
    place: Path, lens: Any, whole: Run, tmp_path: Path, three_at_a_time: None
) -> None:
    done = run(lens, place / "corpus.txt", tmp_path / "run", **OPTIONS)
    assert len(files(done.folder)) == len(done.tables)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert done.check().sound
    log = [name for name in done.folder.names() if name.startswith("log/")]
    assert len(log) <= 4


def test_few_shards_are_left_as_they_are(place: Path, lens: Any, tmp_path: Path) -> None:
    options = {"measures": "norms", "shard_size": 4, "limit": 8}
    done = run(lens, place / "corpus.txt", tmp_path / "run", **options)
    assert len(files(done.folder)) == 2 * len(done.tables)


@pytest.mark.parametrize("megabytes", [0.01, 0.03])
def test_files_become_as_large_as_they_should(copied: Run, whole: Run, megabytes: float) -> None:
    copied.compact(file_size=megabytes)
    size = megabytes * (1 << 20)
    state = read_state(copied.folder, copied.manifest)
    several = 0
    for table in copied.tables:
        parts = [part for part in state.compacted if part.table == table]
        several += len(parts) > 1
        shards = [number for part in parts for number in range(part.first, part.last + 1)]
        alone = [n for n in state.numbers.tolist() if n not in shards]
        assert sorted(shards + alone) == list(range(SHARDS))
        # Each has its size but the last, and what was large already was not touched.
        assert all(part.file.bytes >= size / 2 for part in parts[:-1]), table
        if not alone:
            assert all(part.file.bytes <= 2 * size for part in parts), table
    assert several
    examples.assert_same_tables(copied, whole, tolerance=0)


def test_a_gap_stays_a_gap(
    place: Path, lens: Any, whole: Run, tmp_path: Path, three_at_a_time: None
) -> None:
    """A shard that is not done yet is not joined over, and its rows come to their place later."""
    out = Path(shutil.copytree(whole.folder.url, tmp_path / "run"))
    lost = [name for name in files(out) if "shard-000005" in name]
    for name in lost:
        (out / name).unlink()
    assert not Run.open(out).check().sound
    with pytest.raises(RunError, match=r"is missing.*the other files are compacted"):
        Run.open(out).compact()
    done = resume(out, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert len(files(out)) == len(done.tables)
    assert done.check().sound


# What is damaged ----------------------------------------------------------------------------------


def test_a_damaged_file_is_not_compacted(copied: Run, whole: Run, lens: Any) -> None:
    """A checksum of its own must not make a damaged file sound."""
    out = Path(copied.folder.url)
    hurt = next(name for name in files(out) if "mixing/shard-000004" in name)
    examples.flip(out / hurt, 100)
    with pytest.raises(RunError, match=r"shard-000004.*is damaged.*normlens run --resume"):
        copied.compact()
    assert hurt in files(out)
    with pytest.raises(RunError, match="damaged"):
        copied.table("mixing")
    examples.assert_same_frames(copied.table("norms"), whole.table("norms"), "norms", 0)
    done = resume(out, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)


@pytest.mark.parametrize("table", ["mixing", "norms_dimensions"])
def test_a_damaged_compacted_file_is_computed_again(
    copied: Run, whole: Run, lens: Any, table: str
) -> None:
    """Only its table; files of other tables with the same shards stay."""
    out = Path(copied.folder.url)
    copied.compact(file_size=0.03)
    [hurt, *_] = [name for name in files(out) if name.startswith(f"tables/{table}/")]
    others = [name for name in files(out) if name.startswith("tables/") and name != hurt]
    assert len(others) > 5
    examples.flip(out / hurt, 200)
    with pytest.raises(RunError, match="damaged"):
        copied.table(table)
    answers: list[str] = []

    class Watching(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            try:
                answers.append(str(len(Run.open(out).table("sequences"))))
            except RunError as error:
                answers.append(str(error))

    done = resume(out, model=lens, progress=Watching(), file_size=0)
    # Between times a table would answer for other shards than the next one.
    *refused, last = answers
    assert refused
    assert all("the tables answer again when these are computed" in line for line in refused)
    assert last == str(N)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert set(others) <= set(files(out))
    assert done.check().sound
    done.compact()
    examples.assert_same_tables(done, whole, tolerance=0)


# What stops it ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kill_at_any_call_leaves_the_same_bits(small: Run, tmp_path: Path) -> None:
    """At each fifth; the script alone tries all of them."""
    script = Path(__file__).with_name("killed_compactions.py")
    done = run_python(script, small.folder.url, tmp_path, 5)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == [], done.stderr
    assert report["calls"] > 60


class Failing:
    """Raises at the n-th call of a step, before it or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, after: bool):
        self.left, self.after = at, after
        for owner, name in (
            (folders.LocalFolder, "writing"),
            (folders.LocalFolder, "append"),
            (folders.LocalFolder, "read_all"),
            (folders.LocalFolder, "remove_all"),
            (compaction_module.JoinedFile, "add"),
            (compaction_module.JoinedFile, "close"),
        ):
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise OutputError("the disk is full")
            result = real(*args, **options)
            if self.left == 0:
                raise OutputError("the disk is full")
            return result

        return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_at_any_step_leaves_the_same_bits(
    small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    at, failures, expected = 0, 0, examples.frames_of(small)
    while True:
        at += 1
        out = Path(shutil.copytree(small.folder.url, tmp_path / f"run-{at}"))
        with monkeypatch.context() as context:
            failing = Failing(context, at, after)
            try:
                Run.open(out).compact()
            except OutputError as error:
                assert str(error).startswith("the disk is full")  # noqa: PT017
                failures += 1
        found = Run.open(out)
        examples.assert_same_tables(found, expected, tolerance=0)
        if failing.left > 0:
            break
        found.compact()
        examples.assert_same_tables(found, expected, tolerance=0)
        assert found.check().sound
        assert len(files(out)) == len(found.tables)
        shutil.rmtree(out)
    assert failures > 20


def test_a_run_does_not_fail_because_its_files_cannot_be_joined(
    place: Path,
    lens: Any,
    whole: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    three_at_a_time: None,
) -> None:
    said: list[str] = []

    class Noting(Progress):
        def say(self, text: str) -> None:
            said.append(text)

    def full(*_: Any, **__: Any) -> Any:
        raise OutputError("cannot write: the disk is full")

    with monkeypatch.context() as context:
        context.setattr(compaction_module.JoinedFile, "close", full)
        done = run(lens, place / "corpus.txt", tmp_path / "run", progress=Noting(), **OPTIONS)
    assert said[-1] == "note: some files were not compacted: cannot write: the disk is full"
    assert len(files(done.folder)) == SHARDS * len(done.tables)
    examples.assert_same_tables(done, whole, tolerance=0)
    done.compact()
    examples.assert_same_tables(done, whole, tolerance=0)


@pytest.mark.slow
def test_killed_runs_that_compact_themselves_come_to_the_same_bits(
    place: Path, whole: Run, tmp_path: Path
) -> None:
    """Kills at random moments and calls, among them those of the thread that compacts."""
    script = Path(__file__).with_name("killed_runs.py")
    code = (
        "import sys, runpy; from normlens.corpus.runs import compaction_plan; "
        f"compaction_plan.FILES = 3; sys.path.insert(0, {str(script.parent)!r}); "
        "import killed_runs; killed_runs.main()"
    )
    out = tmp_path / "run"
    arguments = [out, place / "model", place / "corpus.txt", 15, 3, json.dumps(OPTIONS)]
    done = run_python(code, *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0, done.stderr
    assert report["killed"] >= 4
    found = Run.open(out)
    examples.assert_each_once(found)
    examples.assert_same_tables(found, whole, tolerance=0)
    assert found.check().sound
    assert len(files(out)) == len(found.tables)


def test_who_was_overtaken_removes_nothing(copied: Run, whole: Run) -> None:
    """The entry of a driver of an older epoch does not count, so what it replaces must stay."""
    from normlens.corpus.runs.log import Log
    from normlens.corpus.runs.work import _compaction

    class Anybody:
        def check(self) -> None:
            return

    folder, manifest = copied.folder, copied.manifest
    state = read_state(folder, manifest)
    first = Log.begin(folder, manifest, state)
    background: Any = _compaction(
        folder, Anybody(), manifest, first, state, compaction_plan.Sizes(files=2)
    )
    Log.begin(folder, manifest, read_state(folder, manifest))
    before = files(folder)
    with pytest.raises(RunError, match="another process has taken over"):
        background._compaction.step(rest=True)
    assert set(before) <= set(files(folder))
    examples.assert_same_tables(copied, whole, tolerance=0)


# Readers ------------------------------------------------------------------------------------------


def compacting_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Any) -> None:
    """Do something once, just before a method is called for the first time."""
    real, left = getattr(owner, name), [do]

    def call(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, call)


def test_a_snapshot_follows_the_files_of_its_shards(
    copied: Run, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Run.open(copied.folder.url)
    kept = copied.snapshot()
    first = kept.table("norms")
    other.compact()
    examples.assert_same_frames(kept.table("norms"), first, "norms", 0)
    examples.assert_same_frames(kept.sql("FROM mixing"), whole.sql("FROM mixing"), "mixing", 0)


@pytest.mark.parametrize("moment", ["between stamps and query", "before stamps"])
def test_files_that_are_compacted_during_a_question(
    copied: Run, whole: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    from normlens.corpus.runs import tables
    from normlens.corpus.runs.verified import Verified

    other = Run.open(copied.folder.url)
    early = moment == "before stamps"
    owner, name = (Verified, "wrong") if early else (tables, "closed_connection")
    with monkeypatch.context() as context:
        compacting_before(context, owner, name, other.compact)
        table = copied.table("mixing")
    assert len(files(copied.folder)) == len(copied.tables)
    examples.assert_same_frames(table, whole.table("mixing"), "mixing", 0)
    again = Run.open(shutil.copytree(whole.folder.url, tmp_path / "again"))
    with monkeypatch.context() as context:
        compacting_before(context, owner, name, Run.open(again.folder.url).compact)
        written = again.export("SELECT sum(count) AS n FROM norms_dimensions", tmp_path / "n.csv")
    assert written.read_text().split()[1] == str(whole.table("norms_dimensions")["count"].sum())


def test_a_snapshot_whose_run_went_on_says_so(
    place: Path, lens: Any, whole: Run, tmp_path: Path, three_at_a_time: None
) -> None:
    """Its shards are in one file with later ones, so it can no longer answer for them alone."""
    out = tmp_path / "run"
    kept: list[Any] = []

    class Watching(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            if not kept:
                opened = Run.open(out)
                kept.extend([opened.snapshot(), opened.snapshot(moves_on=True)])

    run(lens, place / "corpus.txt", out, progress=Watching(), **OPTIONS)
    snapshot, moving = kept
    assert not snapshot.complete
    for question in (lambda: snapshot.table("norms"), lambda: snapshot.sql("FROM sequences")):
        with pytest.raises(RunError, match=r"went on and its files were compacted.*take a new one"):
            question()
    assert len(moving.table("sequences")) == N
    assert moving.complete


def test_what_is_wrong_stays_wrong(copied: Run) -> None:
    """A query is not asked for ever because a file is missing or the query is bad."""
    snapshot = copied.snapshot()
    (Path(copied.folder.url) / files(copied.folder)[0]).unlink()
    table = files(copied.folder)[0].split("/")[1]
    with pytest.raises(RunError, match="is missing"):
        snapshot.table(table)
    with pytest.raises(InputError, match="nothing"):
        snapshot.sql("SELECT nothing FROM sequences")


def test_a_check_of_files_that_are_compacted_meanwhile(
    copied: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normlens.corpus.runs.verified import Verified

    other = Run.open(copied.folder.url)
    compacting_before(monkeypatch, Verified, "wrong", other.compact)
    check = copied.check()
    assert check.sound, str(check)
    assert check.files == len(copied.tables)


# Others -------------------------------------------------------------------------------------------


def test_runs_without_a_log_are_compacted(whole: Run) -> None:
    """Names of files are those that the state tells, whatever format they come from."""
    state = read_state(whole.folder, whole.manifest)
    pieces = list(compaction_module.pieces_of(state, "mixing"))
    assert [piece.first for piece in pieces] == list(range(SHARDS))
    assert [piece.file for piece in pieces] == state.files("mixing")


def test_files_without_rows_are_left_out_of_no_count(copied: Run) -> None:
    copied.compact()
    assert len(copied.table("failures")) == 0
    assert copied.sql("SELECT count(*) AS n FROM failures")["n"].tolist() == [0]


def test_rows_that_get_lost_are_noticed(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(compaction_module.JoinedFile):
        def _write(self, table: Any) -> None:
            super()._write(table.slice(1))

    monkeypatch.setattr(compaction_module, "JoinedFile", Forgetful)
    before = files(copied.folder)
    with pytest.raises(RunError, match="would not hold the rows"):
        copied.compact()
    assert files(copied.folder) == before


def test_two_at_once_are_refused(copied: Run) -> None:
    from normlens.corpus.runs.lock import locked

    with (
        locked(copied.folder),
        pytest.raises(RunError, match=r"another process .* is working in"),
    ):
        copied.compact()


def test_the_command(copied: Run, capsys: pytest.CaptureFixture[str]) -> None:
    tables = len(copied.tables)
    assert cli.main(["compact", copied.folder.url]) == 0
    assert capsys.readouterr().out == f"{SHARDS * tables} files became {tables}\n"
    assert cli.main(["compact", copied.folder.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"before": tables, "after": tables}
    for size in ("0", "-1", "nan"):
        assert cli.main(["compact", copied.folder.url, "--file-size", size]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: --file-size is")
        assert line.count("\n") == 1
    assert cli.main(["compact", copied.folder.url + "-nowhere"]) == 2


def test_compaction_needs_neither_torch_nor_the_users_code(copied: Run) -> None:
    code = (
        "import sys; from normlens.corpus.runs.results import Run; "
        f"Run.open({copied.folder.url!r}).compact(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_store_is_compacted(place: Path, lens: Any, whole: Run, three_at_a_time: None) -> None:
    pytest.importorskip("fsspec", reason="URLs need fsspec")
    from counting_store import URL, counting_store

    with counting_store() as store:
        done = run(lens, place / "corpus.txt", f"{URL}/run", **OPTIONS)
        kept = [key for key in store.objects if key.endswith(".parquet")]
        assert len(kept) == len(done.tables)
        assert all("/tables/" in key for key in kept)
        # What workers wrote was read once. The end looks whether all is there, then for strays.
        assert not [kept for kept in store.repeated("put", "get") if "/shards/" in kept[1]]
        assert store.count("list", "/shards") == store.count("list", "/tables") == 2
        examples.assert_same_tables(done, whole, tolerance=0)
        assert store.count("list", "/shards") == store.count("list", "/tables") == 2
        assert done.compact().after == len(done.tables)


def test_an_unfinished_run_in_a_store_is_left_to_its_driver(place: Path, lens: Any) -> None:
    """There is no lock to tell whether someone still works on it, who would be shut out."""
    pytest.importorskip("fsspec", reason="URLs need fsspec")
    from counting_store import URL, counting_store

    class Leaving(Progress):
        def advance(self, sequences: int, failures: int) -> None:
            raise KeyboardInterrupt

    with counting_store():
        with pytest.raises(KeyboardInterrupt):
            run(lens, place / "corpus.txt", f"{URL}/run", progress=Leaving(), **OPTIONS)
        with pytest.raises(NormLensError, match=r"is not done.*normlens run --resume"):
            Run.open(f"{URL}/run").compact()


def test_memory_is_that_of_a_few_files(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read some at a time, however many are joined."""
    monkeypatch.setattr(compaction_module, "AHEAD", 4)
    read: list[int] = []
    real = LocalFolder.read_all

    def counted(self: LocalFolder, names: Any) -> Any:
        wanted = list(names)
        if any("shards/" in name for name in wanted):
            read.append(len(wanted))
        return real(self, wanted)

    monkeypatch.setattr(LocalFolder, "read_all", counted)
    copied.compact()
    assert max(read) == 4
    assert sum(read) == SHARDS * len(copied.tables)


def test_no_table_waits_behind_another(copied: Run, three_at_a_time: None) -> None:
    joined: list[str] = []
    done = read_state(copied.folder, copied.manifest).done
    compaction = compaction_module.Compaction(
        copied.folder,
        copied.manifest,
        empty_state(copied.manifest),
        2,
        lambda entry: joined.append(entry.table),
    )
    for number in range(SHARDS):
        compaction.add(done[number])
        if number % 3 == 2:  # each table has three more files, and one of them is joined
            assert compaction.step()
    assert len(set(joined)) == len(joined) == SHARDS // 3 < len(copied.tables)

"""Whatever stops a run, resuming it gives the tables of one that was never stopped."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from forking import run_python
from run_records import (
    blocks_done,
    edit_record,
    forget,
    record_file,
    state_of,
    table_file,
)

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import check as checks
from normlens.corpus.runs import folder as folders
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import HEARTBEAT
from normlens.errors import InputError, NormLensError, OutputError

pytestmark = examples.some_fail
N = 40
BLOCK = 3
OPTIONS: dict[str, Any] = {
    "block_size": BLOCK,
    "mask": 0.12,
    "max_length": 16,
    "truncate": False,
    "file_size": 0,  # a set of files for every block
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resumed")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Path:
    return examples.tiny_checkpoint(folder / "model")


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    return examples.corpus_file(folder / "corpus.txt", N, seed=5)


@pytest.fixture(scope="module")
def lens(checkpoint: Path) -> Any:
    return normlens.load(checkpoint, device="cpu")


@pytest.fixture(scope="module")
def whole(folder: Path, checkpoint: Path, corpus: Path) -> Run:
    """The run that nothing disturbed."""
    done = run(checkpoint, corpus, folder / "whole", device="cpu", **OPTIONS)
    assert 0 < done.status().failures < N
    return done


@pytest.fixture
def copy(whole: Run, tmp_path: Path) -> Path:
    """A copy of the whole run, to do harm to."""
    return Path(shutil.copytree(whole.folder.url, tmp_path / "copy"))


def leftovers(out: Path) -> list[str]:
    return [str(path) for path in out.rglob("*.tmp")]


# Stopped ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.guard), 18])
def test_kill_9_at_any_moment(
    kills: int, whole: Run, tmp_path: Path, checkpoint: Path, corpus: Path
) -> None:
    killed, expected = 0, examples.frames_of(whole)
    for seed in range(6):
        out = tmp_path / f"killed-{seed}"
        script = Path(__file__).with_name("killed_runs.py")
        arguments = [out, checkpoint, corpus, kills - killed, seed, json.dumps(OPTIONS)]
        done = run_python(script, *arguments)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["errors"] == 0, done.stderr
        killed += report["killed"]
        found = Run.open(out)
        examples.assert_each_once(found)
        examples.assert_same_tables(found, expected, tolerance=0)
        resume(out)
        assert not leftovers(out)
        if killed >= kills:
            break
    assert killed >= min(kills, 15)


@pytest.mark.slow
def test_kill_9_at_every_point_of_writing(
    lens: Any, tmp_path: Path, checkpoint: Path, corpus: Path
) -> None:
    options = OPTIONS | {"block_size": 2, "limit": 21}
    undisturbed = run(lens, corpus, tmp_path / "whole", **options)
    assert undisturbed.status().failures > 0
    expected = examples.frames_of(undisturbed)
    script = Path(__file__).with_name("killed_at_points.py")
    arguments = [tmp_path / "killed", checkpoint, corpus, json.dumps(options)]
    done = run_python(script, *arguments)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert ended == [[-signal.SIGKILL, 0]] * len(ended), done.stderr
    for number in range(len(ended)):
        found = Run.open(tmp_path / f"killed-{number}")
        examples.assert_each_once(found)
        examples.assert_same_tables(found, expected, tolerance=0)
        assert found.check().sound
        assert not leftovers(tmp_path / f"killed-{number}")


class FailingOs:
    """`os` on a disk that is full at a random moment."""

    CALLS = ("open", "write", "fsync", "replace", "link", "mkdir")

    def __init__(self, chance: random.Random, calls: int):
        self.left = chance.randint(1, calls)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        return call


def test_a_disk_that_is_full(
    whole: Run, tmp_path: Path, lens: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    out = tmp_path / "run"
    stopped = 0
    while True:
        failing = FailingOs(chance, 150)
        monkeypatch.setattr(folders, "os", failing)
        with contextlib.suppress(OutputError):
            if (out / "manifest.json").exists():
                resume(out, model=lens)
            else:
                run(lens, corpus, out, **OPTIONS)
        monkeypatch.undo()
        assert not leftovers(out)
        if failing.left > 0:
            break
        stopped += 1
    assert stopped >= 4
    done = Run.open(out)
    assert done.status().complete
    examples.assert_same_tables(done, whole, tolerance=0)


def test_a_small_disk(whole: Run, tmp_path: Path, lens: Any, corpus: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=400k", "normlens-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        with pytest.raises(OutputError, match=r"No space left.*normlens run --resume"):
            run(lens, corpus, disk / "run", **OPTIONS)
        stopped = Run.open(disk / "run").status()
        assert 0 < stopped.done < N
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        examples.assert_same_tables(resume(disk / "run", model=lens), whole, tolerance=0)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_interrupted_run_says_what_is_left(
    tmp_path: Path, lens: Any, corpus: Path, whole: Run
) -> None:
    class Impatient(normlens.corpus.runs.progress.Progress):
        def advance(self, sequences: int, failures: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(lens, corpus, tmp_path / "run", progress=Impatient(), **OPTIONS)
    status = Run.open(tmp_path / "run").status()
    assert BLOCK <= status.done <= 3 * BLOCK  # what is ready is written yet
    assert status.left == N - status.done
    assert "stopped" in str(status)
    # What is done can be looked at.
    assert len(Run.open(tmp_path / "run").sql("SELECT * FROM sequences")) <= status.done
    examples.assert_same_tables(resume(tmp_path / "run", model=lens), whole, tolerance=0)


# Damaged ------------------------------------------------------------------------------------------


BOMB = b"[" * 100_000
#: The record of the block 4; a worker may be ahead with another, so records are not in order.
RECORD = 5


def forged(**fields: Any) -> Callable[[Path], None]:
    """Give a record other fields, and a checksum that fits them."""
    return lambda out: edit_record(out, RECORD, lambda told: told.update(fields))


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def harm(out: Path) -> None:
        path = record_file(out, RECORD)
        path.write_bytes(change(path.read_bytes()))

    return harm


HARM: dict[str, Callable[[Path], Any]] = {
    "flipped": lambda out: examples.flip(table_file(out, "mixing", 2), 1001),
    "cut short": lambda out: os.truncate(table_file(out, "similarity", 3), 500),
    "empty": lambda out: os.truncate(table_file(out, "norms", 1), 0),
    "table lost": lambda out: os.unlink(table_file(out, "failures", 0)),
    "record lost": lambda out: record_file(out, RECORD).unlink(),
    "last record lost": lambda out: record_file(out, 14).unlink(),
    "record flipped": damaged(lambda contents: contents.replace(b"1", b"2", 1)),
    "record cut short": damaged(lambda contents: contents[:100]),
    "record empty": damaged(lambda contents: b""),
    "record nested too deeply": damaged(lambda _: BOMB),
    "record with a text for a number": forged(sequences="4"),
    "record with a list for times": forged(seconds=[]),
    "record of another epoch": forged(epoch=9),
    "record of another run's blocks": forged(blocks=[[400, 400]]),
    "record with blocks out of order": forged(blocks=[[4, 3]]),
    "record with a path for a file": forged(tables={"mixing": ["../x", 1, 1, "0" * 64]}),
    "record of another": damaged(lambda _: b"{}"),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_damaged_is_computed_again(harm: str, copy: Path, whole: Run, lens: Any) -> None:
    before = records_of(copy)
    HARM[harm](copy)
    if harm == "flipped":
        # Nobody reads all files to go on; whoever reads this one remembers that it is damaged.
        with pytest.raises(RunError, match="normlens run --resume"):
            Run.open(copy).table("mixing")
    done = resume(copy, model=lens)
    examples.assert_each_once(done)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert done.check().sound
    assert not leftovers(copy)
    after = records_of(copy)
    assert before.keys() == after.keys()
    # Only what was damaged is computed again.
    assert sum(before[number] != after[number] for number in after) == 1


def records_of(out: Path) -> dict[int, Any]:
    """The names of records by their blocks."""
    state = state_of(Run.open(out))
    return {number: name for name, each in state.records.items() for number in each.blocks}


def test_a_lost_table_is_computed_again_after_a_check(copy: Path, whole: Run, lens: Any) -> None:
    examples.flip(table_file(copy, "mixing", 2), 1001)
    assert not Run.open(copy).check().sound
    checks._remembered.clear()  # as in another process
    done = resume(copy, model=lens)
    assert done.check().sound
    examples.assert_same_tables(done, whole, tolerance=0)


def test_a_user_who_remembers_nothing_has_all_files_read(copy: Path, whole: Run, lens: Any) -> None:
    path = table_file(copy, "mixing", 2)
    examples.flip(path, 1001)
    resume(copy, model=lens)
    assert path.exists()
    done = resume(copy, model=lens, verify=True)
    assert not path.exists()
    assert done.check().sound
    examples.assert_same_tables(done, whole, tolerance=0)


def test_what_was_left_half_written_is_swept(copy: Path, whole: Run, lens: Any) -> None:
    table = copy / "tables/mixing"
    left = [table / ".000001-1-0.parquet.x.tmp", table / "000004-1-ab2.parquet"]
    left += [copy / "records/.1-000003.json.x.tmp", copy / "records/0-000009.json"]
    left += [copy / HEARTBEAT]  # of a driver that was killed behind its last record
    for path in left:
        path.write_bytes(b"PAR1")
    # What belongs to nobody, or to a later driver, is not this run's to remove.
    others = [table / "notes.txt", table / "000004-9-ab2.parquet", copy / "report.tmp" / "x.tmp"]
    (copy / "report.tmp").mkdir()
    for path in others:
        path.write_bytes(b"mine")
    examples.assert_same_tables(resume(copy, model=lens), whole, tolerance=0)
    assert not any(path.exists() for path in left)
    assert [path.read_bytes() for path in others] == [b"mine"] * 3


@pytest.mark.parametrize("harm", [lambda path: examples.flip(path, 40), Path.unlink])
def test_a_damaged_base_costs_no_record(
    copy: Path, whole: Run, lens: Any, harm: Callable[[Path], Any]
) -> None:
    forget(copy, 3)
    resume(copy, model=lens)
    # A record of the same blocks does no harm.
    shutil.copy(record_file(copy, 2), record_file(copy, 15))
    harm(copy / "claims/3.base.json")
    with pytest.raises(RunError, match=r"3\.base\.json in .* is missing or damaged"):
        Run.open(copy).table("mixing")
    assert blocks_done(Run.open(copy), salvage=True) == set(range(whole.manifest.blocks))
    done = resume(copy, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert done.check().sound


def test_without_its_ledger_a_run_is_computed_again(copy: Path, whole: Run, lens: Any) -> None:
    for folder in ("claims", "records"):
        shutil.rmtree(copy / folder)
    assert Run.open(copy).status().done == 0
    done = resume(copy, model=lens)
    examples.assert_same_tables(done, whole, tolerance=0)
    assert done.check().sound


def test_a_whole_run_is_left_as_it_is(copy: Path, lens: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*.parquet")}
    assert resume(copy, model=lens).status().complete
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*.parquet")}


# Changed ------------------------------------------------------------------------------------------


def test_tables_with_other_columns_are_refused(copy: Path, lens: Any) -> None:
    def edit(found: dict[str, Any]) -> None:
        columns = found["tables"]["amplification_pairs"]["columns"]
        del columns["relation"]
        columns["kind"] = "string"

    examples.forge(copy, edit)
    with pytest.raises(RunError, match="amplification_pairs, columns, kind: then string, now none"):
        resume(copy, model=lens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": 0.2}, "--mask: then 0.12, now 0.2"),
        ({"seed": 1}, "--seed: then 0, now 1"),
        ({"max_length": 100}, "--max-length: then 16, now 100"),
        ({"truncate": True}, "--truncate: then False, now True"),
        ({"block_size": 4}, "--block-size: then 3, now 4"),
        ({"limit": 9}, "--limit: then none, now 9"),
        ({"measures": "mixing"}, "--measures: then .*similarity.*, now .*mixing"),
        ({"revision": "other"}, "--revision: then none, now other"),
        ({"data": "sample"}, "--data: then .*corpus.txt, now sample"),
        ({"model": "minilm"}, "--model: then .*model, now minilm"),
        ({"dtype": "float64"}, "the dtype: then float32, now float64"),
    ],
    ids=str,
)
def test_other_options_are_refused(copy: Path, options: dict[str, Any], message: str) -> None:
    forget(copy, 5)
    with pytest.raises(RunError, match=message) as caught:
        resume(copy, **options)
    assert "\n" not in str(caught.value)
    # Refusing touches nothing.
    assert table_file(copy, "mixing", 5).exists()


def test_the_same_options_and_other_ways_to_work_are_fine(
    copy: Path, checkpoint: Path, whole: Run
) -> None:
    forget(copy, 5)
    done = resume(copy, model=str(checkpoint), seed=0, mask=0.12, batch_size=2, device="cpu")
    examples.assert_same_tables(done, whole)
    with pytest.raises(InputError, match="no option 'speed'"):
        resume(copy, speed=1)


def test_another_model_is_refused(copy: Path, checkpoint: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(checkpoint, tmp_path / "kept"))
    try:
        examples.tiny_checkpoint(checkpoint, seed=1)
        with pytest.raises(RunError, match=r"weights: then sha256:.*, now sha256:"):
            resume(copy)
    finally:
        shutil.copytree(kept, checkpoint, dirs_exist_ok=True)
    assert resume(copy).status().complete


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b'{"format": "other"}', BOMB])
def test_a_damaged_manifest_is_one_line(copy: Path, contents: bytes) -> None:
    (copy / "manifest.json").write_bytes(contents)
    with pytest.raises(NormLensError, match="damaged or not a run") as caught:
        resume(copy)
    assert "\n" not in str(caught.value)

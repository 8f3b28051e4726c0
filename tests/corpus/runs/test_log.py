"""The log of a run: what is committed is read again, and nothing of a driver that was replaced."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting_store import URL, counting_store
from log_examples import (
    TABLES,
    made_up_manifest,
    made_up_part,
    made_up_record,
    names_of,
)

from normlens.corpus.runs import log as logs
from normlens.corpus.runs.folder import Folder, LocalFolder, RunError, open_folder
from normlens.corpus.runs.log import Log, empty_state
from normlens.corpus.runs.ledger import read_state
from normlens.corpus.runs.record_columns import RecordColumns
from normlens.corpus.runs.shards import Attempt
from normlens.corpus.runs.state import State
from normlens.errors import OutputError

SHARDS = 60
MANIFEST = made_up_manifest(SHARDS)


@pytest.fixture(params=["disk", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    if request.param == "disk":
        yield LocalFolder(tmp_path / "run")
        return
    with counting_store():
        yield open_folder(f"{URL}/run")


@pytest.fixture
def small_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FOLD", 3)


def begun(folder: Folder) -> Log:
    return Log.begin(folder, MANIFEST, empty_state(MANIFEST))


def read(folder: Folder) -> State:
    return read_state(folder, MANIFEST)


@pytest.mark.usefixtures("small_folds")
@pytest.mark.parametrize("together", [1, 2, 5])
def test_what_is_committed_is_read_again(folder: Folder, together: int) -> None:
    log = begun(folder)
    assert len(read(folder).done) == 0
    # In any order; among records there are attempts and compacted files.
    order = [(7 * i) % SHARDS for i in range(SHARDS)]
    records = {number: made_up_record(number, attempt=number % 2 + 1) for number in order}
    for start in range(0, SHARDS, together):
        chunk: list[Any] = [records[number] for number in order[start : start + together]]
        if start % 3 == 0:
            chunk.append(Attempt(start // 3, 1, "it died"))
        log.append(chunk)
        state = read(folder)
        assert dict(state.done) == {n: records[n] for n in sorted(order[: start + together])}
        tried = [s for s in range(0, start + 1, together) if s % 3 == 0]
        assert state.attempts == {s // 3: 1 for s in tried}
        assert len(folder.names("log")) <= 1 + 3 + 3 + (start + together) // 9 + 1
    assert state.tokens == sum(record.tokens for record in records.values())
    assert state.seconds["maps"] == pytest.approx(0.5 * SHARDS)
    assert state.files("mixing") == [records[number].tables["mixing"] for number in range(SHARDS)]
    # Taking over changes nothing of it.
    again = Log.begin(folder, MANIFEST, state)
    assert again.epoch == 2
    taken = read(folder)
    assert dict(taken.done) == dict(state.done)
    assert taken.attempts == state.attempts
    assert len(folder.names("log")) == 1


def test_a_driver_that_was_replaced_changes_nothing(folder: Folder, small_folds: None) -> None:
    stalled = begun(folder)
    stalled.append([made_up_record(0)])
    # Another one believes it dead.
    log = Log.begin(folder, MANIFEST, read(folder))
    stalled.append([made_up_record(1)])
    log.append([made_up_record(1, epoch=2)])
    state = read(folder)
    assert names_of(state, "mixing") == [
        "shards/mixing/shard-000000.1-1.parquet",
        "shards/mixing/shard-000001.2-1.parquet",
    ]
    # The first learns it when it would fold, and cannot remove anything that counts.
    with pytest.raises(RunError, match="another process has taken over"):
        stalled.append([made_up_record(number) for number in range(2, 5)])
    with pytest.raises(RunError, match="another process has taken over"):
        stalled.check()
    with pytest.raises(RunError, match="could not be written"):
        stalled.append([made_up_record(9)])
    assert dict(read(folder).done) == dict(state.done)
    log.append([made_up_record(2, epoch=2)])
    assert [*read(folder).done] == [0, 1, 2]


def test_of_two_drivers_at_one_moment_none_or_one_goes_on(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(folder)
    first.append([made_up_record(0)])
    state = empty_state(MANIFEST)
    real = type(folder).names
    seen: list[str] = []

    def names(self: Folder, under: str = "") -> list[str]:
        """The second one lists the log just before the first one's base is there."""
        seen.append(under)
        return [] if len(seen) == 1 else real(self, under)

    monkeypatch.setattr(type(folder), "names", names)
    with pytest.raises(RunError, match="another process has taken over"):
        Log.begin(folder, MANIFEST, state)
    first.append([made_up_record(1)])
    assert [*read(folder).done] == [0, 1]


def test_the_first_of_two_records_counts(folder: Folder) -> None:
    log = begun(folder)
    log.append([made_up_record(0, attempt=1), made_up_record(0, attempt=2)])
    assert read(folder).done[0].attempt == 1


def test_files_that_are_folded_while_they_are_read(
    folder: Folder, small_folds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(folder)
    log.append([made_up_record(0)])
    log.append([made_up_record(1)])
    real = type(folder).read_all
    left = [2]

    def read_all(self: Folder, names: Iterable[str]) -> dict[str, bytes]:
        if left:
            log.append([made_up_record(left.pop(0))])
        return real(self, names)

    monkeypatch.setattr(type(folder), "read_all", read_all)
    assert [*read(folder).done] == [0, 1, 2]
    assert not left


# Damage -------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_an_entry_that_was_not_committed(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    log = begun(folder)
    log.append([made_up_record(0)])
    log.append([made_up_record(1)])
    [path] = tmp_path.glob("log/*.jsonl")
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        assert [*read(folder).done] == [0]
    for place in range(0, start - 1, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match=r"jsonl in .* is damaged: line 1.*--resume"):
            read(folder)
        state = read_state(folder, MANIFEST, salvage=True)
        assert [*state.done] == [1]
        assert state.damaged == (path.relative_to(tmp_path).as_posix(),)


def test_a_damaged_fold_is_an_error_and_costs_its_shards(folder: Folder, small_folds: None) -> None:
    log = begun(folder)
    for number in range(7):
        log.append([made_up_record(number)])
    first, _ = [name for name in folder.names("log") if name.endswith(".fold")]
    kept = folder.read(first)
    assert kept is not None
    for place in range(0, len(kept), 13):
        folder.write(first, kept[:place] + bytes([kept[place] ^ 4]) + kept[place + 1 :])
        with pytest.raises(RunError, match=r"fold in .* is damaged"):
            read(folder)
        state = read_state(folder, MANIFEST, salvage=True)
        assert [*state.done] == [3, 4, 5, 6]
    folder.remove(first)
    with pytest.raises(RunError, match="the file before it is missing"):
        read(folder)
    assert [*read_state(folder, MANIFEST, salvage=True).done] == [3, 4, 5, 6]
    folder.write(first, kept)
    assert [*read(folder).done] == [*range(7)]


def test_a_base_that_was_not_written_to_its_end_does_not_count(folder: Folder) -> None:
    begun(folder).append([made_up_record(0)])
    before = {name: folder.read(name) or b"" for name in folder.names("log")}
    log = Log.begin(folder, MANIFEST, read(folder))
    [base] = folder.names("log")
    whole = folder.read(base) or b""
    # As some file servers may leave it, when the driver is stopped in the middle.
    folder.write(base, whole[: len(whole) // 2])
    with pytest.raises(RunError, match="put it back from a copy"):
        read(folder)
    for name, contents in before.items():
        folder.write(name, contents)
    assert [*read(folder).done] == [0]
    assert read(folder).epoch == 1
    # The next one does not take its epoch for a free one.
    assert Log.begin(folder, MANIFEST, read(folder)).epoch == 3
    assert [*read(folder).done] == [0]
    # A base that others have built on is needed.
    for name in folder.names("log"):
        folder.remove(name)
    for name, contents in before.items():
        folder.write(name, contents)
    folder.write(base, whole[:-1])
    log.append([made_up_record(1, epoch=2)])
    with pytest.raises(RunError, match="put it back from a copy"):
        read(folder)


def test_a_log_of_another_manifest_is_refused(folder: Folder) -> None:
    begun(folder).append([made_up_record(0)])
    with pytest.raises(RunError, match=r"belongs to another manifest\.json"):
        read_state(folder, made_up_manifest(SHARDS - 1))


def test_a_commit_that_fails_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LocalFolder(tmp_path)
    log = begun(folder)
    log.append([made_up_record(0)])
    real = LocalFolder.append

    def half(self: LocalFolder, name: str, data: bytes) -> None:
        real(self, name, data[:50])
        raise OutputError("No space left")

    monkeypatch.setattr(LocalFolder, "append", half)
    with pytest.raises(OutputError):
        log.append([made_up_record(1)])
    monkeypatch.undo()
    # A line behind half a line would be lost with it.
    with pytest.raises(RunError):
        log.append([made_up_record(1)])
    assert [*read(folder).done] == [0]


# Compacted files ----------------------------------------------------------------------------------


def compacted(folder: Folder) -> Log:
    """Ten shards; a table or two of the shards 2 to 5 are in one file."""
    log = begun(folder)
    log.append([made_up_record(number) for number in range(10)])
    log.append([made_up_part("mixing", 2, 5), made_up_part("failures", 2, 5)])
    return log


def test_a_compacted_file_stands_for_its_shards(folder: Folder, small_folds: None) -> None:
    log = compacted(folder)
    for _ in range(2):
        state = read(folder)
        assert names_of(state, "mixing") == [
            "shards/mixing/shard-000000.1-1.parquet",
            "shards/mixing/shard-000001.1-1.parquet",
            "tables/mixing/part-000000.1.parquet",
            *(f"shards/mixing/shard-00000{number}.1-1.parquet" for number in (6, 7, 8, 9)),
        ]
        assert len(names_of(state, "sequences")) == 10
        assert set(state.done[3].tables) == {"sequences"}
        assert set(state.done[6].tables) == set(TABLES)
        assert {name for name, _ in state.sizes("mixing")} == set(names_of(state, "mixing"))
        Log.begin(folder, MANIFEST, state)
    # A larger one replaces it; one that overlaps is damage.
    log = Log.begin(folder, MANIFEST, state)
    log.append([made_up_part("mixing", 0, 7, number=1, epoch=log.epoch)])
    [name, *rest] = names_of(read(folder), "mixing")
    assert name.startswith("tables/mixing/part-000001.")
    assert len(rest) == 2
    log.append([made_up_part("mixing", 7, 8, number=2)])
    with pytest.raises(RunError, match=r"part-000002.* covers shards"):
        read(folder)


def test_a_lost_file_costs_its_shards_and_no_other_file(folder: Folder) -> None:
    """Otherwise files that overlap could take along one another, and with them the whole run."""
    compacted(folder)
    state = read(folder)
    assert state.incomplete_parts == ()
    assert [*state.without([7]).done] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert state.without([7]).compacted == state.compacted
    one = state.without([3])
    assert [*one.done] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert one.compacted == one.incomplete_parts == state.compacted
    part, other = state.compacted
    lost = state.without((), [part])
    assert [*lost.done] == [0, 1, 6, 7, 8, 9]
    assert lost.compacted == lost.incomplete_parts == (other,)
    # What is computed again is used for the table that was lost, and for no other.
    log = Log.begin(folder, MANIFEST, lost)
    assert read(folder).incomplete_parts == (other,)
    log.append([made_up_record(number, epoch=2) for number in (2, 3, 4, 5)])
    again = read(folder)
    assert again.incomplete_parts == ()
    assert len(again.done) == len(again.files(part.table)) == 10
    assert again.files(other.table) == state.files(other.table)
    assert names_of(again, part.table)[3] == f"shards/{part.table}/shard-000003.2-1.parquet"


def test_shards_that_are_all_compacted_need_few_bytes(tmp_path: Path) -> None:
    sizes = []
    for parts in ((), [made_up_part(table, 0, 49) for table in TABLES]):
        folder = LocalFolder(tmp_path / str(len(parts)))
        log = begun(folder)
        log.append([made_up_record(number) for number in range(SHARDS)])
        log.append([*parts])
        Log.begin(folder, MANIFEST, read(folder))
        state = read(folder)
        assert len(state.done) == SHARDS
        assert len(state.files("mixing")) == (11 if parts else SHARDS)
        [base] = (tmp_path / str(len(parts)) / "log").glob("*.base")
        sizes.append(base.stat().st_size)
    files_of_a_shard = len(TABLES) * (32 + 8 + 8)
    assert sizes[0] - sizes[1] > 50 * files_of_a_shard - 2000


def test_columns_keep_what_records_say() -> None:
    records = [made_up_record(number, failures=number, by={}) for number in (4, 2, 9)]
    columns = RecordColumns.of(records, TABLES)
    again = RecordColumns.parsed(columns.described(), columns.as_buffer())
    assert [again.record(place, TABLES) for place in range(3)] == records
    assert again.files("mixing", again.rows["number"] > 2) == [
        record.tables["mixing"] for record in (records[0], records[2])
    ]
    with pytest.raises(ValueError, match="hold no records"):
        RecordColumns.parsed(columns.described() | {"rows": 4}, columns.as_buffer())


class Nowhere(LocalFolder):
    """Takes everything and keeps nothing."""

    def write(self, name: str, data: bytes) -> None:
        pass

    def append(self, name: str, data: bytes) -> None:
        pass

    def remove_all(self, names: Collection[str]) -> None:
        pass


@pytest.mark.usefixtures("small_folds")
def test_the_memory_of_a_driver_does_not_grow(tmp_path: Path) -> None:
    log = Log.begin(Nowhere(tmp_path), MANIFEST, empty_state(MANIFEST))
    held = []
    tracemalloc.start()
    try:
        for start, stop in ((0, 100), (100, 1000)):
            for number in range(start, stop):
                log.append([made_up_record(number)])
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # The files of one record take 144 bytes in columns, and many more as objects.
    assert held[1] - held[0] < 900 * 48

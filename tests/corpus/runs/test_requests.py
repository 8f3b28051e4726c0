"""What a run asks of an object store: a request per file, three per record, and few others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from counting_store import URL, CountingStore, counting_store
from run_records import forget

from normlens.corpus import Run, resume, run
from normlens.corpus.runs import folder

N, BLOCK = 40, 2
BLOCKS = N // BLOCK
OUT = f"{URL}/run"


@pytest.fixture
def store() -> Iterator[type[CountingStore]]:
    with counting_store() as store:
        yield store


@pytest.fixture
def done(store: type[CountingStore], place: Path, lens: Any, monkeypatch: Any) -> Run:
    monkeypatch.setattr(folder, "NEW", 0.0)  # the data's file is not written during the test
    options: dict[str, Any] = {"measures": "mixing,norms", "block_size": BLOCK, "file_size": 0}
    return run(lens, place / "corpus.txt", OUT, **options)


def test_one_request_for_each_table_and_three_for_each_record(
    done: Run, store: type[CountingStore]
) -> None:
    tables = len(done.manifest.tables)
    assert store.count("put", "/tables/") == tables * BLOCKS
    assert store.count("put", "/records/") == BLOCKS
    once = ["manifest", "claim", "base", "data index", "heartbeat"]  # the last once a minute
    assert store.count("put") == (tables + 1) * BLOCKS + len(once)
    assert store.repeated("put") == []
    # The worker looks for a newer claim before it writes, and the driver before it commits.
    assert store.count("get", "/claims/2.json") == 2 * BLOCKS + len(["the end"])
    # No table is read or asked for. The end looks whether all are there, with one listing.
    assert store.count("get", "/tables/") == store.count("head", "/tables/") == 0
    assert store.count("list", "/tables") == 0
    assert store.count("delete") == len(["heartbeat"])


def test_files_of_many_blocks_take_few_requests(
    store: type[CountingStore], place: Path, lens: Any, done: Run
) -> None:
    store.requests.clear()
    options: dict[str, Any] = {"measures": "mixing,norms", "block_size": BLOCK}
    together = run(lens, place / "corpus.txt", f"{URL}/together", **options)
    assert store.count("put", "/tables/") == len(done.manifest.tables)
    assert store.count("put", "/records/") == 1
    examples.assert_same_tables(together, done, tolerance=0)


def test_a_finished_run_is_resumed_by_its_records_alone(
    done: Run, store: type[CountingStore], lens: Any
) -> None:
    before = dict(store.objects)
    store.requests.clear()
    assert resume(OUT, model=lens).manifest.digest == done.manifest.digest
    assert store.objects == before
    assert store.count("list") == 3  # claims, records, and everything for its size
    once = ["manifest", "data index", "base"]
    assert store.count("get") == len(once) + BLOCKS
    assert store.count("put") == store.count("delete") == store.count("head") == 0
    store.requests.clear()
    assert Run.open(OUT).status().complete
    assert store.count("list") == 2


def test_a_run_that_goes_on_reads_no_table(
    done: Run, store: type[CountingStore], lens: Any, place: Path
) -> None:
    forget(OUT, 3, 8)
    store.requests.clear()
    again = resume(OUT, model=lens, file_size=0)
    tables = len(done.manifest.tables)
    once = ["claim", "base", "data index", "heartbeat"]
    assert store.count("put") <= 2 * (tables + 1) + len(once)
    assert store.count("get", "/tables/") == store.count("head", "/tables/") == 0
    assert store.repeated("put") == []
    # What the first driver had written for these two blocks is removed at the end.
    left = [key for key in store.objects if "/tables/" in key]
    assert len(left) == tables * BLOCKS
    new = {key.rpartition("-")[0] for key in left if key.split("-")[1] == "3"}
    assert new == {
        f"counted/run/tables/{table}/{number:06d}-3" for table in done.tables for number in (3, 8)
    }
    whole = run(lens, place / "corpus.txt", f"{URL}/whole", measures="mixing,norms")
    examples.assert_same_tables(again, whole, tolerance=0)

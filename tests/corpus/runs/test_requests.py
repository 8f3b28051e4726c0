"""What a run asks of an object store: one request per table and one per record, and few others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from counting_store import URL, CountingStore, counting_store
from run_records import forget

from normlens.corpus import Run, resume, run
from normlens.corpus.engines.local import ThreadEngine
from normlens.corpus.runs import log as logs
from normlens.corpus.runs import stamps, work

N, SHARD = 40, 2
SHARDS = N // SHARD
OUT = f"{URL}/run"


@pytest.fixture
def store() -> Iterator[type[CountingStore]]:
    with counting_store() as store:
        yield store


@pytest.fixture
def done(store: type[CountingStore], place: Path, lens: Any, monkeypatch: Any) -> Run:
    monkeypatch.setattr(logs, "FOLD", 4)
    monkeypatch.setattr(stamps, "NEW", 0.0)  # the data's file is not written during the test
    return run(lens, place / "corpus.txt", OUT, measures="mixing,norms", shard_size=SHARD)


def test_one_request_for_each_table_and_one_for_each_record(
    done: Run, store: type[CountingStore]
) -> None:
    tables = len(done.manifest.tables)
    assert store.count("put", "/shards/") == tables * SHARDS
    # Folding costs none: a fold is written instead of the record that makes it one.
    assert store.count("put", "/log/") == SHARDS + 1
    once = ["claim", "base", "manifest", "data index", "activity"]  # the last once a minute
    assert store.count("put") == (tables + 1) * SHARDS + len(once)
    assert store.repeated("put", "get", "head") == []
    # No table is read or asked for. The end looks whether all are there.
    assert store.count("get", "/shards/") == store.count("head", "/shards/") == 0
    assert store.count("list", "/shards") == 1
    # Files of the log that were folded go by the dozen; the activity goes at the end.
    assert store.count("delete") <= SHARDS // 4 + 2
    assert len([key for key in store.objects if "/log/" in key]) <= 1 + 3 + 3 + SHARDS // 16


def test_results_that_are_there_are_committed_together(
    store: type[CountingStore], place: Path, lens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"measures": "mixing", "shard_size": SHARD}
    alone = run(lens, place / "corpus.txt", f"{URL}/alone", **options)
    assert store.count("put", "/alone/log/") == 1 + SHARDS
    monkeypatch.setattr(ThreadEngine, "has_result", lambda _: True)
    monkeypatch.setattr(work, "TOGETHER", 8)
    together = run(lens, place / "corpus.txt", f"{URL}/together", **options)
    assert store.count("put", "/together/log/") == 1 + 3
    assert together.status().complete
    examples.assert_same_tables(together, alone, tolerance=0)


def test_a_finished_run_is_resumed_by_its_log_alone(
    done: Run, store: type[CountingStore], lens: Any
) -> None:
    before = dict(store.objects)
    store.requests.clear()
    assert resume(OUT, model=lens).manifest.digest == done.manifest.digest
    assert store.objects == before
    listed = ["/run/log", "/run/shards", "/run/tables"]
    assert store.count("list") == sum(store.count("list", each) for each in listed) == 3
    once = ["manifest", "data index", "activity, which is not there"]
    assert store.count("get") == len(once) + len([key for key in before if "/log/" in key])
    assert store.count("put") == store.count("delete") == store.count("head") == 0
    store.requests.clear()
    assert Run.open(OUT).status().complete
    assert store.count("list") == store.count("list", "/run/log") == 1


def test_a_run_that_goes_on_reads_no_table(
    done: Run, store: type[CountingStore], lens: Any, place: Path
) -> None:
    forget(OUT, 3, 8)
    store.requests.clear()
    again = resume(OUT, model=lens)
    tables = len(done.manifest.tables)
    assert store.count("put") == 2 * (tables + 1) + len(["base", "activity", "attempt"])
    assert store.count("get", "/shards/") == store.count("head", "/shards/") == 0
    assert store.repeated("put", "head") == []
    # What the first driver had written for these two shards is removed at the end.
    left = {key for key in store.objects if "/shards/" in key}
    assert len(left) == tables * SHARDS
    assert {key for key in left if ".2-" in key or ".3-" in key} == {
        f"counted/run/shards/{table}/shard-{number:06d}.3-1.parquet"
        for table in done.tables
        for number in (3, 8)
    }
    whole = run(lens, place / "corpus.txt", f"{URL}/whole", measures="mixing,norms")
    examples.assert_same_tables(again, whole, tolerance=0)

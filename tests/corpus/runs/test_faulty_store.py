"""At each of a run's requests in turn: another driver takes over, the store refuses, or its answer
is lost. Nothing is lost, nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
from counting_store import URL, CountingStore, counting_store

from normlens.corpus import Run, resume, run
from normlens.corpus.runs.ledger import HEARTBEAT
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.errors import NormLensError

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
N = 6
OPTIONS: dict[str, Any] = {"block_size": 2, "measures": "mixing", "file_size": 0}


@pytest.fixture
def store() -> Iterator[type[CountingStore]]:
    with counting_store() as store:
        yield store


class Interfering:
    """Does something at one request, before it has an effect or after that."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, do: Callable[[], Any], when: str):
        self.number, self.do, self.when, self.seen = number, do, when, 0
        note, put = CountingStore._note, CountingStore.pipe_file

        def noted(store: CountingStore, kind: str, path: str, times: int = 1) -> str:
            key = note(store, kind, path, times)
            if not key.endswith(HEARTBEAT):  # which comes when its time has come
                self.seen += 1
                if self.seen == self.number and self.when == "before":
                    self.do()
            return key

        def written(store: CountingStore, path: str, value: bytes, *mode: str, **more: Any) -> None:
            before = self.seen
            put(store, path, value, *mode, **more)
            if before < self.number <= self.seen and self.when == "after":
                self.number = 0
                self.do()

        patch.setattr(CountingStore, "_note", noted)
        patch.setattr(CountingStore, "pipe_file", written)


def fail() -> None:
    raise TimeoutError("no answer")


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", ["taken over", "refused", "lost"])
def test_any_request(
    store: type[CountingStore], place: Path, lens: Any, fault: str, step: int
) -> None:
    def work(out: str) -> Run:
        if f"{out.removeprefix('counting://')}/{MANIFEST}" in store.objects:
            return resume(out, model=lens)
        return run(lens, place / "corpus.txt", out, **OPTIONS)

    with pytest.MonkeyPatch.context() as patch:
        counting = Interfering(patch, 0, fail, "before")
        expected = examples.frames_of(work(f"{URL}/whole"))
    when = "after" if fault == "lost" else "before"
    for number in range(1, counting.seen + 1, step):
        out = f"{URL}/run-{number}"
        do = fail if fault != "taken over" else lambda out=out: work(out)  # type: ignore[misc]
        with pytest.MonkeyPatch.context() as patch:
            Interfering(patch, number, do, when)
            try:
                work(out)
            except NormLensError as error:
                assert "\n" not in str(error)  # noqa: PT017
        if fault == "taken over":  # the other one has finished
            assert Run.open(out).status().complete
        done = work(out)
        examples.assert_each_once(done)
        examples.assert_same_tables(done, expected, tolerance=0)
        assert resume(out, model=lens).check().sound

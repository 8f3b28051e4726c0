"""The thread that compacts beside a run: how far it may be behind, and that it forgets nothing."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any, cast

import pytest

from normlens.corpus.runs import background_compaction
from normlens.corpus.runs.background_compaction import BackgroundCompaction
from normlens.corpus.runs.compaction import Compaction
from normlens.corpus.runs.shards import Done


class Played:
    """A compaction that joins `files` shards at a time, each time only when it is let go on."""

    def __init__(self, files: int, fails: bool = False):
        self.files, self.fails = files, fails
        self.stopped, self.at_work, self.go_on = Event(), Event(), Event()
        self.small: list[int] = []
        self.joined: list[int] = []
        self.most = 0  # shards that waited to be joined

    @property
    def has_joined(self) -> bool:
        return bool(self.joined)

    def add(self, done: Done) -> None:
        self.small.append(done.number)
        self.most = max(self.most, len(self.small))

    def step(self, *, rest: bool = False) -> bool:
        if len(self.small) < (1 if rest else self.files):
            return False
        self.at_work.set()
        self.go_on.wait()
        if self.fails:
            raise ValueError("it fell")
        taken = self.small[: self.files]
        self.joined += taken
        del self.small[: len(taken)]
        return True


@pytest.fixture(autouse=True)
def four_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_compaction, "BEHIND", 4)
    monkeypatch.setattr(background_compaction, "_LOOK", 0.01)


def background(played: Played) -> BackgroundCompaction:
    return BackgroundCompaction(cast(Compaction, played))


def shards(*numbers: int) -> list[Done]:
    given: dict[str, Any] = {"sequences": 1, "failures": 0, "tokens": 1}
    times = {"started": 0.0, "finished": 1.0}
    return [Done(n, 1, 1, **given, **times, seconds={}, tables={}) for n in numbers]


def test_a_run_waits_for_a_compaction_that_is_far_behind() -> None:
    played, told = Played(files=2), Event()
    with background(played) as compaction:
        compaction.add(shards(0, 1))
        played.at_work.wait()

        def tell() -> None:
            compaction.add(shards(*range(2, 20)))
            told.set()

        driver = Thread(target=tell)
        driver.start()
        assert not told.wait(0.2)  # four of the eighteen have a place
        played.go_on.set()
        driver.join()
        assert compaction.finish() is None
    assert played.joined == list(range(20))
    assert played.most <= 2 + 4 + 1  # what is left of two, and at most as many as may wait


def test_nobody_waits_for_a_compaction_that_has_ended() -> None:
    played = Played(files=2, fails=True)
    with background(played) as compaction:
        compaction.add(shards(0, 1))
        played.at_work.wait()
        driver = Thread(target=lambda: compaction.add(shards(*range(2, 20))))
        driver.start()
        played.go_on.set()
        driver.join()
        with pytest.raises(ValueError, match="it fell"):
            compaction.finish()


def test_a_run_that_fails_leaves_its_compaction_behind() -> None:
    played = Played(files=2)

    def fail() -> None:
        with background(played) as compaction:
            compaction.add(shards(0, 1))
            played.at_work.wait()
            compaction.add(shards(2, 3, 4, 5))  # no place is left to tell it of the end
            played.go_on.set()
            raise RuntimeError("the driver fell")

    with pytest.raises(RuntimeError, match="the driver fell"):
        fail()
    assert len(played.joined) <= 2


def test_shards_that_come_with_the_end_are_joined() -> None:
    played = Played(files=3)
    played.go_on.set()
    compaction = background(played)
    for done in (*shards(0, 1, 2), None):
        compaction._new.put(done)  # all of it before the thread listens
    with compaction:
        assert compaction.finish() is None
    assert played.joined == [0, 1, 2]


def test_neighbours_that_are_missing_hold_nobody_up() -> None:
    played = Played(files=100)
    with background(played) as compaction:
        compaction.add(shards(*range(50)))  # more than may wait, and nothing is due
        played.go_on.set()
        assert compaction.finish() is None
    assert played.small == list(range(50))

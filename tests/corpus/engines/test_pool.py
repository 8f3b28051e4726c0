"""Who gets which block, and what happens when workers die: on a crew that only plays its part."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.corpus.data.records import Record
from normlens.corpus.engines import pool as pools
from normlens.corpus.engines.guard import Late
from normlens.corpus.engines.pool import (
    CERTAIN,
    EACH,
    IN_A_ROW,
    Answered,
    Call,
    Crew,
    Died,
    Event,
    Pool,
)
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten

SIZE = 3


class Played(Crew):
    """A crew without processes; sequences in `poison` kill, and what is written has its culprits.

    Workers answer in a random order, and write what they have gathered at random moments. `dies`
    says of a call to a worker whether that kills it.
    """

    def __init__(
        self,
        workers: int,
        poison: set[int],
        seed: int = 0,
        dies: Callable[[int, Call], bool] = lambda worker, call: False,
        starts: Callable[[int], bool] = lambda worker: True,
    ):
        self.workers, self.poison, self.chance = workers, poison, random.Random(seed)
        self.dies, self.starts = dies, starts
        self.hired = self.calls = 0
        self.asked: dict[int, list[tuple[int, Call]]] = {}
        self.deaths = 0
        self.most = 0  # blocks that one worker held at a time
        self.gathered: dict[int, list[int]] = {}  # blocks that a worker has not reported yet
        self.lost = 0  # of those that died

    @property
    def wanted(self) -> int:
        return self.workers

    def hire(self, worker: int) -> None:
        self.hired += 1
        self.asked[worker] = []

    def ask(self, worker: int, number: int, call: Call) -> None:
        self.calls += 1
        self.asked[worker].append((number, call))
        self.most = max(self.most, len(self.asked[worker]))

    def events(self) -> list[Event]:
        waiting = [worker for worker, asked in self.asked.items() if asked]
        worker = self.chance.choice(waiting)
        if self.asked[worker][0][1].method == "describe" and not self.starts(worker):
            del self.asked[worker]
            return [Died(worker, "it fell")]
        number, call = self.asked[worker].pop(self.chance.randrange(len(self.asked[worker])))
        if self.dies(worker, call) or self._kills(worker, call):
            self.deaths += 1
            self.lost += len(self.gathered.pop(worker, []))
            del self.asked[worker]
            return [Died(worker, "it fell")]
        return [Answered(worker, number, self._answer(worker, call))]

    def _kills(self, worker: int, call: Call) -> bool:
        if call.method not in ("compute", "probe"):
            return False
        block, *alone = call.arguments
        culprits = alone[1] if len(alone) > 1 else ()
        return any(index in self.poison and index not in culprits for index in _indices(block))

    def _answer(self, worker: int, call: Call) -> Any:
        gathered = self.gathered.setdefault(worker, [])
        match call.method:
            case "describe":
                return {}, {"host": "here"}
            case "compute":
                block, alone, *culprits = call.arguments
                if alone:
                    return written([block.number], *map(set, culprits))
                gathered.append(block.number)
                if self.chance.random() < 0.3:
                    return written(self.gathered.pop(worker))
                return Unwritten(block.number)
            case "write":
                return written(self.gathered.pop(worker)) if gathered else None
        return None

    def dismiss(self, worker: int) -> None:
        del self.asked[worker]

    def close(self, at_once: bool = False) -> None:
        return


def _indices(block: Block) -> range:
    return range(block.first, block.first + len(block.records))


def written(blocks: list[int], culprits: set[int] | None = None) -> FileSet:
    return FileSet(1, tuple(sorted(blocks)), 0, 0, 0, 0.0, 0.0, {}, {}, by={"culprits": culprits})


def read(number: int) -> Block:
    records = tuple(Record(f"r{i}", text="a") for i in range(SIZE))
    return Block(number, number * SIZE, records)


def computed(
    crew: Crew, count: int, attempts: int = 3, known: Counter[int] | None = None
) -> list[tuple[int, set[int]]]:
    """Blocks as they were reported, each with its culprits."""
    results = Pool(crew, attempts).compute(range(count), read, known)
    return [
        (number, each.by["culprits"] or set())
        for each in results
        if isinstance(each, FileSet)
        for number in each.blocks
    ]


@settings(max_examples=200, deadline=None)
@given(
    workers=st.integers(1, 4),
    count=st.integers(0, 8),
    poison=st.sets(st.integers(0, 23).filter(lambda i: i % SIZE), max_size=5),
    attempts=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_every_block_comes_once_without_its_culprits_alone(
    workers: int, count: int, poison: set[int], attempts: int, seed: int
) -> None:
    """At least one sequence of each block is harmless, so that the crew is never given up."""
    crew = Played(workers, poison, seed)
    known: Counter[int] = Counter()
    results = computed(crew, count, attempts, known)
    assert sorted(number for number, _ in results) == list(range(count))
    poison = {index for index in poison if index < count * SIZE}
    assert set().union(*(culprits for _, culprits in results)) == poison
    poisonous = {index // SIZE for index in poison}
    # Each poisonous block may take others along once; alone it dies until it is gone through, and
    # each culprit until it is certain.
    assert crew.deaths <= len(poisonous) * attempts + CERTAIN * len(poison)
    assert all(known[number] >= attempts for number in poisonous)
    # An innocent block is suspect once for each time that it shared a worker with a culprit.
    assert all(known[number] <= len(poisonous) for number in set(range(count)) - poisonous)
    assert crew.most <= EACH


def test_workers_hold_blocks_ahead_of_the_one_at_work() -> None:
    crew = Played(2, set())
    computed(crew, 50)
    assert crew.most == EACH


def test_a_suspect_has_a_worker_for_itself() -> None:
    alone: list[bool] = []

    class Watched(Played):
        def ask(self, worker: int, number: int, call: Call) -> None:
            super().ask(worker, number, call)
            held = [call for _, call in self.asked[worker]]
            if any(call.method == "compute" and call.arguments[1] for call in held):
                alone.append(len(held) == 1 and not self.gathered.get(worker))

    for seed in range(20):
        computed(Watched(2, {4}, seed), 12)
    assert len(alone) > 2 * 20  # those of the culprit, and some that shared its worker
    assert all(alone)


def test_blocks_that_were_suspect_before_are_tried_alone_or_one_by_one_at_once() -> None:
    crew = Played(1, {4})
    results = computed(crew, 3, attempts=3, known=Counter({1: 3}))
    assert crew.deaths == CERTAIN
    assert dict(results)[1] == {4}


def test_what_a_dead_worker_had_gathered_is_computed_again_without_suspicion() -> None:
    known: Counter[int] = Counter()
    crew = Played(2, {31}, seed=3)
    results = computed(crew, 40, known=known)
    assert crew.lost > 0
    assert sorted(number for number, _ in results) == list(range(40))
    assert len(known) <= 1 + 2 * EACH  # those that were at work beside the culprit


def test_what_is_lost_is_told() -> None:
    for seed in range(10):
        counted: Counter[int] = Counter()
        for each in Pool(Played(2, {31}, seed)).compute(range(40), read):
            if isinstance(each, Unwritten):
                counted[each.block] += -1 if each.lost else 1
        assert set(counted.values()) <= {0, 1}


def test_what_was_gathered_is_written_when_a_run_is_interrupted() -> None:
    crew = Played(2, set(), seed=1)
    pool, done = Pool(crew), list[int]()
    for each in pool.compute(range(50), read):
        done += each.blocks if isinstance(each, FileSet) else ()
        if len(done) > 10:
            break
    had = {number for gathered in crew.gathered.values() for number in gathered}
    rest = [number for each in pool.rest() for number in each.blocks]
    assert had <= set(rest)
    assert len({*done, *rest}) == len(done) + len(rest)


def test_one_death_at_a_sequence_alone_is_no_proof() -> None:
    happened: set[int] = set()

    def by_accident(worker: int, call: Call) -> bool:
        """Block 1 dies twice, and the first of its sequences once, all from outside."""
        if call.method == "compute" and call.arguments[0].number == 1 and len(call.arguments) == 2:
            return True
        first = call.method == "probe" and not happened
        happened.update({1} if first else ())
        return first

    results = computed(Played(1, set(), dies=by_accident), 3, attempts=2)
    assert happened
    assert sorted(results) == [(0, set()), (1, set()), (2, set())]


def test_a_block_that_dies_at_no_sequence_ends_in_one_line() -> None:
    def at_the_end(worker: int, call: Call) -> bool:
        return call.method == "compute" and call.arguments[0].number == 1

    with pytest.raises(RunError, match=r"block 1 \(it fell\), which is no single sequence's doing"):
        computed(Played(2, set(), dies=at_the_end), 3)


def test_nothing_is_repeated_for_ever() -> None:
    crew = Played(3, set(), dies=lambda worker, call: call.method in ("compute", "probe"))
    with pytest.raises(RunError, match="died one after another and none finished"):
        computed(crew, 1000)
    assert crew.deaths <= 1 + 3 * (3 + CERTAIN * IN_A_ROW)


# Sequences that hang ------------------------------------------------------------------------------

TIMEOUT = 20.0


class Hanging(Played):
    """Sequences in `hangs` never end; a second passes with every look at the crew.

    A worker that is `mute` while it hangs does not answer the question whether it does, either.
    """

    def __init__(self, workers: int, hangs: set[int], seed: int = 0, mute: bool = False):
        super().__init__(workers, set(), seed)
        self.hangs, self.mute = hangs, mute
        self.now = 0.0
        self.stuck: dict[int, tuple[int, float]] = {}  # worker → sequence, since when
        self.reasons: dict[int, str] = {}

    def monotonic(self) -> float:
        return self.now

    def ask(self, worker: int, number: int, call: Call) -> None:
        super().ask(worker, number, call)
        culprits = call.arguments[2] if len(call.arguments) == 3 else {}
        self.reasons |= culprits
        at = _indices(call.arguments[0]) if call.method in ("compute", "probe") else ()
        hanging = [index for index in at if index in self.hangs and index not in culprits]
        if hanging:
            self.stuck.setdefault(worker, (hanging[0], self.now))
        if hanging or (self.mute and worker in self.stuck):
            self.asked[worker].pop()

    def events(self) -> list[Event]:
        self.now += 1.0
        return super().events() if any(self.asked.values()) else []

    def dismiss(self, worker: int) -> None:
        super().dismiss(worker)
        assert worker in self.stuck, "a worker that does not hang was ended"
        self.deaths += 1

    def _answer(self, worker: int, call: Call) -> Any:
        if call.method == "pulse":
            index, since = self.stuck.get(worker, (0, self.now))
            late = Late(index, "it took too long") if self.now - since > TIMEOUT else None
            return late, TIMEOUT
        return super()._answer(worker, call)


def looked_after(
    crew: Hanging, count: int, patch: pytest.MonkeyPatch, attempts: int = 3
) -> tuple[list[Any], Counter[int]]:
    patch.setattr(pools, "time", crew)
    known: Counter[int] = Counter()
    results = Pool(crew, attempts, TIMEOUT).compute(range(count), read, known)
    done = [each for each in results if isinstance(each, FileSet)]
    return [number for each in done for number in each.blocks], known


@pytest.mark.parametrize("seed", range(20))
def test_workers_in_which_a_sequence_hangs_are_ended(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Hanging(2, {4, 10}, seed)
    results, known = looked_after(crew, 8, monkeypatch)
    assert sorted(results) == list(range(8))
    assert crew.reasons == dict.fromkeys((4, 10), "it took too long, each time it was tried alone")
    # What takes too long once is gone through at once.
    assert crew.deaths == 2 * (1 + CERTAIN)
    assert all(1 + CERTAIN <= known[number] <= 2 + CERTAIN for number in (1, 3))


def test_workers_that_hang_without_an_answer_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Hanging(2, {4}, mute=True)
    results, known = looked_after(crew, 8, monkeypatch)
    assert sorted(results) == list(range(8))
    reason = "it kills its worker: it was ended after 20 s without an answer"
    assert crew.reasons == {4: f"{reason}, each time it was tried alone"}
    assert crew.deaths == known[1] == 3 + CERTAIN


def test_workers_that_answer_are_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked now and then; a run that takes far longer than a sequence may is left alone."""
    crew = Hanging(3, set())
    results, _ = looked_after(crew, 200, monkeypatch)
    assert len(results) == 200
    assert crew.now > 5 * TIMEOUT
    assert crew.calls > 200, "none was asked"
    assert crew.deaths == 0


def test_workers_that_cannot_start_end_in_one_line() -> None:
    crew = Played(4, set(), starts=lambda worker: False)
    with pytest.raises(RunError, match=r"die while they load the model \(it fell\)"):
        computed(crew, 3)
    assert crew.hired <= 4 + 3


def test_the_run_goes_on_with_the_workers_that_could_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: set[int] = set()

    def only_two(worker: int) -> bool:
        started.update({worker} if len(started) < 2 else ())
        return worker in started

    crew = Played(4, set(), starts=only_two)
    results = computed(crew, 200)
    assert len(results) == 200
    assert crew.hired < 20
    assert "the run goes on with 2" in capsys.readouterr().err


def test_workers_join_while_the_run_goes_on() -> None:
    served: Counter[int] = Counter()

    class Growing(Played):
        def ask(self, worker: int, number: int, call: Call) -> None:
            served[worker] += 1
            self.workers = 1 if sum(served.values()) < 10 else 3
            super().ask(worker, number, call)

    assert len(computed(Growing(1, set()), 100)) == 100
    assert len(served) == 3

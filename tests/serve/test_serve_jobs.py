"""The queue and what is kept, without threads and with a clock that stands still."""

from __future__ import annotations

import pytest

from normlens.serve.analyses import AnalysisRequest, Job, Jobs, Limits, QueueFullError, Stopped


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def jobs_with(clock: Clock, **limits: float) -> Jobs:
    return Jobs(Limits(**limits), clock)  # type: ignore[arg-type]


def ask(jobs: Jobs, text: str) -> str:
    return jobs.submit(AnalysisRequest(model="model", text=text), layers=3).id


def finish(jobs: Jobs, result: bytes) -> Job:
    job = jobs.take()
    assert job is not None
    jobs.finish(job, result)
    return job


def state(jobs: Jobs, id: str) -> str | None:
    job = jobs.find(id)
    return None if job is None else job.state


def test_first_come_first_served(clock):
    jobs = jobs_with(clock)
    ids = [ask(jobs, text) for text in "abc"]
    assert [jobs.find(id).position for id in ids] == [0, 1, 2]
    running = jobs.take()
    assert running.question.text == "a"
    assert [jobs.find(id).position for id in ids] == [0, 1, 2]
    assert [state(jobs, id) for id in ids] == ["running", "queued", "queued"]
    jobs.finish(running, b"A")
    assert [jobs.find(id).position for id in ids] == [0, 0, 1]
    assert jobs.find(ids[0]).result == b"A"
    assert jobs.find(ids[0]).layers_done == 3


def test_a_full_queue(clock):
    jobs = jobs_with(clock, queue=2)
    ask(jobs, "a")
    running = jobs.take()
    ask(jobs, "b")
    ask(jobs, "c")
    with pytest.raises(QueueFullError):
        ask(jobs, "d")
    clock.now += 7.5
    jobs.finish(running, b"A")
    with pytest.raises(QueueFullError) as caught:
        ask(jobs, "d")
    assert caught.value.headers == {"Retry-After": "8"}
    jobs.take()
    ask(jobs, "d")


def test_an_answer_at_hand_needs_no_place_in_the_queue(clock):
    jobs = jobs_with(clock, queue=1)
    first = ask(jobs, "a")
    finish(jobs, b"A")
    ask(jobs, "b")
    again = ask(jobs, "a")
    assert again != first
    assert jobs.find(again).result is jobs.find(first).result


@pytest.mark.parametrize(
    "other",
    [
        AnalysisRequest(model="other", text="a"),
        AnalysisRequest(model="model", text="b"),
        AnalysisRequest(model="model", text="a", pair="a"),
        AnalysisRequest(model="model", text="a", rule="gradient"),
    ],
)
def test_another_question_has_another_answer(other, clock):
    jobs = jobs_with(clock)
    ask(jobs, "a")
    finish(jobs, b"A")
    assert state(jobs, jobs.submit(other, layers=3).id) == "queued"


def test_a_cancelled_twin_takes_nothing_from_the_other(clock):
    jobs = jobs_with(clock)
    first, second = ask(jobs, "a"), ask(jobs, "a")
    running = jobs.take()
    assert jobs.cancel(first).state == "cancelled"
    with pytest.raises(Stopped):
        jobs.progress(running, 1)
    assert jobs.find(second).position == 1  # until the worker lets go
    jobs.finish(running, b"A")  # which comes after all, and is not kept
    assert state(jobs, ask(jobs, "a")) == "queued"
    finish(jobs, b"A")
    assert (state(jobs, first), state(jobs, second)) == ("cancelled", "done")


@pytest.mark.parametrize("end", ["done", "failed"])
def test_what_has_ended_cannot_be_cancelled(end, clock):
    jobs = jobs_with(clock)
    id = ask(jobs, "a")
    running = jobs.take()
    if end == "done":
        jobs.finish(running, b"A")
    else:
        jobs.finish(running, error="why")
    assert jobs.cancel(id).state == end
    assert jobs.cancel("unknown") is None
    # A failure is not remembered as an answer.
    assert state(jobs, ask(jobs, "a")) == ("done" if end == "done" else "queued")


def test_results_are_dropped_after_a_while(clock):
    jobs = jobs_with(clock, kept_seconds=60)
    old = ask(jobs, "a")
    finish(jobs, b"A")
    clock.now += 40
    new = ask(jobs, "b")
    finish(jobs, b"B")
    clock.now += 40
    assert (state(jobs, old), state(jobs, new)) == (None, "done")
    assert jobs.cancel(old) is None
    assert state(jobs, ask(jobs, "a")) == "queued"


def test_only_so_many_are_kept(clock):
    jobs = jobs_with(clock, kept=2)
    ids = []
    for text in "abc":
        ids.append(ask(jobs, text))
        finish(jobs, text.encode())
    assert [state(jobs, id) for id in ids] == [None, "done", "done"]


def test_only_so_many_bytes_are_kept(clock):
    jobs = jobs_with(clock, kept_bytes=100)
    first = ask(jobs, "a")
    finish(jobs, bytes(60))
    shared = ask(jobs, "a")  # the same bytes, counted once
    assert [state(jobs, id) for id in (first, shared)] == ["done", "done"]
    second = ask(jobs, "b")
    finish(jobs, bytes(60))
    assert [state(jobs, id) for id in (first, shared, second)] == [None, None, "done"]
    large = ask(jobs, "c")
    finish(jobs, bytes(1000))
    assert [state(jobs, id) for id in (second, large)] == [None, "done"]


def test_waiting_and_running_ones_are_never_dropped(clock):
    jobs = jobs_with(clock, kept=1, kept_seconds=60)
    first, second = ask(jobs, "a"), ask(jobs, "b")
    jobs.take()
    clock.now += 1000
    assert (state(jobs, first), state(jobs, second)) == ("running", "queued")


def test_closing_cancels_everything(clock):
    jobs = jobs_with(clock)
    ids = [ask(jobs, text) for text in "abc"]
    running = jobs.take()
    jobs.close()
    assert [state(jobs, id) for id in ids] == ["cancelled"] * 3
    with pytest.raises(Stopped):
        jobs.progress(running, 1)
    assert jobs.take() is None
    with pytest.raises(QueueFullError):
        ask(jobs, "d")

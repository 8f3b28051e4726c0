"""Threads that share a model: right numbers, no deadlock, nothing left behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from one_case import in_one_case
from transformers import AutoModelForCausalLM

import normlens
from normlens.errors import InputError
from normlens.models.tiny import scramble, tiny_config, tiny_model
from normlens.trace import locking
from normlens.trace.locking import exclusive

PATIENCE = 60  # seconds after which a thread counts as stuck


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_together(tasks: list[Callable[[], Any]], threads: int = 4) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(task) for task in tasks]]


def texts(count: int) -> list[list[int]]:
    draw = random.Random(0)
    return [draw.choices(range(3, 60), k=draw.randint(2, 12)) for _ in range(count)]


def hooks_of(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def hammer(lenses: list[normlens.Lens], count: int = 60) -> None:
    """Many texts at once give what they give one after another."""
    asked = [(lens, ids) for ids in texts(count // len(lenses)) for lens in lenses]
    expected = [lens.maps(input_ids=ids) for lens, ids in asked]
    tasks = [lambda lens=lens, ids=ids: lens.maps(input_ids=ids) for lens, ids in asked]
    for found, alone in zip(run_together(tasks), expected, strict=True):
        assert found == alone
    assert all(hooks_of(lens.model) == 0 for lens in lenses)


# Models -------------------------------------------------------------------------------------------


@in_one_case(("family", "prepare"), [("bert", False), ("llama", True)])
def test_one_lens_in_many_threads(family, prepare):
    lens = normlens.load(tiny_model(family))
    hammer([lens.prepare() if prepare else lens])


def test_two_lenses_on_one_model():
    """In training mode and with another attention, both of which an analysis switches."""
    model = tiny_model("bert", hidden_dropout_prob=0.5)
    model.set_attn_implementation("sdpa")
    model.train()
    hammer([normlens.load(model), normlens.load(model)])
    assert model.training
    assert model.config._attn_implementation == "sdpa"


def causal_model() -> Any:
    """A decoder with the attention that transformers takes by itself, in which it hides masks."""
    model = AutoModelForCausalLM.from_config(tiny_config("gpt2"), attn_implementation="sdpa")
    scramble(model)
    return model.eval().requires_grad_(False)


def test_a_plain_call_keeps_its_kind_of_attention_when_an_analysis_begins_or_ends():
    """Its mask was made for that kind, and in layers of another kind it would hide nothing."""
    model = causal_model()
    lens = normlens.load(model)
    other = torch.tensor([[5, 6, 7, 8, 9]])
    expected = model(other).logits
    arrived, allowed = threading.Semaphore(0), threading.Semaphore(0)

    def wait(*_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            arrived.release()
            assert allowed.acquire(timeout=PATIENCE)

    for block in model.transformer.h[:2]:
        block.register_forward_pre_hook(wait)

    def progress(done: int, _: int) -> None:
        if done == 1:  # the call has made its mask; let its first layer run during the analysis
            allowed.release()
            assert arrived.acquire(timeout=PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: model(other).logits)
        assert arrived.acquire(timeout=PATIENCE)
        lens.maps(input_ids=[5, 6, 7], progress=progress)
        allowed.release()
        assert torch.equal(call.result(PATIENCE), expected)


def test_from_inside_an_analysis_another_one_is_refused():
    lens = normlens.load(tiny_model("bert"))

    def progress(*_: int) -> None:
        lens.maps(input_ids=[3, 4])

    with pytest.raises(InputError, match="at work already, in this same thread"):
        lens.maps(input_ids=[5, 6, 7], progress=progress)
    assert hooks_of(lens.model) == 0
    assert len(lens.maps(input_ids=[3, 4]).tokens) == 2


@in_one_case("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_lets_go_of_the_model(error):
    model = tiny_model("bert").train()
    lens = normlens.load(model)
    expected = lens.maps(input_ids=[5, 6, 7])

    def progress(*_: int) -> None:
        raise error

    with pytest.raises(error):
        lens.maps(input_ids=[3, 4], progress=progress)
    assert hooks_of(model) == 0
    assert model.training
    (found,) = run_together([lambda: normlens.load(model).maps(input_ids=[5, 6, 7])])
    assert found == expected


# Turns alone --------------------------------------------------------------------------------------


class Thing:
    """Something that threads share."""


def test_overlapping_sets_never_run_at_once_and_never_wait_in_a_circle():
    things = [Thing() for _ in range(4)]
    exclusive(things[:1], lambda: None)
    exclusive(things[1:2], lambda: None)
    busy: list[Thing] = []
    draw = random.Random(0)

    def work(shared: list[Thing]) -> None:
        assert not set(shared) & set(busy)
        busy.extend(shared)
        for thing in shared:
            busy.remove(thing)

    tasks = []
    for _ in range(400):
        shared = draw.sample(things, draw.randint(1, 4))
        tasks.append(lambda shared=shared: exclusive(shared, lambda: work(shared)))
    run_together(tasks, threads=8)


def test_nothing_is_remembered_of_what_is_gone():
    gc.collect()
    before = len(locking._turns)
    model = tiny_model("bert")
    exclusive(model, lambda: None)
    assert len(locking._turns) > before
    del model
    gc.collect()
    assert len(locking._turns) <= before

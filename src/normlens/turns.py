"""Threads that share a model or a tokenizer take turns.

Hooks, the training mode and the kind of attention belong to a model's modules and configuration,
so two analyses at once would read each other's vectors. The lock belongs to these objects, not to
a lens: two lenses on one model wait for each other, and so do lenses on two models that have a
module in common. Two models without common parts run side by side.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from normlens.errors import InputError

T = TypeVar("T")

_numbers = itertools.count()
_guard = threading.Lock()  # of the table below, never held while a turn is waited for


@dataclass(eq=False)
class _Turn:
    """One lock; turns are taken in the order of their numbers, so that nobody waits in a circle."""

    number: int = field(default_factory=lambda: next(_numbers))
    lock: Any = field(default_factory=threading.RLock)  # of the kind that knows its owner


#: The turn of each object, by its id; an entry goes when its object does.
_turns: dict[int, tuple[weakref.ref[Any], _Turn]] = {}
_without_weak_references = _Turn()


def alone_with_model(model: nn.Module, work: Callable[[], T]) -> T:
    """What `work` returns, while no other thread is at work with this model or a part of it."""
    modules = list(model.modules())
    configs = [m.config for m in modules if getattr(m, "config", None) is not None]
    return alone_with([*modules, *configs], work, what="model")


def alone_with(shared: Iterable[Any], work: Callable[[], T], what: str = "object") -> T:
    """What `work` returns, while no other thread is at work with one of the `shared` objects."""
    turns = _turns_of(shared)
    if any(turn.lock._is_owned() for turn in turns):
        raise InputError(
            f"this {what} is at work already, in this same thread (perhaps from a `progress` "
            "function); wait for that call to return"
        )
    return _holding(turns, work)


def _holding(turns: Sequence[_Turn], work: Callable[[], T]) -> T:
    if not turns:
        return work()
    # Python takes and releases a lock of this kind in a `with` statement without a point between
    # where Ctrl-C could strike; no other way is as safe.
    with turns[0].lock:
        return _holding(turns[1:], work)


def _turns_of(shared: Iterable[Any]) -> list[_Turn]:
    """The turns to take, in order; objects that have none join those of their company."""
    with _guard:
        found: set[_Turn] = set()
        new: list[Any] = []
        for item in shared:
            known = _turns.get(id(item))
            if known is None:
                new.append(item)
            else:
                found.add(known[1])
        if new:
            turn = min(found, key=lambda turn: turn.number, default=None) or _Turn()
            found |= {_register(item, turn) for item in new}
    return sorted(found, key=lambda turn: turn.number)


def _register(item: Any, turn: _Turn) -> _Turn:
    key = id(item)
    try:
        # Runs when the object dies, before its id can be used again.
        reference = weakref.ref(item, lambda _: _turns.pop(key, None))
    except TypeError:
        return _without_weak_references
    _turns[key] = reference, turn
    return turn

"""Threads that share a model or a tokenizer take turns.

Hooks, the training mode and the kind of attention are state of a model's modules and configuration,
so two analyses at once would read each other's vectors. The lock belongs to these objects, not to
a lens: two lenses on one model wait for each other, and so do lenses on two models that have a
module in common. Models without common parts run in parallel.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from normlens.after_fork import process_lock
from normlens.errors import InputError

T = TypeVar("T")

_numbers = itertools.count()
_guard = process_lock()  # of the table below; never held while waiting for a turn


@dataclass(eq=False)
class _Turn:
    """A lock with a number; locks are taken in the order of numbers, which prevents deadlock."""

    number: int = field(default_factory=lambda: next(_numbers))
    #: reentrant, because such a lock can tell whether this thread holds it
    lock: Any = field(default_factory=process_lock)


#: The turn of each object, by its id; an entry is removed when its object is.
_turns: dict[int, tuple[weakref.ref[Any], _Turn]] = {}
_without_weak_references = _Turn()


def alone_with_model(model: nn.Module, work: Callable[[], T]) -> T:
    """Call `work` while no other thread uses this model or a part of it, and return its result."""
    return alone_with(_parts_of(model), work, what="model")


def while_idle(model: nn.Module, work: Callable[[], T]) -> T:
    """Call `work` while no other thread uses this model; one that uses it itself need not wait."""
    return _holding(_turns_of(_parts_of(model)), work)


def alone_with(shared: Iterable[Any], work: Callable[[], T], what: str = "object") -> T:
    """Call `work` while no other thread uses one of the `shared` objects; return its result."""
    turns = _turns_of(shared)
    if any(turn.lock._is_owned() for turn in turns):
        raise InputError(
            f"this {what} is at work already, in this same thread (perhaps from a `progress` "
            "function); wait for that call to return"
        )
    return _holding(turns, work)


def _parts_of(model: nn.Module) -> list[Any]:
    """What a model shares with others: its modules and their configurations."""
    modules = list(model.modules())
    return [*modules, *(m.config for m in modules if getattr(m, "config", None) is not None)]


def _holding(turns: Sequence[_Turn], work: Callable[[], T]) -> T:
    """Call `work` while this thread holds all `turns`."""
    if not turns:
        return work()
    # In a `with` statement Python takes and releases such a lock with no point in between where
    # Ctrl-C could interrupt it; nothing else is as safe.
    with turns[0].lock:
        return _holding(turns[1:], work)


def _turns_of(shared: Iterable[Any]) -> list[_Turn]:
    """The turns to take, in order; objects without a turn share that of the others."""
    with _guard:
        turns: set[_Turn] = set()
        new: list[Any] = []
        for item in shared:
            entry = _turns.get(id(item))
            if entry is None:
                new.append(item)
            else:
                turns.add(entry[1])
        if new:
            turn = min(turns, key=lambda turn: turn.number, default=None) or _Turn()
            turns |= {_register(item, turn) for item in new}
    return sorted(turns, key=lambda turn: turn.number)


def _register(item: Any, turn: _Turn) -> _Turn:
    """Give an object its turn; those without weak references share one."""
    key = id(item)
    try:
        # The callback runs when the object dies, before its id can be used again.
        reference = weakref.ref(item, lambda _: _turns.pop(key, None))
    except TypeError:
        return _without_weak_references
    _turns[key] = reference, turn
    return turn

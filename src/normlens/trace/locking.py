"""Locks for threads that share a model, also in a process that was forked meanwhile."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from torch import nn

from normlens.errors import InputError

# What a forked process puts right before anything else.
#
# Only the thread that forks goes on in the child. What other threads held stays locked there, and
# what they had changed in a model for a while stays changed, since nobody is left to put it back.


_locks: weakref.WeakSet[Any] = weakref.WeakSet()
#: The thread of each change that has not been undone yet, and what undoes it.
_changes: dict[int, tuple[int, Callable[[], None]]] = {}
_numbers = itertools.count()


def process_lock() -> Any:
    """A reentrant lock that no thread of a parent process holds."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


@contextmanager
def undoing(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` on every way out, to its end though Ctrl-C may strike meanwhile.

    A process that another thread forks while this is open calls it at once. It may be called twice.
    """
    number = next(_numbers)
    _changes[number] = threading.get_ident(), undo
    try:
        yield
    finally:
        try:
            undo()
        except KeyboardInterrupt:
            undo()
            raise
        finally:
            _changes.pop(number, None)


def _put_right() -> None:
    """Undo what threads of the parent had changed, and make their locks new."""
    here = threading.get_ident()
    for number, (thread, undo) in reversed(list(_changes.items())):
        if thread != here:
            del _changes[number]
            undo()
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    if sys.version_info < (3, 12):  # where a cached property locks all objects of its class
        for kept in _cached_properties():
            if not kept.lock._is_owned():
                kept.lock = threading.RLock()


def _cached_properties() -> Iterator[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith("normlens.")]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    for kind in kinds:
        yield from (value for value in vars(kind).values() if isinstance(value, cached_property))


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_put_right)


# Threads that share a model or a tokenizer take turns.
#
# Hooks, the training mode and the kind of attention are state of a model's modules and
# configuration, so two analyses at once would read each other's vectors. The lock belongs to these
# objects, not to a lens: two lenses on one model wait for each other, and so do lenses on two
# models that have a module in common. Models without common parts run in parallel.


T = TypeVar("T")

_guard = process_lock()  # of the table below; never held while waiting for a turn


@dataclass(eq=False)
class _Lock:
    """A lock with a number; locks are taken in the order of numbers, which prevents deadlock."""

    number: int = field(default_factory=lambda: next(_numbers))
    #: reentrant, because such a lock can tell whether this thread holds it
    lock: Any = field(default_factory=process_lock)


#: The turn of each object, by its id; an entry is removed when its object is.
_turns: dict[int, tuple[weakref.ref[Any], _Lock]] = {}
_without_weak_references = _Lock()


def exclusive(model: nn.Module, work: Callable[[], T]) -> T:
    """Call `work` while no other thread uses this model or a part of it, and return its result."""
    return exclusive_of(_parts_of(model), work, what="model")


def while_idle(model: nn.Module, work: Callable[[], T]) -> T:
    """Call `work` while no other thread uses this model; one that uses it itself need not wait."""
    return _holding(_locks_of(_parts_of(model)), work)


def exclusive_of(shared: Iterable[Any], work: Callable[[], T], what: str = "object") -> T:
    """Call `work` while no other thread uses one of the `shared` objects; return its result."""
    locks = _locks_of(shared)
    if any(turn.lock._is_owned() for turn in locks):
        raise InputError(
            f"this {what} is at work already, in this same thread (perhaps from a `progress` "
            "function); wait for that call to return"
        )
    return _holding(locks, work)


def _parts_of(model: nn.Module) -> list[Any]:
    """What a model shares with others: its modules and their configurations."""
    modules = list(model.modules())
    return [*modules, *(m.config for m in modules if getattr(m, "config", None) is not None)]


def _holding(locks: Sequence[_Lock], work: Callable[[], T]) -> T:
    """Call `work` while this thread holds all `locks`."""
    if not locks:
        return work()
    # In a `with` statement Python takes and releases such a lock with no point in between where
    # Ctrl-C could interrupt it; nothing else is as safe.
    with locks[0].lock:
        return _holding(locks[1:], work)


def _locks_of(shared: Iterable[Any]) -> list[_Lock]:
    """The turns to take, in order; objects without a turn share that of the others."""
    with _guard:
        locks: set[_Lock] = set()
        new: list[Any] = []
        for item in shared:
            entry = _turns.get(id(item))
            if entry is None:
                new.append(item)
            else:
                locks.add(entry[1])
        if new:
            turn = min(locks, key=lambda turn: turn.number, default=None) or _Lock()
            locks |= {_register(item, turn) for item in new}
    return sorted(locks, key=lambda turn: turn.number)


def _register(item: Any, turn: _Lock) -> _Lock:
    """Give an object its turn; those without weak references share one."""
    key = id(item)
    try:
        # The callback runs when the object dies, before its id can be used again.
        reference = weakref.ref(item, lambda _: _turns.pop(key, None))
    except TypeError:
        return _without_weak_references
    _turns[key] = reference, turn
    return turn

"""Share a model among threads and forked processes: locks, and changes that are undone."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

from torch import nn

from normlens.errors import InputError

# What a forked process puts right before anything else.
#
# Only the thread that forks goes on in the child. What other threads held stays locked there, and
# what they had changed in a model for a while stays changed, since nobody is left to put it back.


_locks: weakref.WeakSet[Any] = weakref.WeakSet()
#: The thread of each `Undo` that is open, by its id.
_open: dict[int, tuple[int, Undo]] = {}


def process_lock() -> Any:
    """A reentrant lock that no thread of a parent process holds."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


U = TypeVar("U", bound="Undo")


class Undo(list[Callable[[], object]]):
    """What undoes changes; each is listed before its change is made, and may be called twice.

    They are called on every way out of the `with` statement, the last one first, to their end
    though Ctrl-C may strike meanwhile. A process that another thread forks calls them at once.
    """

    def __enter__(self: U) -> U:
        _open[id(self)] = threading.get_ident(), self
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call()
        except KeyboardInterrupt:
            self.call()
            raise
        finally:
            _open.pop(id(self), None)

    def call(self) -> None:
        for undo in reversed(self):
            undo()


def _put_right() -> None:
    """Undo what threads of the parent had changed, and make their locks new."""
    here = threading.get_ident()
    for key, (thread, undo) in reversed(list(_open.items())):
        if thread != here:
            del _open[key]
            undo.call()
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


#: A number and a reentrant lock, which can tell whether this thread holds it. Turns are taken in
#: the order of numbers, which prevents deadlock.
Turn = tuple[int, Any]

_numbers = itertools.count()
#: The turn of each object, by its id; an entry is removed when its object is.
_turns: dict[int, Turn] = {}
_without_weak_references: Turn = next(_numbers), process_lock()


def exclusive(
    shared: nn.Module | Sequence[Any], work: Callable[[], T], *, again: bool = False
) -> T:
    """Call `work` while no other thread uses this model or a part of it, or one of these objects.

    Returns its result. With `again` this thread may be at work with them already.
    """
    turns = _turns_of(shared)
    for _, lock in turns:
        if lock._is_owned() and not again:
            what = "model" if isinstance(shared, nn.Module) else "object"
            raise InputError(
                f"this {what} is at work already, in this same thread (perhaps from a `progress` "
                "function); wait for that call to return"
            )
    # In a `with` statement Python takes and releases such a lock with no point in between where
    # Ctrl-C could interrupt it; nothing else is as safe.
    (_, lock), *others = turns
    with lock:
        return _holding(others, work) if others else work()


def _holding(turns: Sequence[Turn], work: Callable[[], T]) -> T:
    """Call `work` while this thread holds these locks, too."""
    (_, lock), *others = turns
    with lock:
        return _holding(others, work) if others else work()


def _turns_of(shared: nn.Module | Sequence[Any]) -> list[Turn]:
    """The turns to take, in order; objects without a turn share that of the others.

    A model shares its modules and their configurations with others.
    """
    items = list(shared.modules() if isinstance(shared, nn.Module) else shared)
    for module in items[:] if isinstance(shared, nn.Module) else ():
        if getattr(module, "config", None) is not None:
            items.append(module.config)
    with _guard:
        known = list(filter(None, map(_turns.get, map(id, items))))
        first = min(known, default=None) or (next(_numbers), process_lock())
        for item in items:
            key = id(item)
            if key not in _turns:
                try:
                    # It is called when the object dies, before its id can be used again.
                    weakref.finalize(item, _turns.pop, key, None)
                except TypeError:
                    known.append(_without_weak_references)
                else:
                    _turns[key] = first
                    known.append(first)
    return sorted(set(known))


# Changes that one thread alone sees: hooks and other methods.


class Hooks(Undo):
    """Hooks on the calls that one thread makes, all taken off at the end.

    torch notes a hook, and how it is to be called, one after the other. A call by another thread
    may fall in between and run the hook with arguments missing, so its thread is asked before
    anything else.
    """

    def __init__(self) -> None:
        # Ctrl-C inside torch may keep a hook from being noted; it must not act on later calls.
        self._threads = {threading.get_ident()}
        super().__init__([self._threads.clear])

    def before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Have `hook(module, args, kwargs)` called before the module runs."""
        listener = partial(self._listen, hook)
        self.append(module.register_forward_pre_hook(listener, with_kwargs=True).remove)

    def behind(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Have `hook(module, args, kwargs, output)` called when the module has run."""
        listener = partial(self._listen, hook)
        self.append(module.register_forward_hook(listener, with_kwargs=True).remove)

    def _listen(self, hook: Callable[..., Any], *call: Any) -> Any:
        return hook(*call) if threading.get_ident() in self._threads else None


#: Takes a method of a module and returns the function to use instead.
Change = Callable[[Callable[..., object]], Callable[..., object]]


@contextmanager
def other_methods(changes: Mapping[tuple[nn.Module, str], Change]) -> Iterator[None]:
    """While this is open, this thread's calls of methods, by module and name, use other functions.

    No class and no weight is touched: the function is an attribute of the module, as some packages
    have put one there already, and what was there before is put back on every way out.
    """
    threads = {threading.get_ident()}

    def switch(real: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            chosen = other if threading.get_ident() in threads else real
            return chosen(*args, **kwargs)

        return function

    with Undo([threads.clear]) as undo:
        for (module, name), change in changes.items():
            attributes, real = vars(module), getattr(module, name)
            if name in attributes:
                undo.append(partial(attributes.__setitem__, name, real))
            else:
                undo.append(partial(attributes.pop, name, None))
            attributes[name] = switch(real, change(real))
        yield


def other_forwards(changes: Mapping[nn.Module, Change]) -> AbstractContextManager[None]:
    """While this is open, calls of these modules by this thread use other `forward` functions."""
    return other_methods({(module, "forward"): change for module, change in changes.items()})

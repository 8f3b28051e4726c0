"""Errors that mean too little memory, whoever raises them, as one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from normlens.errors import MemoryLimitError, NormLensError

#: What libraries say when they get no memory: CUDA and torch's allocator; the operating system;
#: C++; oneDNN, which says no more; the loader of shared libraries.
_SAID = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "bad allocation",
    "could not create a primitive",
    "could not create a memory",
    "failed to map segment from shared object",
)
#: What to do instead of an analysis that does not fit.
SMALLER = "use shorter texts, a smaller model or another device"
_OTHER_CAUSE = "not permitted"  # of the last: a library on a disk that may not run any


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed, on any device."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(said in text for said in _SAID) and _OTHER_CAUSE not in text


def process_limit() -> str:
    """The limit of this process's addresses, in words that follow an advice; "" without one."""
    try:
        import resource  # not there on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return ""
    if limit == resource.RLIM_INFINITY:
        return ""
    return f", or raise the limit of this process, which is {limit / (1 << 30):.1f} GiB (ulimit -v)"


@contextmanager
def shortage_explained(what: str, instead: str) -> Iterator[None]:
    """Turn an error that means too little memory for `what` into one that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError, ImportError) as error:
        if isinstance(error, NormLensError) or not is_out_of_memory(error):
            raise
        raise MemoryLimitError(
            f"there is not enough memory for {what}; {instead}{process_limit()}"
        ) from error

"""One process at a time in a run's folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from normlens.corpus.runs.folder import Folder, LocalFolder, RunError
from normlens.corpus.runs.ledger import LOCK as NAME
from normlens.errors import OutputError, parse_json, system_reason

_ATTEMPTS = 4


class Lock:
    """The lock of a folder while it is held; a store without locks has one that is always there."""

    def __init__(self, path: Path | None = None, descriptor: int = -1, token: str | None = None):
        self._path, self._descriptor = path, descriptor
        #: by which workers recognise the folder, wherever they are; None where there is no lock
        self.token = token

    def check(self) -> None:
        """Refuse to go on if the folder is no longer where it was: moved, removed or replaced."""
        if self._path is None:
            return
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._descriptor)):
            raise OutputError(
                f"{str(self._path.parent)!r} was moved or removed while the run went on; what was "
                "done is kept where it is now: go on with normlens run --resume and that folder"
            )


@contextmanager
def locked(folder: Folder) -> Iterator[Lock]:
    """Hold the folder's lock, or say who holds it.

    The lock belongs to the open file, so the system lifts it when its holder ends, however it
    ends. Object stores have no locks; there it is for the user to start one run only. A folder that
    is new and that nothing was written to before an error is removed again.
    """
    if not isinstance(folder, LocalFolder):
        yield Lock()
        return
    path = folder.path / NAME
    is_new = not folder.path.exists()
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        # A lock that is a link could have another file emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
    try:
        if not _take(descriptor, path):
            raise RunError(
                f"another process{_named(_read(descriptor))} is working in {str(folder)!r}; wait "
                "until it has ended, or end it"
            )
        lock = Lock(path, descriptor, uuid.uuid4().hex)
        lock.check()  # who had it before may have removed the folder
        _write(descriptor, _self(lock.token))
        try:
            yield lock
        except BaseException:
            if is_new:
                _remove_alone(path)
            raise
        finally:
            # The file stays: removing it would let two others lock two files of one name.
            _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _remove_alone(path: Path) -> None:
    """Remove the lock and the folder around it, unless there are other files."""
    with suppress(OSError):  # among other reasons because the folder is gone
        if os.listdir(path.parent) == [NAME]:
            path.unlink()
            path.parent.rmdir()


def _take(descriptor: int, path: Path) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            # `holder` touches the lock for a moment; a run holds it for longer than that.
            if attempt + 1 < _ATTEMPTS:
                time.sleep(0.05)
        except OSError as error:
            raise OutputError(f"cannot lock {str(path)!r}: {system_reason(error)}") from error
    return False


def holder(folder: Folder) -> str | None:
    """Tell who works in the folder now ("pid 71 on node3"); None if nobody does or can tell."""
    if not isinstance(folder, LocalFolder):
        return None
    try:
        # Neither a link nor a pipe in its place is worth waiting for.
        descriptor = os.open(folder.path / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(_read(descriptor)).strip(" ()") or "another process"
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def check_same_folder(folder: Folder, token: str | None) -> None:
    """Refuse a folder that is not the one in which the driver holds the lock with this token.

    A worker on another machine calls it: a path there may be another disk's.
    """
    if token is None:
        return
    for attempt in range(_ATTEMPTS):
        if token.encode() in (folder.read(NAME) or b""):
            return
        if attempt + 1 < _ATTEMPTS:
            time.sleep(1.0)  # a network's disk may show a new file a little later
    raise RunError(
        f"the worker on {socket.gethostname()} does not see the run's folder {str(folder)!r}, "
        "where it writes its tables; give --out a folder on a disk that all machines share, or a "
        "URL such as s3://bucket/run"
    )


def _self(token: str | None) -> bytes:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    told = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "token": token}
    return json.dumps(told).encode()


def _named(contents: bytes) -> str:
    try:
        owner = parse_json(contents)
        return f" (pid {owner['pid']} on {owner['host']}, since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return ""  # it has the lock but has not written its name yet


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, 4096, 0)


def _write(descriptor: int, contents: bytes) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, contents, 0)
        os.fsync(descriptor)  # workers on other machines look for it
    except OSError:
        pass  # the name is a courtesy; a full disk must not hide what else went wrong

"""Files in a run's folder that hold nothing of its results: the run can be read without them."""

from __future__ import annotations

import os

from normlens.corpus.runs.folder import TEMPORARY, Folder, LocalFolder
from normlens.errors import OutputError, system_reason

#: Held by the process that works here.
LOCK = "lock"
#: Where each shard begins in the data.
DATA_INDEX = "data-index.json"
#: Which pairs of subwords are kept.
KEPT_PAIRS = "kept-pairs.bin"
#: What the process that works here is doing now; it stays behind one that was stopped.
ACTIVITY = "activity.json"

#: Whoever created it begins the run; for stores, which have no locks.
CLAIM = "claim"

SIDE_FILES = (LOCK, DATA_INDEX, KEPT_PAIRS, ACTIVITY, CLAIM)


def write_side_file(folder: Folder, name: str, contents: bytes) -> None:
    """Replace a side file; whoever reads it sees the old or the new one.

    Only the holder of the lock writes here, so the temporary name is always the same, and what a
    killed process leaves is written over. Nothing is flushed: such a file may be lost.
    """
    if not isinstance(folder, LocalFolder):
        folder.write(name, contents)
        return
    path = folder.path / name
    temporary = path.with_name(name + TEMPORARY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            file.write(contents)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error


def clear_side_files(folder: Folder) -> None:
    """Remove the half-written side files that a process left when it was killed.

    Its activity stays until the next process writes its own: were it removed before, and that
    process killed too, nobody would know that there is something left to end.
    """
    if isinstance(folder, LocalFolder):
        for name in (ACTIVITY, DATA_INDEX, KEPT_PAIRS):
            folder.remove(name + TEMPORARY)

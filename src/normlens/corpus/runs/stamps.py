"""Stamps of files: size and time, to tell without reading that a file is still the same."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds for which a file counts as new: a clock that ticks slowly may not show its next change.
NEW = 2.0
_TAGS = ("ETag", "etag", "md5Hash", "content_md5")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class Stamp:
    """A file's size and a mark of when it was written; None where that could hide a change."""

    size: int
    mark: str | None


def local_stamp(seen: os.stat_result) -> Stamp:
    """Stamp a file on a disk. Its time of change (ctime) cannot be set back by a program."""
    is_new = time.time() - max(seen.st_mtime, seen.st_ctime) < NEW
    mark = f"{seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}"
    return Stamp(seen.st_size, None if is_new else mark)


def store_stamp(described: Mapping[str, Any]) -> Stamp:
    """Stamp a file in a store, from what fsspec says of it: a tag of its contents, or its time."""
    values = (described.get(name) for name in (*_TAGS, *_TIMES))
    mark = next((str(value) for value in values if value is not None), None)
    return Stamp(int(described.get("size") or 0), mark)

"""Files that commands write: judged before the work is done, refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from normlens.errors import NormLensError, OutputError


def check_out(out: Path, force: bool, drawing: Iterable[str] = ()) -> None:
    """Raise now what would otherwise fail at the end; `drawing` names options of pictures."""
    from normlens.exports import map_export as export
    from normlens.results import store

    export.check_format(out, drawing)
    with file_errors(out):
        store.check_output(out, overwrite=force)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is the user's to settle, so it is one line too."""
    try:
        yield
    except NormLensError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error

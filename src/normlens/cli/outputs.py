"""What commands write: files, judged before the work is done, or JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normlens.errors import InputError, NormLensError, OutputError

STDOUT = Path("-")


def prints_json(out: Path | None, as_json: bool) -> bool:
    """Whether a result goes to standard output as JSON; raises where two things are asked for."""
    if as_json and out not in (None, STDOUT):
        raise InputError(
            f"--json prints the result and --out {str(out)!r} writes it; choose one (a file that "
            "ends in .json holds the same)"
        )
    return as_json or out == STDOUT


def print_json(document: dict[str, Any]) -> None:
    """Print a document in one line, as JSON that any program reads."""
    # A stream that cannot say ρ would replace it by a question mark.
    plain = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, ensure_ascii=plain, allow_nan=False))
    sys.stdout.write("\n")
    sys.stdout.flush()


def numbered(out: Path, line: int | None) -> Path:
    """The file of one of several results: ``maps-3.png`` for the third line."""
    return out if line is None else out.with_name(f"{out.stem}-{line}{out.suffix}")


def check_out(out: Path, force: bool, drawing: Iterable[str] = (), *, lines: bool = False) -> None:
    """Raise now what would otherwise fail at the end; `drawing` names options of pictures."""
    from normlens.exports import map_export as export
    from normlens.results import store

    export.check_format(out, drawing)
    with file_errors(out):
        store.check_output(numbered(out, 1) if lines else out, overwrite=force or lines)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What the file system refuses is the user's to settle, so it is one line too."""
    try:
        yield
    except NormLensError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error

"""From a data specification to a data set: files, folders, patterns and named data sets."""

from __future__ import annotations

import glob
from pathlib import Path

from normlens.corpus.data import formats, named, sample
from normlens.corpus.data.files import DataFile, FileData, unreadable
from normlens.corpus.data.read_options import ReadOptions
from normlens.corpus.data.records import Data
from normlens.errors import InputError


def open_data(
    spec: str | Path,
    *,
    column: str | None = None,
    pair_column: str | None = None,
    paragraphs: bool = False,
    limit: int | None = None,
    extra: tuple[str, ...] = (),
) -> Data:
    """Open the data set that `spec` names, in a fixed order and with stable record ids.

    `spec` is a file, a folder, a pattern ("data/*.jsonl"), a named data set ("sample", "sst2",
    "conll2003", "wikitext", "stsb") or such a name with a local file ("sst2:path/dev.tsv");
    "parallel:path/file" has a source and its target in each line (``source ||| target``).
    `column` and `pair_column` choose in tables; `paragraphs` takes blank-line-separated paragraphs
    of a .txt file as sequences; `limit` takes the first ones only; `extra` names further columns
    that records keep. Rows with a blank text are left out.
    """
    data = find_data(spec, ReadOptions(column, pair_column, paragraphs, tuple(extra)), limit)
    # What can be known about the file should be said now, not when a run has begun.
    first = next(iter(data), None)
    if first is None:
        raise InputError(f"{data.name!r} holds no sequence; give one with text")
    if first.unreadable and all(record.unreadable for record in data):
        raise InputError(f"no sequence of {data.name!r} can be read; {first.unreadable}")
    return data


def find_data(spec: str | Path, options: ReadOptions, limit: int | None = None) -> Data:
    """The data set that `spec` names, as `open_data` opens it; no record is read yet."""
    name, colon, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if spec == "sample":
        return _open_files(sample.FOLDER, options, limit, name="sample")
    if name in named.NAMED and not colon:
        if options != ReadOptions(extra=options.extra):
            raise InputError(
                f"{name} is read as published; leave column, pair_column and paragraphs out"
            )
        return named.open_named(name, limit, options.extra)
    if name in named.NAMED:
        kind = named.NAMED[name].format
        return _open_files(rest, options, limit, kind=kind, prefix=f"{name}:")
    if name in formats.EXPLICIT and colon:
        return _open_files(rest, options, limit, kind=name, prefix=f"{name}:")
    return _open_files(spec, options, limit)


def _open_files(
    spec: str | Path,
    options: ReadOptions,
    limit: int | None,
    *,
    kind: str | None = None,
    name: str | None = None,
    prefix: str = "",
) -> FileData:
    files = []
    for path, shown in _files(spec, any_suffix=kind is not None):
        try:
            if path.stat().st_size == 0:
                raise InputError(f"{str(path)!r} is empty; give a file with text")
            file = DataFile(path, shown, kind or formats.format_of(path))
        except OSError as error:
            raise unreadable(path, error) from error
        formats.check_options(options, path, file.format)
        files.append(file)
    return FileData(name or prefix + Path(spec).name, files, options, limit)


def _files(spec: str | Path, any_suffix: bool) -> list[tuple[Path, str]]:
    """List the files of a specification, in order, each with its name inside the data set."""
    try:
        files = _look(Path(spec).expanduser(), any_suffix) if str(spec).strip() else []
    except InputError:
        raise
    except PermissionError as error:
        raise unreadable(Path(spec), error) from error
    except (OSError, ValueError, RuntimeError):
        files = []  # a name that no file can have
    if files:
        return sorted(files, key=lambda item: item[1])
    names = ", ".join(["sample", *named.NAMED])
    raise InputError(
        f"there is no data at {str(spec)[:200]!r}; give a file, a folder, a pattern such as "
        f"'data/*.jsonl', or one of: {names}"
    )


def _look(path: Path, any_suffix: bool) -> list[tuple[Path, str]]:
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir():
        inside = [p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")]
        usable = [p for p in inside if any_suffix or p.suffix.lower() in formats.SUFFIXES]
        if not usable:
            raise InputError(
                f"the folder {str(path)!r} holds no data file; give one with files that end in "
                f"{', '.join(formats.SUFFIXES)}"
            )
        return [(p, p.name) for p in usable]
    if glob.has_magic(str(path)):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        root = _fixed_part(path)
        # Files in several folders may have one name, so records carry the part that varies.
        named_files = [(p, p.relative_to(root).as_posix()) for p in matches if p.is_file()]
        if not named_files:
            raise InputError(f"no file matches {str(path)!r}; check the pattern")
        return named_files
    return []


def _fixed_part(pattern: Path) -> Path:
    """Take the folder that a pattern starts in: its parts before the first wildcard."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)

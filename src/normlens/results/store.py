"""Maps, explanations and cosines on disk: safetensors, all but arrays as JSON in the header."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normlens.errors import InputError, MapsFileError, OutputError, reason_of, system_reason
from normlens.results import files, formats
from normlens.results.files import Check, mapped_arrays

if TYPE_CHECKING:
    from normlens.results.cosine import Cosine
    from normlens.results.explanation import Explanation, Explanations
    from normlens.results.maps import Maps

Kind = TypeVar("Kind")
Arrays = dict[str, NDArray[Any]]

#: The one ending that `save` writes.
ENDING = ".safetensors"

#: What the viewer's pages have among their first bytes.
_PAGE, _PAGE_HEAD = b'id="normlens-page"', 1 << 14

#: What reading a file that somebody has altered may raise.
_DAMAGED = (
    SafetensorError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    OSError,
)


def write(
    tensors: dict[str, NDArray[Any]],
    header: dict[str, str],
    path: str | Path,
    *,
    overwrite: bool | None = None,
) -> Path:
    """Write arrays and a header to a safetensors file, whole or not at all."""
    check_ending(path, (ENDING,), "to_html(…) and the command line write others")
    with writing(path, overwrite=overwrite) as temporary:
        save_file(tensors, temporary, metadata=files.sealed(tensors, header))
    return Path(path)


def open(
    path: str | Path, *, mapped: bool = False, verify: bool = True
) -> Maps | Explanation | Explanations | Cosine:
    """Read what `save` of `Maps`, `Explanation`, `Explanations` or `Cosine` wrote.

    With `mapped` the arrays stay in the file until they are used. What is read is compared with the
    file's checksums, each array of mapped maps when it is first used; `verify=False` skips that.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise MapsFileError(f"there is no maps file at {str(path)!r}")
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") not in _KINDS:
                raise MapsFileError(
                    f"{str(path)!r} is a safetensors file but holds no NormLens maps; "
                    "make one with maps.save(…) or `normlens map --out maps.safetensors`"
                )
            version, read = _KINDS[header["format"]]
            if header["version"] not in map(str, range(1, version + 1)):
                raise MapsFileError(
                    f"{str(path)!r} has format version {header['version'][:20]!r}, and this "
                    f"NormLens reads versions up to {version}; make it again"
                )
            arrays = mapped_arrays(path) if mapped else _arrays(file)
            check = _checking(path, header, arrays) if verify else _no_check
            if mapped and read is _read_maps:
                return _read_maps(header, arrays, check)
            for name in arrays:
                check(name)
            return read(header, arrays)
    except MapsFileError:
        raise
    except _DAMAGED as error:
        raise MapsFileError(
            f"{str(path)!r} is not a NormLens maps file, or is damaged ({_reason(error)})"
        ) from error


def open_as(kind: type[Kind], path: str | Path, *, mapped: bool = False) -> Kind:
    """Read a file that must hold one kind of result."""
    result = open(path, mapped=mapped)
    if not isinstance(result, kind):
        raise MapsFileError(
            f"{str(path)!r} holds {type(result).__name__} and not {kind.__name__}; open it with "
            "normlens.open(…)"
        )
    return result


def _arrays(file: Any) -> Arrays:
    return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def _checking(path: Path, header: dict[str, str], arrays: Arrays) -> Check:
    """Check the header of a file, and return what checks its arrays by their names."""
    if files.KEY in header:
        return files.check_header(path, header, arrays)
    warnings.warn(
        f"{str(path)!r} has no checksums (an older NormLens wrote it, or another program changed "
        "it), so that damage would go unnoticed; save it again to add them",
        stacklevel=3,
    )
    return _no_check


def _no_check(_: str) -> None:
    pass


def _read_maps(header: dict[str, str], arrays: Arrays, check: Check | None = None) -> Maps:
    from normlens.results.maps import Maps

    fields, of_encoder = formats.maps_parts(header, arrays, check)
    return Maps(**fields, encoder=None if of_encoder is None else Maps(**of_encoder))


def _read_explanation(header: dict[str, str], arrays: Arrays) -> Explanation | Explanations:
    from normlens.results.explanation import Explanation, Explanations

    each = [Explanation(**fields) for fields in formats.explanation_parts(header, arrays)]
    return Explanations(each) if header["format"] == formats.SEVERAL else each[0]


def _read_cosine(header: dict[str, str], arrays: Arrays) -> Cosine:
    from normlens.results.cosine import Cosine

    return Cosine(**formats.cosine_parts(header, arrays))


#: The newest version of each kind of file, and what reads it.
_KINDS: dict[str, tuple[int, Callable[[dict[str, str], Arrays], Any]]] = {
    formats.MAPS_FORMAT: (formats.MAPS_VERSION, _read_maps),
    formats.ONE: (formats.EXPLANATION_VERSION, _read_explanation),
    formats.SEVERAL: (formats.EXPLANATION_VERSION, _read_explanation),
    formats.COSINE_FORMAT: (formats.COSINE_VERSION, _read_cosine),
}


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return reason_of(error)


def check_ending(path: str | Path, endings: tuple[str, ...], instead: str) -> None:
    """Raise where a file would have another format than its name says."""
    path = Path(path)
    if path.suffix.lower() not in endings and not path.is_dir():
        given = f"the ending {path.suffix!r}" if path.suffix else "no ending"
        raise InputError(
            f"{str(path)!r} has {given}; end it in {' or '.join(endings)}, the format that is "
            f"written here ({instead})"
        )


def check_output(path: str | Path, *, overwrite: bool | None) -> None:
    """Raise now what would otherwise fail after the work is done.

    With `overwrite` None a file that NormLens wrote is replaced, and any other stays.
    """
    path = Path(path)
    try:
        exists = path.exists()
    except OSError as error:  # a name that is too long, for example
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
    if exists and not overwrite and not (overwrite is None and _is_ours(path)):
        raise OutputError(
            f"{str(path)!r} exists already; choose another name, or overwrite it with "
            "overwrite=True (--force)"
        )
    if path.is_dir():
        raise OutputError(f"{str(path)!r} is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise OutputError(f"cannot write {str(path)!r}: {str(folder)!r} {what}")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {str(path)!r}: no permission in {str(folder)!r}")


def _is_ours(path: Path) -> bool:
    """Whether a file is one of NormLens's results or pages."""
    try:
        if path.suffix.lower() == ENDING:
            with safe_open(path, framework="numpy") as file:
                return (file.metadata() or {}).get("format") in _KINDS
        with path.open("rb") as page:
            return _PAGE in page.read(_PAGE_HEAD)
    except _DAMAGED:
        return False


@contextmanager
def writing(path: str | Path, *, overwrite: bool | None) -> Iterator[str]:
    """A temporary file beside `path` that takes its name only once it is complete."""
    check_output(path, overwrite=overwrite)
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's files are for their owner alone
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)

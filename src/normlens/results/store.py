"""Results on disk: safetensors, all but arrays as JSON in the header, written and read by types.

A result is a dataclass, and the types of its fields say how a file holds them. A file may come from
anywhere: the first thing that is wrong with it is raised as a ValueError, and what is let through
can be shown, merged and exported without surprises.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, Union

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normlens.errors import (
    InputError,
    MapsFileError,
    OutputError,
    parse_json,
    reason_of,
    system_reason,
)
from normlens.results import files
from normlens.results.axes import Record
from normlens.results.files import Arrays, Check, CheckedOnUse

if TYPE_CHECKING:
    from typing_extensions import Self

    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps
    from normlens.viewer.notebook import Notebook

Kind = TypeVar("Kind")
Drawn = TypeVar("Drawn")
Options = ParamSpec("Options")
_UNIONS = (Union, UnionType)

#: The one ending that `save` writes, and the one version of files.
ENDING, VERSION = ".safetensors", "4"
#: The modules of the classes whose results have files of their own.
_HOMES = {
    "Maps": "maps",
    "Explanation": "explanation",
    "Explanations": "explanation",
    "Cosine": "explanation",
}
_FORMATS = {f"normlens-{name.lower()}": name for name in _HOMES}

#: What the viewer's pages have among their first bytes.
_PAGE, _PAGE_HEAD = b'id="normlens-page"', 1 << 14


# What all results have in common.


class Result(Record):
    """A result of a lens: it can be saved, compared and shown in a notebook."""

    def save(self, path: str | Path, *, overwrite: bool | None = None) -> Path:
        """Write a safetensors file with JSON metadata; `normlens.open` reads it.

        The name ends in .safetensors. A file that NormLens wrote is replaced; any other stays
        unless `overwrite` is true. With `overwrite` false every file stays.
        """
        check_ending(path, (ENDING,), "to_html(…) and the command line write others")
        tensors, header = saved(self)
        with writing(path, overwrite=overwrite) as temporary:
            save_file(tensors, temporary, metadata=header)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; `normlens.open` reads other results too."""
        return open_as(cls, path)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self._notebook({}).mimebundle(repr(self), **options)

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        """The view of the result in a notebook's cell."""
        raise NotImplementedError


def drawn_by(
    draw: Callable[Concatenate[Kind, Options], Drawn],
) -> Callable[Concatenate[Kind, Options], Drawn]:
    """The method of a result that calls a function of the result, with its options and its words.

    Its first parameter is `self`; all others are those of the function.
    """

    @wraps(draw)
    def method(self: Kind, /, *given: Options.args, **options: Options.kwargs) -> Drawn:
        return draw(self, *given, **options)

    shown = signature(draw)
    _, *others = shown.parameters.values()
    first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    vars(method)["__signature__"] = shown.replace(parameters=[first, *others])
    return method


# Records: dataclasses as values for JSON, and arrays beside them.


_Form = Literal["array", "arrays", "record", "records", "value"]
_LARGEST = 1 << 31  # of token ids and indices
_DEEPEST = 8  # of lists and objects in the provenance
_TEXTS = "model_type components nonlinearity origin stack target dtype compute_dtype device"
#: What summaries and captions read of the provenance, where it is there.
_PROVENANCE: dict[str, Any] = {
    **dict.fromkeys(("model", "revision", "note"), str | None),
    **dict.fromkeys(_TEXTS.split(), str),
    "causal": bool,
    "tolerance": float,
    "versions": dict[str, Any],
}


class _Field(NamedTuple):
    """How a file holds a field of a record, and its type, or that of its items."""

    form: _Form
    hint: Any
    optional: bool = False  # it may be None


def _fields_of(kind: Any) -> dict[str, _Field]:
    hints = typing.get_type_hints(kind)
    return {each.name: _field_of(hints[each.name]) for each in fields(kind)}


def _field_of(hint: Any) -> _Field:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is np.ndarray:
        return _Field("array", hint)
    if origin in (Mapping, dict) and typing.get_origin(inner[1]) is np.ndarray:
        return _Field("arrays", inner[1])
    if is_dataclass(hint):
        return _Field("record", hint)
    if origin is list and is_dataclass(inner[0]):
        return _Field("records", inner[0])
    if origin in _UNIONS and (first := _field_of(inner[0])).form != "value":
        return first._replace(optional=True)
    return _Field("value", hint)


def encode(record: Any, path: str = "") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The fields of a record as values for JSON, and its arrays by their names in a file."""
    values: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, (form, *_) in _fields_of(type(record)).items():
        value, place = getattr(record, name), path + name
        if form == "array":
            arrays |= {} if value is None else {place: np.ascontiguousarray(value)}
        elif form == "arrays":
            values[name] = list(value)  # safetensors sorts its arrays
            arrays |= {f"{place}/{key}": np.ascontiguousarray(value[key]) for key in value}
        elif form == "record" and value is not None:
            values[name], inner = encode(value, f"{place}/")
            arrays |= inner
        elif form == "records":
            each = [encode(one, f"{place}/{k}/") for k, one in enumerate(value)]
            first = each[0][0]
            shared = {k: v for k, v in first.items() if all(one[k] == v for one, _ in each)}
            own = [{k: v for k, v in one.items() if k not in shared} for one, _ in each]
            values[name] = {"shared": shared, "each": own}
            arrays |= {key: array for _, inner in each for key, array in inner.items()}
        else:
            values[name] = value
    return values, arrays


class _Reader:
    """Reads records; a ValueError says what does not fit.

    With `check`, arrays that a field has by name are checked when they are first used, others here.
    """

    def __init__(self, arrays: Arrays, check: Check | None):
        self.left = dict(arrays)
        self._check = check

    def record(self, kind: type[Kind], values: Any, path: str = "") -> Kind:
        """A record of this class from values of JSON and the arrays below `path`."""
        known = _fields_of(kind)
        if not isinstance(values, dict):
            raise ValueError(f"{path[:-1] or 'its header'} is no JSON object")
        for name in values:
            if name not in known or known[name].form == "array":
                raise ValueError(f"{name!r} is no field of such a file")
        made = kind(**{name: self._value(values, name, path, *known[name]) for name in known})
        made._check()  # type: ignore[attr-defined]
        return made

    def _value(
        self, values: Any, name: str, path: str, form: _Form, hint: Any, optional: bool
    ) -> Any:
        place = path + name
        if form == "array":
            if optional and place not in self.left:
                return None
            array = self._array(place, hint)
            if self._check is not None:
                self._check(place)
            return array
        if name not in values:
            raise ValueError(f"{name!r} is missing")
        value = values[name]
        if optional and value is None:
            return None
        if form == "arrays":
            keys = _decoded(value, list[str], name)
            arrays = {key: self._array(f"{place}/{key}", hint) for key in keys}
            return arrays if self._check is None else CheckedOnUse(arrays, self._check, f"{place}/")
        if form == "record":
            return self.record(hint, value, f"{place}/")
        if form == "records":
            shared, each = value["shared"], value["each"]
            if set(value) != {"shared", "each"} or not isinstance(each, list) or not each:
                raise ValueError(f"{name!r} are not fields that are shared and those of each")
            return [
                self.record(hint, {**shared, **own}, f"{place}/{k}/") for k, own in enumerate(each)
            ]
        return _decoded(value, hint, name)

    def _array(self, place: str, hint: Any) -> NDArray[Any]:
        if place not in self.left:
            raise ValueError(f"the array {place!r} is missing")
        array = self.left.pop(place)
        (scalar,) = typing.get_args(typing.get_args(hint)[1])
        wanted = np.number if scalar is Any else typing.get_origin(scalar) or scalar
        if array.dtype not in files.TYPES.values() or not np.issubdtype(array.dtype, wanted):
            raise ValueError(f"{place!r} holds {array.dtype} values")
        if wanted is np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"{place!r} holds other bytes than 0 and 1")
        return array


def _decoded(value: Any, hint: Any, name: str) -> Any:
    """The value of a JSON text as a field of this type takes it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        for each in inner:
            with suppress(ValueError):
                return _decoded(value, each, name)
    elif origin is list and isinstance(value, list):
        return [_decoded(item, inner[0], name) for item in value]
    elif origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(_decoded(*pair, name) for pair in zip(value, inner, strict=True))
    elif origin in (Mapping, dict) and isinstance(value, dict) and _is_plain(value):
        known = _PROVENANCE if name == "provenance" else dict.fromkeys(value, inner[1])
        return {key: _decoded(item, known.get(key, Any), key) for key, item in value.items()}
    elif hint is Any or (hint is int and type(value) is int and 0 <= value < _LARGEST):
        return value
    elif hint is float and type(value) in (int, float) and not math.isinf(value):
        return value  # NaN is the completeness of maps of attention weights alone
    elif hint in (str, bool, NoneType) and type(value) is hint:
        return value
    raise ValueError(f"{name!r} is not {getattr(hint, '__name__', hint)}")


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON's values are shallow enough for every program that walks them."""
    if isinstance(value, dict):
        return _is_plain(list(value.values()), depth)
    if isinstance(value, list):
        return depth <= _DEEPEST and all(_is_plain(item, depth + 1) for item in value)
    return type(value) is not int or abs(value) < 1 << 63


# Files.


def saved(result: Result) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the header of a result's file."""
    result._check()
    name = type(result).__name__.lower()
    values, arrays = encode(result)
    header = {"format": f"normlens-{name}", "version": VERSION}
    header[name] = json.dumps(values, ensure_ascii=False)
    return arrays, files.sealed(arrays, header)


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
            if header.get("format") not in _FORMATS:
                raise MapsFileError(
                    f"{str(path)!r} is a safetensors file but holds no NormLens maps; "
                    "make one with maps.save(…) or `normlens map --out maps.safetensors`"
                )
            name = _FORMATS[header["format"]]
            if header["version"] != VERSION:
                raise MapsFileError(
                    f"{str(path)!r} has format version {header['version'][:20]!r}, and this "
                    f"NormLens reads version {VERSION}; make it again"
                )
            arrays = files.mapped_arrays(path)
            if not mapped:
                arrays = {key: np.array(array) for key, array in arrays.items()}
            check = _checking(path, header, arrays) if verify else None
            if check is not None and not mapped:
                for key in arrays:
                    check(key)
            reader = _Reader(arrays, check if mapped else None)
            kind = getattr(import_module(f"normlens.results.{_HOMES[name]}"), name)
            result: Any = reader.record(kind, parse_json(header[name.lower()]))
            if reader.left:
                raise ValueError(f"{min(reader.left)!r} is no array of a file with these fields")
            return result
    except MapsFileError:
        raise
    except Exception as error:  # reading what somebody has altered may raise anything
        reason = f"{error} is missing" if isinstance(error, KeyError) else reason_of(error)
        raise MapsFileError(
            f"{str(path)!r} is not a NormLens maps file, or is damaged ({reason})"
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


def _checking(path: Path, header: dict[str, str], arrays: Arrays) -> Check | None:
    """Check the header of a file, and return what checks its arrays by their names."""
    if files.KEY in header:
        return files.check_header(path, header, arrays)
    warnings.warn(
        f"{str(path)!r} has no checksums (an older NormLens wrote it, or another program changed "
        "it), so that damage would go unnoticed; save it again to add them",
        stacklevel=3,
    )
    return None


def check_ending(path: str | Path, endings: Sequence[str], instead: str) -> None:
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
                return (file.metadata() or {}).get("format") in _FORMATS
        with path.open("rb") as page:
            return _PAGE in page.read(_PAGE_HEAD)
    except Exception:
        return False


@contextmanager
def writing(path: str | Path, *, overwrite: bool | None) -> Iterator[str]:
    """A temporary file beside `path` that takes its name only once it is complete."""
    check_output(path, overwrite=overwrite)
    path = Path(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
        os.close(handle)
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

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normlens import errors
from normlens.results import files
from normlens.results.axes import PatchGrid, Record, TokenAxis
from normlens.results.files import Arrays, Check, CheckedOnUse

if TYPE_CHECKING:
    from typing_extensions import Self

    from normlens.results.citation import Citation
    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps
    from normlens.results.search import Ranking
    from normlens.viewer.notebook import Notebook

Kind = TypeVar("Kind")

#: The one ending that `save` writes, and the one version of files.
ENDING, VERSION = ".safetensors", "4"
#: The modules of the classes whose results have files of their own.
_HOMES = {"Maps": "maps"} | dict.fromkeys(("Explanation", "Explanations", "Cosine"), "explanation")
_HOMES |= {"Citation": "citation", "Score": "search", "Ranking": "search"}
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
    def load(cls, path: str | Path, *, mapped: bool = False) -> Self:
        """Read what `save` wrote; `normlens.open` reads other results too.

        With `mapped` arrays stay in the file until they are used; it must not change meanwhile.
        """
        result: object = open(path, mapped=mapped)
        if not isinstance(result, cls):
            raise errors.MapsFileError(
                f"{str(path)!r} holds {type(result).__name__} and not {cls.__name__}; open it with "
                "normlens.open(…)"
            )
        return result

    def to_html(
        self, path: str | Path, *, largest: float | None = 60.0, overwrite: bool | None = None
    ) -> Path:
        """Write one HTML file to look at it in, which needs no network.

        Beyond `largest` MB flow maps are left out, and the page says so.
        """
        return self._notebook({}).write(path, largest, overwrite)

    def show(self) -> object:
        """The interactive page for a notebook cell."""
        return self._notebook({}).show()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self._notebook({}).mimebundle(repr(self), **options)

    def _notebook(self, state: Mapping[str, Any]) -> Notebook:
        """The view of the result in a notebook's cell."""
        raise NotImplementedError


class Results(Result, Sequence[Kind]):
    """Several results of one kind."""

    @property
    def _each(self) -> list[Kind]:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Kind: ...

    @overload
    def __getitem__(self, index: slice) -> list[Kind]: ...

    def __getitem__(self, index: int | slice) -> Kind | list[Kind]:
        return self._each[index]

    def __len__(self) -> int:
        return len(self._each)

    @property
    def completeness(self) -> float:
        """The worst of all."""
        return max(each.completeness for each in self._each)  # type: ignore[attr-defined]


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class TokenResult(Result):
    """A result about the tokens of an input, with what is known of each."""

    raw_tokens: list[str]  # as the tokenizer writes them; `tokens` are for reading
    completeness: float  # error of the sum of all parts against what the model itself computes
    provenance: dict[str, Any] = field(default_factory=dict, compare=False)
    token_ids: list[int] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    token_words: list[int | None] | None = None  # word index of each token
    word_labels: list[str] = field(default_factory=list)
    text: str | tuple[str, str] | None = None
    grid: PatchGrid | None = None  # which tokens are patches of a picture, and where

    def _check(self) -> None:
        """Raise unless labels and patches belong to the tokens."""
        self.axis._check()
        if self.grid is not None:
            self.grid.check_tokens(len(self.axis))

    @cached_property
    def axis(self) -> TokenAxis:
        """The tokens with what is known of each."""
        return TokenAxis(**{each.name: getattr(self, each.name) for each in fields(TokenAxis)})

    @property
    def tokens(self) -> list[str]:
        """The tokens as people read them: ``␣café`` for ``ĠcafÃ©``."""
        return self.axis.tokens


# Records: dataclasses as values for JSON, and arrays beside them.


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


def _kinds(hint: Any) -> list[Any]:
    """The types that a field takes beside None."""
    inner = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else [hint]
    return [_resolved(kind) for kind in inner if kind is not NoneType]


def _resolved(hint: Any) -> Any:
    """The type that an alias stands for: from NumPy 2.5 on `NDArray` is a `TypeAliasType`."""
    origin = typing.get_origin(hint)
    return origin.__value__[typing.get_args(hint)] if hasattr(origin, "__value__") else hint


def _is_array(hint: Any) -> bool:
    return typing.get_origin(_kinds(hint)[0]) is np.ndarray


def _form(kind: Any) -> str:
    """How JSON holds a value of this type: as a record, as names of arrays, …, or as it is."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return "record"
    if origin is list and is_dataclass(inner[0]):
        return "records"
    if origin in (Mapping, dict):
        return "arrays" if _is_array(inner[1]) else "object"
    return "value"


def encode(hint: Any, value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """The value of a field for JSON; its arrays join `arrays`, by their names in a file."""
    kind = _kinds(hint)[0]
    form = _form(kind)
    if form == "record" and value is not None:
        encoded = {}
        for name, inner in typing.get_type_hints(kind).items():
            held = getattr(value, name)
            if not _is_array(inner):
                encoded[name] = encode(inner, held, f"{path}{name}/", arrays)
            elif held is not None:
                arrays[path + name] = np.ascontiguousarray(held)
        return encoded
    if form == "records":
        (inner,) = typing.get_args(kind)
        each = [encode(inner, one, f"{path}{k}/", arrays) for k, one in enumerate(value)]
        shared = {
            key: held for key, held in each[0].items() if all(one[key] == held for one in each)
        }
        own = [{key: held for key, held in one.items() if key not in shared} for one in each]
        return {"shared": shared, "each": own}
    if form == "arrays":
        arrays |= {path + key: np.ascontiguousarray(value[key]) for key in value}
        return list(value)  # safetensors sorts its arrays
    return value


class _Reader:
    """Reads records; a ValueError says what does not fit.

    With `check`, arrays that a field has by name are checked when they are first used, others here.
    """

    def __init__(self, arrays: Arrays, check: Check | None):
        self.left = dict(arrays)
        self._check = check

    def record(self, kind: type[Kind], values: Any, path: str = "") -> Kind:
        """A record of this class from values of JSON and the arrays below `path`."""
        hints = typing.get_type_hints(kind)
        if not isinstance(values, dict):
            raise ValueError(f"{path[:-1] or 'its header'} is no JSON object")
        for name in values:
            if name not in hints or _is_array(hints[name]):
                raise ValueError(f"{name!r} is no field of such a file")
        given = {}
        for name, hint in hints.items():
            place, may_be_none = path + name, NoneType in typing.get_args(hint)
            if not _is_array(hint):
                if name not in values:
                    raise ValueError(f"{name!r} is missing")
                given[name] = self._value(hint, values[name], place)
            elif place in self.left or not may_be_none:
                given[name] = self._array(hint, place)
                if self._check is not None:
                    self._check(place)
        made = kind(**given)
        made._check()  # type: ignore[attr-defined]
        return made

    def _value(self, hint: Any, value: Any, place: str) -> Any:
        """The value of a field from that of a JSON text."""
        if value is None and NoneType in typing.get_args(hint):
            return None
        *others, kind = _kinds(hint)
        for other in others:
            with suppress(ValueError):
                return self._value(other, value, place)
        form, origin, inner = _form(kind), typing.get_origin(kind), typing.get_args(kind)
        if form == "record":
            return self.record(kind, value, f"{place}/")
        if form == "records":
            shared, each = value["shared"], value["each"]
            if set(value) != {"shared", "each"} or not isinstance(each, list) or not each:
                raise ValueError(f"{place!r} are not fields that are shared and those of each")
            return [
                self.record(inner[0], {**shared, **own}, f"{place}/{k}/")
                for k, own in enumerate(each)
            ]
        if form == "arrays":
            keys = self._value(list[str], value, place)
            arrays = {key: self._array(inner[1], f"{place}/{key}") for key in keys}
            return arrays if self._check is None else CheckedOnUse(arrays, self._check, f"{place}/")
        if form == "object" and isinstance(value, dict) and _is_plain(value):
            known = _PROVENANCE if place.endswith("provenance") else dict.fromkeys(value, inner[1])
            return {
                key: self._value(known.get(key, Any), item, f"{place}/{key}")
                for key, item in value.items()
            }
        if origin is list and isinstance(value, list):
            return [self._value(inner[0], item, place) for item in value]
        if origin is tuple and isinstance(value, list) and len(value) == len(inner):
            return tuple(self._value(*pair, place) for pair in zip(inner, value, strict=True))
        # NaN is the completeness of maps of attention weights alone.
        is_float = kind is float and type(value) in (int, float) and not math.isinf(value)
        is_index = kind is int and type(value) is int and 0 <= value < _LARGEST
        if kind is Any or is_float or is_index or (kind in (str, bool) and type(value) is kind):
            return value
        raise ValueError(f"{place!r} is not {getattr(kind, '__name__', kind)}")

    def _array(self, hint: Any, place: str) -> NDArray[Any]:
        if place not in self.left:
            raise ValueError(f"the array {place!r} is missing")
        array = self.left.pop(place)
        (scalar,) = typing.get_args(typing.get_args(_kinds(hint)[0])[1])
        wanted = np.number if scalar is Any else typing.get_origin(scalar) or scalar
        if not np.issubdtype(array.dtype, wanted):
            raise ValueError(f"{place!r} holds {array.dtype} values")
        if wanted is np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"{place!r} holds other bytes than 0 and 1")
        return array


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
    arrays: dict[str, NDArray[Any]] = {}
    values = encode(type(result), result, "", arrays)
    header = {"format": f"normlens-{name}", "version": VERSION}
    header[name] = json.dumps(values, ensure_ascii=False)
    return arrays, files.sealed(arrays, header)


def open(
    path: str | Path, *, mapped: bool = False, verify: bool = True
) -> Maps | Explanation | Explanations | Cosine | Citation | Ranking:
    """Read what `save` of a result wrote: `Maps`, `Explanation`, `Citation`, `Score`, ….

    With `mapped` the arrays stay in the file until they are used. What is read is compared with the
    file's checksums, each array of mapped maps when it is first used; `verify=False` skips that.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise errors.MapsFileError(f"there is no maps file at {str(path)!r}")
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") not in _FORMATS:
                raise errors.MapsFileError(
                    f"{str(path)!r} is a safetensors file but holds no NormLens maps; "
                    "make one with maps.save(…) or `normlens map --out maps.safetensors`"
                )
            name = _FORMATS[header["format"]]
            if header["version"] != VERSION:
                raise errors.MapsFileError(
                    f"{str(path)!r} has format version {header['version'][:20]!r}, and this "
                    f"NormLens reads version {VERSION}; make it again"
                )
            arrays = files.mapped_arrays(path)
            if not mapped:
                arrays = {key: np.array(array) for key, array in arrays.items()}
            check = None
            if verify and files.KEY in header:
                check = files.check_header(path, header, arrays)
            elif verify:
                warnings.warn(
                    f"{str(path)!r} has no checksums (an older NormLens wrote it, or another "
                    "program changed it), so that damage would go unnoticed; save it again to add "
                    "them",
                    stacklevel=2,
                )
            if check is not None and not mapped:
                for key in arrays:
                    check(key)
            reader = _Reader(arrays, check if mapped else None)
            kind = getattr(import_module(f"normlens.results.{_HOMES[name]}"), name)
            result: Any = reader.record(kind, errors.parse_json(header[name.lower()]))
            if reader.left:
                raise ValueError(f"{min(reader.left)!r} is no array of a file with these fields")
            return result
    except errors.MapsFileError:
        raise
    except Exception as error:  # reading what somebody has altered may raise anything
        reason = f"{error} is missing" if isinstance(error, KeyError) else errors.reason_of(error)
        raise errors.MapsFileError(
            f"{str(path)!r} is not a NormLens maps file, or is damaged ({reason})"
        ) from error


def check_ending(path: str | Path, endings: Sequence[str], instead: str = "") -> str:
    """The ending of a file's name, or an error if it is none of these."""
    suffix = Path(path).suffix.lower()
    if suffix not in endings and not Path(path).is_dir():
        given = f"the ending {suffix!r}" if suffix else "no ending"
        raise errors.InputError(
            f"{str(path)!r} has {given}; the ending chooses the format: {', '.join(endings)}"
            + (f" ({instead})" if instead else "")
        )
    return suffix


def check_output(path: str | Path, *, overwrite: bool | None) -> None:
    """Raise now what would otherwise fail after the work is done.

    With `overwrite` None a file that NormLens wrote is replaced, and any other stays.
    """
    path = Path(path)
    try:
        exists = path.exists()
    except OSError as error:  # a name that is too long, for example
        raise errors.OutputError(
            f"cannot write {str(path)!r}: {errors.system_reason(error)}"
        ) from error
    if exists and not overwrite and not (overwrite is None and _is_ours(path)):
        raise errors.OutputError(
            f"{str(path)!r} exists already; choose another name, or overwrite it with "
            "overwrite=True (--force)"
        )
    if path.is_dir():
        raise errors.OutputError(f"{str(path)!r} is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "does not exist; create it first"
    elif not os.access(folder, os.W_OK):
        reason = "gives no permission to write"
    else:
        return
    raise errors.OutputError(f"cannot write {str(path)!r}: {str(folder)!r} {reason}")


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
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's and safetensors' are for their owner alone
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise errors.OutputError(
            f"cannot write {str(path)!r}: {errors.system_reason(error)}"
        ) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)

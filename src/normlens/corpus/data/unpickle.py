"""Reading pickles safely: containers, numbers, strings and NumPy arrays, nothing that runs."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from normlens.errors import InputError, reason_of, system_reason

_DTYPE = re.compile(r"O8?|b1|[iuf][1248]|[US][1-9]\d{0,5}")


class Refused(pickle.UnpicklingError):
    """Something in the pickle is not plain data, so it might run code."""


def load(path: Path, opened: Callable[[], IO[bytes]] | None = None) -> Any:
    """Read a pickle, with `Array` in place of NumPy arrays; `opened` opens the file."""
    try:
        with path.open("rb") if opened is None else opened() as file:
            # Strings of Python 2 are bytes; latin1 takes any, and gives an array's bytes back.
            return _Unpickler(file, encoding="latin1").load()
    except Refused as error:
        raise InputError(
            f"{str(path)!r} is a pickle that holds {reason_of(error)}, which might run code, so it "
            'is not opened; save its tokens as JSONL lines {"tokens": […]} instead'
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {system_reason(error)}") from error
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise InputError(
            f"{str(path)!r} is not a pickle, or is damaged "
            f"({reason_of(error)}); give a list of "
            '{"tokens": […]} records'
        ) from error


def as_list(value: Any) -> list[Any] | None:
    """Convert a list, a tuple or a one-dimensional array to a list; None for anything else."""
    if isinstance(value, Array):
        return value.to_list()
    return list(value) if isinstance(value, (list, tuple)) else None


# What a pickle gets in place of NumPy's classes. Those trust the state that a pickle gives them,
# down to the pointers in an object array, so nothing of NumPy is handed out: arrays are kept as
# the pickle writes them, and turned into lists by their checked dtype when somebody asks.


class _StandIn:
    """A callable that a pickle can call but not change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise Refused(f"a state for {type(self).__name__.strip('_')}")


class _Dtype:
    __slots__ = ("code", "order")

    def __init__(self, code: str):
        self.code = code
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subarray, names, fields, size, alignment, flags)
        plain = isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")
        if not plain or any(part is not None for part in state[2:5]):
            raise Refused("a numpy.dtype with fields")
        self.order = state[1]

    def values(self, raw: Any, count: int) -> list[Any]:
        """`count` values from the bytes (of an object array: the list) that hold them."""
        if self.code.startswith("O"):
            if not isinstance(raw, list) or len(raw) != count:
                raise Refused("a numpy object array without its list")
            return raw
        data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
        kind = self.code if self.order == "|" else self.order + self.code
        return np.frombuffer(data, dtype=kind, count=count).tolist()


class Array:
    """A NumPy array as a pickle holds it: shape, dtype and bytes."""

    __slots__ = ("_dtype", "_raw", "_shape")

    def __init__(self) -> None:
        self._shape: tuple[Any, ...] = (0,)
        self._dtype = _Dtype("O8")
        self._raw: Any = []

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, raw = state
        if not isinstance(shape, tuple) or not isinstance(dtype, _Dtype):
            raise Refused("a numpy array without shape or dtype")
        if not isinstance(raw, (bytes, bytearray, str, list)):
            raise Refused("a numpy array without its data")
        self._shape, self._dtype, self._raw = shape, dtype, raw

    def to_list(self) -> list[Any] | None:
        """The values, if the array has one dimension."""
        if len(self._shape) != 1 or type(self._shape[0]) is not int or self._shape[0] < 0:
            return None
        try:
            return self._dtype.values(self._raw, self._shape[0])
        except (ValueError, TypeError, pickle.UnpicklingError):
            return None


class _MakeDtype(_StandIn):
    __slots__ = ()

    def __call__(self, code: Any, align: Any = False, copy: Any = False) -> _Dtype:
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise Refused(f"a numpy.dtype {code!r}")
        return _Dtype(code)


class _Ndarray(_StandIn):
    __slots__ = ()


class _Reconstruct(_StandIn):
    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> Array:
        if not isinstance(kind, _Ndarray):
            raise Refused(f"a numpy array of type {kind!r}")
        return Array()


class _FromBuffer(_StandIn):
    __slots__ = ()

    def __call__(self, raw: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Array:
        array = Array()
        array.__setstate__((1, shape, dtype, False, raw))
        return array


class _Scalar(_StandIn):
    __slots__ = ()

    def __call__(self, dtype: Any, raw: Any) -> Any:
        if not isinstance(dtype, _Dtype) or dtype.code.startswith("O"):
            raise Refused("a numpy scalar of an object dtype")
        return dtype.values(raw, 1)[0]


class _Bytes(_StandIn):
    """How protocols before 3 write bytes: `_codecs.encode(text, "latin1")`."""

    __slots__ = ()

    def __call__(self, text: Any = "", encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise Refused(f"bytes in {encoding!r}")
        return text.encode("latin1")


def _allowed() -> dict[tuple[str, str], Any]:
    allowed: dict[tuple[str, str], Any] = {
        ("_codecs", "encode"): _Bytes(),
        ("numpy", "ndarray"): _Ndarray(),
        ("numpy", "dtype"): _MakeDtype(),
    }
    plain = (list, dict, tuple, set, frozenset, str, int, float, bool)
    for module in ("builtins", "__builtin__"):
        allowed |= {(module, kind.__name__): kind for kind in plain}
        allowed[module, "bytes"] = _Bytes()
    for core in ("numpy.core", "numpy._core"):  # before NumPy 2, and since
        allowed[f"{core}.multiarray", "_reconstruct"] = _Reconstruct()
        allowed[f"{core}.multiarray", "scalar"] = _Scalar()
        allowed[f"{core}.numeric", "_frombuffer"] = _FromBuffer()
    return allowed


class _Unpickler(pickle.Unpickler):
    _ALLOWED = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        # Exact names only: a dotted name would walk through attributes to anything at all.
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise Refused(f"{module}.{name}") from None

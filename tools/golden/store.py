"""Groups of arrays and texts on disk, and how two of them differ."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from golden.results import REFUSED, SCORE, Value, Values

#: The ending of a group's arrays.
ARRAYS = ".safetensors.xz"
#: Two numbers are the same if they differ by this share of the largest beside them.
TOLERANCE = 1e-6
#: The last part of names whose numbers are at most 1, or errors beside 1.
_BESIDE_ONE = ("completeness", "sum of completeness", "probability", "contrast_probability")
_NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

EQUAL, WITHIN, DIFFERS, MISSING, NEW = "bit-equal", "within", "differs", "missing", "new"
OLD_REFUSED = "refused"


def save(folder: Path, section: str, group: str, values: Values) -> None:
    """Write a group: its arrays to a compressed safetensors file, its texts to a .json file."""
    (folder / section).mkdir(parents=True, exist_ok=True)
    arrays = {name: np.array(v, order="C") for name, v in values.items() if not isinstance(v, str)}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    path = folder / section / f"{group}.json"
    path.with_suffix(ARRAYS).write_bytes(lzma.compress(safetensors.numpy.save(arrays)))
    path.write_text(json.dumps(texts, ensure_ascii=False, indent=1), "utf-8")


def load(folder: Path, section: str, group: str) -> Values:
    """Read a group that `save` wrote."""
    path = folder / section / f"{group}.json"
    arrays = safetensors.numpy.load(lzma.decompress(path.with_suffix(ARRAYS).read_bytes()))
    return {**json.loads(path.read_text("utf-8")), **arrays}


def groups(folder: Path, section: str) -> list[str]:
    """The groups of a section that are stored."""
    return sorted(path.stem for path in (folder / section).glob("*.json"))


@dataclass(frozen=True)
class Difference:
    """What became of one item."""

    name: str  # section, group and item
    verdict: str
    detail: str = ""
    size: float = 0.0  # as a share of the largest number; infinite where it is none of size


def differences(prefix: str, old: Values, new: Values, *, exact_texts: bool) -> list[Difference]:
    """A verdict on every item of a group."""
    refused = {n: v for n, v in new.items() if _is_refusal(n, v) and n not in old}
    found = []
    for name, before in old.items():
        where = f"{prefix}/{name}"
        line = next((v for n, v in refused.items() if name.startswith(f"{n}/")), None)
        if line is not None:
            found.append(Difference(where, OLD_REFUSED, str(line)))
        elif name not in new:
            found.append(Difference(where, MISSING, size=np.inf))
        elif isinstance(before, str) or isinstance(new[name], str):
            found.append(_texts(where, before, new[name], exact_texts))
        else:
            found.append(_arrays(where, before, new[name], _scale(name, old)))
    others = [name for name in new if name not in old and name not in refused]
    return found + [Difference(f"{prefix}/{name}", NEW, _shown(new[name])) for name in others]


def _is_refusal(name: str, value: Value) -> bool:
    """Whether a file of before is refused in one line, which is allowed."""
    return (
        name.startswith("opened/")
        and isinstance(value, str)
        and value.startswith(REFUSED)
        and "\n" not in value
    )


def _scale(name: str, values: Values) -> float:
    """The largest number beside an item's: in its array, or among all parts of a score."""
    if name.rpartition("/")[2] in _BESIDE_ONE:
        return 1.0
    score, found, _ = name.partition(f"/{SCORE}/")
    beside = [n for n in values if n.startswith(f"{score}/{SCORE}/")] if found else [name]
    return max(_largest(values[n]) for n in beside)


def _largest(value: Value) -> float:
    if isinstance(value, str) or value.dtype.kind not in "iuf" or not value.size:
        return 0.0
    finite = np.abs(value[np.isfinite(value)].astype(np.float64))
    return float(finite.max()) if finite.size else 0.0


def _arrays(where: str, old: np.ndarray, new: np.ndarray, scale: float) -> Difference:
    if old.shape != new.shape or old.dtype != new.dtype:
        detail = f"{old.dtype} {old.shape} became {new.dtype} {new.shape}"
        return Difference(where, DIFFERS, detail, np.inf)
    if old.tobytes() == new.tobytes():
        return Difference(where, EQUAL)
    if old.dtype.kind != "f":
        count = int((old != new).sum())
        return Difference(where, DIFFERS, f"{count} of {old.size} values", np.inf)
    if not np.array_equal(np.isfinite(old), np.isfinite(new)):
        return Difference(where, DIFFERS, "other values are finite", np.inf)
    finite = np.isfinite(old)
    gap = np.abs(old[finite].astype(np.float64) - new[finite].astype(np.float64)).max(initial=0.0)
    share = gap / scale if scale else (np.inf if gap else 0.0)
    verdict = WITHIN if share <= TOLERANCE else DIFFERS
    return Difference(where, verdict, f"{share:.1e} of the largest number ({scale:.3g})", share)


def _texts(where: str, old: Value, new: Value, exact: bool) -> Difference:
    if isinstance(old, str) and isinstance(new, str):
        if old == new:
            return Difference(where, EQUAL)
        if not exact and _same_but_for_digits(old, new):
            return Difference(where, WITHIN, "numbers in a text")
    lines = [_shown(value).splitlines() or [""] for value in (old, new)]
    pairs = zip(*(each + [""] * (max(map(len, lines)) - len(each)) for each in lines), strict=True)
    first = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    place = next((k for k, (a, b) in enumerate(zip(*first, strict=False)) if a != b), 0)
    shown = [line[max(0, place - 40) :].strip() for line in first]
    return Difference(where, DIFFERS, f"{shown[0][:110]!r} became {shown[1][:110]!r}", np.inf)


def _same_but_for_digits(old: str, new: str) -> bool:
    """Whether two texts differ in decimals alone, by the tolerance or by one of the last digit."""
    words = [" ".join(_NUMBER.sub("#", text).split()) for text in (old, new)]
    numbers = [_NUMBER.findall(text.replace("−", "-")) for text in (old, new)]
    if words[0] != words[1]:
        return False
    scale = max((abs(float(number)) for number in numbers[0]), default=0.0)
    return all(
        a == b or ("." in a and abs(float(a) - float(b)) <= max(TOLERANCE * scale, _last_digit(a)))
        for a, b in zip(*numbers, strict=True)
    )


def _last_digit(number: str) -> float:
    mantissa, _, exponent = number.lower().partition("e")
    return 1.01 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value.dtype} {value.shape}"

"""Numbers, hashes and names as a reader of a report sees them, and published numbers."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from normlens.errors import REPORT, check_installed

# The fixed words of a study's page: titles, questions, methods, and captions.


@cache
def texts(study: str) -> Mapping[str, Mapping[str, str]]:
    """The words in the file `texts.ini` of a study's folder, by section and key."""
    parser = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string((files("normlens.studies") / study / "texts.ini").read_text("utf-8"))
    return {
        section: {key: " ".join(text.split()) for key, text in parser[section].items()}
        for section in parser.sections()
    }


def caption(study: str, key: str, **facts: object) -> str:
    """A caption of the section [captions]; `facts` are what its {fields} stand for."""
    return texts(study)["captions"][key].format(**facts)


# Numbers, hashes, names of data and of files as a reader of a report sees them.


#: Layers as the papers count them; the label of every axis and column of layers in a report.
LAYER = "layer (counted from 1)"
DASH = "–"


def fixed(value: float | None, digits: int = 2) -> str:
    """Write a number with so many decimals and a true minus."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.{digits}f}".replace("-", "−")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Write a number of any size: whole, with three decimals, or as a power of ten."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}".replace("-", "−")
    if not 5e-4 <= abs(value) < 1e6:
        return power(value)
    return fixed(value, 3 if abs(value) < 100 else 1)


def signed(value: float | None, digits: int) -> str:
    """Write a difference with its sign, or ±0."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:+.{digits}f}".replace("-", "−")
    return "±" + text[1:] if not float(text[1:]) else text


def power(value: float | None) -> str:
    """Write a number in scientific notation: 3.1 × 10⁻⁷."""
    if value is None or not math.isfinite(value):
        return DASH
    if not value:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")


def count(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: 3 layers, 1 layer."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shortened(digest: str, letters: int = 12) -> str:
    """Shorten a hash to its method and its first letters."""
    method, colon, value = digest.rpartition(":")
    return f"{method}{colon}{value[:letters]}" + ("…" if len(value) > letters else "")


def slug(name: str) -> str:
    """Make a file name that every file system takes: small Latin letters, digits, - and _."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9_]+", "-", plain.lower()).strip("-_")[:80] or "unnamed"


def unique(name: str, taken: set[str]) -> str:
    """Add a number to `name` if it is taken, and mark the result as taken."""
    free, copy = name, 2
    while free in taken:
        free, copy = f"{name}-{copy}", copy + 1
    taken.add(free)
    return free


def short_names(data: Sequence[str]) -> dict[str, str]:
    """Give each data set the short name that reports and folders use: its name, or its file's."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for spec in data:
        name, _, _ = spec.partition(":")
        short = name if name.isalnum() else Path(spec).stem
        short = "".join(c if c.isalnum() or c in "-_" else "-" for c in short).strip("-")
        names[spec] = unique(short or "data", taken)
    return names


# What reports need beyond the core, checked before long work starts.


#: What can be done instead where the page may wait.
NO_PAGE = ", or leave the page out with page=False (--no-page)"


def check_packages(instead: str = "", extra: str = "reproduce") -> None:
    """Raise where a package is missing; `instead` names what can be done without it.

    `extra` is the one to install, which may bring more than the report needs.
    """
    check_installed(REPORT, extra=extra, instead=instead)


# Published numbers, and measured ones beside them.


@dataclass(frozen=True)
class Published:
    """One number of a paper: its quantity, model, data and place in the paper."""

    key: str  # names the quantity, e.g. "table1/FF"
    label: str
    value: float
    model: str
    data: str | None  # short name of the data; None: it depends on the weights only
    data_label: str | None
    source: str
    digits: int = 2


@dataclass(frozen=True)
class Comparison:
    """A published number beside a measured one; `same` if model and data are the published ones."""

    published: Published
    measured: float | None
    same: bool

    @property
    def difference(self) -> float | None:
        return None if self.measured is None else self.measured - self.published.value

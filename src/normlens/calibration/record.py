"""A calibration as a file under the user's cache, one for each GPU and set of versions."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from normlens._version import __version__
from normlens.decomposition.costs import calibrated
from normlens.decomposition.costs.calibrated import BlockShape, Calibrated
from normlens.decomposition.costs.kernels import Constants
from normlens.errors import OutputError, reason_of, system_reason

FORMAT, FORMAT_VERSION = "normlens-calibration", 1
#: The variable that names the cache's folder.
VARIABLE = "NORMLENS_CACHE"


@dataclass(frozen=True)
class Checked:
    """A shape of a feed-forward block, and how far its kernels' norms were from float64."""

    d: int
    m: int
    heads: int
    gated: bool
    precision: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # NaN fails

    @property
    def shape(self) -> BlockShape:
        return BlockShape(self.d, self.m, self.heads, self.gated)


@dataclass(frozen=True)
class Calibration:
    """Constants that were fitted to a GPU, and the shapes that were checked on it."""

    gpu: str
    versions: Mapping[str, str]  # of torch, triton and normlens
    made: str  # the day
    constants: Constants
    checked: tuple[Checked, ...] = ()

    @property
    def in_use(self) -> Calibrated:
        """The same for the choice of a way."""
        return Calibrated(self.constants, self.refused, self.in_words)

    @property
    def refused(self) -> frozenset[BlockShape]:
        """The shapes whose kernels were not exact enough."""
        return frozenset(one.shape for one in self.checked if not one.passed)

    @property
    def in_words(self) -> str:
        """What provenance and the doctor say of it."""
        refused = len(self.refused)
        return f"{self.gpu}, {self.made}" + (f", {refused} shapes refused" if refused else "")


def versions() -> dict[str, str]:
    """The versions that a calibration belongs to."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return {"torch": torch.__version__, "triton": triton, "normlens": __version__}


def path_of(gpu: str) -> Path:
    """The file of a GPU's calibration with the installed versions."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get(VARIABLE) or Path(base) / "normlens") / "calibration"
    name = "-".join([gpu, *(f"{package}-{version}" for package, version in versions().items())])
    return folder / (re.sub(r"[^\w.+-]+", "_", name) + ".json")


def write(calibration: Calibration) -> Path:
    """Store a calibration, whole or not at all; it is in use from then on."""
    path = path_of(calibration.gpu)
    written = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(calibration)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps(written, indent=1), encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot keep the calibration in {str(path)!r}: {system_reason(error)}; name another "
            f"folder in {VARIABLE}"
        ) from error
    stored.cache_clear()
    return path


@lru_cache(maxsize=64)
def stored(gpu: str) -> Calibration | None:
    """The calibration of a GPU with these versions, if there is one; a damaged one is ignored."""
    path = path_of(gpu)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _ignored(path, error)
        return None
    try:
        return _read(json.loads(text), gpu)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        _ignored(path, error)
        return None


def state(gpu: str) -> str:
    """Whether a GPU's calibration is in use, in words."""
    found = stored(gpu)
    if found is None:
        return "none; the shipped constants hold (normlens doctor --calibrate)"
    return f"in use: {found.in_words}"


def use_stored(device: torch.device) -> Calibration | None:
    """Use the calibration of a device's GPU from now on, if there is one."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    gpu = torch.cuda.get_device_name(device)
    found = stored(gpu)
    calibrated.use(gpu, None if found is None else found.in_use)
    return found


def _ignored(path: Path, error: Exception) -> None:
    warnings.warn(
        f"the calibration in {str(path)!r} cannot be read ({reason_of(error)}) and is ignored; "
        "make it anew with `normlens doctor --calibrate`",
        RuntimeWarning,
        stacklevel=3,
    )


def _read(given: Any, gpu: str) -> Calibration:
    """A calibration from the values of a file; raises where one does not fit."""
    if (given["format"], given["version"]) != (FORMAT, FORMAT_VERSION):
        raise ValueError("it is of another format")
    if given["gpu"] != gpu or given["versions"] != versions():
        raise ValueError("it is of another GPU or other versions")
    numbers = {field.name: _number(given["constants"][field.name]) for field in fields(Constants)}
    checked = tuple(_checked(one) for one in given["checked"])
    return Calibration(gpu, versions(), str(given["made"]), Constants(**numbers), checked)


def _checked(one: Mapping[str, Any]) -> Checked:
    sizes = {name: one[name] for name in ("d", "m", "heads")}
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise ValueError("a shape has sizes that are none")
    if type(one["gated"]) is not bool:
        raise ValueError("'gated' is not true or false")
    error, tolerance = float(one["error"]), _number(one["tolerance"])
    return Checked(
        **sizes, gated=one["gated"], precision=str(one["precision"]), error=error,
        tolerance=tolerance,
    )  # fmt: skip


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no number from 0")
    return float(value)

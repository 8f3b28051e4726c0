"""What a run is asked for: what its numbers depend on, and how the work is done."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from normlens.errors import InputError, valid_choice
from normlens.json_text import parse_json
from normlens.precisions import PRECISIONS

ENGINES = ("local", "ray")
MEASURES = ("similarity", "mixing", "amplification", "norms")


@dataclass(frozen=True)
class Options:
    """What the tables depend on. They are fixed for a run's whole life."""

    model: str
    data: str
    measures: tuple[str, ...] = MEASURES
    #: options of measures, by their names: {"amplification": {"axis": "target"}}
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    mask: float | None = None
    limit: int | None = None
    max_length: int | None = 128
    truncate: bool = True
    seed: int = 0
    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False
    revision: str | None = None
    precision: str = "auto"  # of the feed-forward products on a GPU
    #: sequences per shard; the tables do not depend on it, but the files that are there do
    shard_size: int = 64

    def __post_init__(self) -> None:
        if not self.measures:
            raise InputError("no measure is chosen; leave --measures out to take all")
        if len(set(self.measures)) != len(self.measures):
            raise InputError(f"a measure is named twice: {', '.join(self.measures)}")
        valid_choice(self.precision, PRECISIONS, "precision")
        if self.mask is not None and not 0 < self.mask <= 1:
            raise InputError(f"--mask is a share between 0 and 1, not {self.mask}")
        for name in ("limit", "max_length", "shard_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "measures": list(self.measures)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Options:
        known = {item.name for item in fields(cls)}
        own = {name: value for name, value in found.items() if name in known}
        return cls(**{**own, "measures": tuple(own["measures"])})


@dataclass(frozen=True)
class Execution:
    """How the work is done; no table depends on it, so a run may go on with another one.

    Device and dtype are what was asked for. What they came to is the manifest's, and is fixed.
    """

    device: str = "auto"
    dtype: str = "auto"
    engine: str = "local"
    workers: int = 1
    batch_size: int | str = "auto"
    address: str | None = None  # of a Ray cluster
    gpus_per_worker: float | None = None  # None: 1 where the cluster has GPUs
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        valid_choice(self.engine, ENGINES, "engine")
        if self.workers < 1:
            raise InputError(f"--workers must be at least 1, not {self.workers}")
        if self.engine != "ray" and (self.address or self.gpus_per_worker is not None):
            raise InputError("--address and --gpus-per-worker are Ray's; add --engine ray")
        if self.gpus_per_worker is not None and not (
            math.isfinite(self.gpus_per_worker) and self.gpus_per_worker >= 0
        ):
            raise InputError(f"--gpus-per-worker is a number from 0, not {self.gpus_per_worker}")
        parse_batch_size(self.batch_size)


def parse_batch_size(value: int | str) -> int | str:
    """A number of sequences, or "auto"."""
    try:
        size = "auto" if value == "auto" else int(value)
    except ValueError:
        size = 0
    if size != "auto" and int(size) < 1:
        raise InputError(f"--batch-size is a number from 1 or 'auto', not {value!r}")
    return size


def parse_measures(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of measures from "similarity,mixing" or from a list; all of them by default."""
    if value is None:
        return MEASURES
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names if name.strip())


def parse_settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of measures from ``amplification.axis=target``; values are JSON or plain text."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        left, equals, value = text.partition("=")
        measure, dot, name = left.rpartition(".")
        if not (equals and dot and measure and name.isidentifier()):
            raise InputError(f"--set takes MEASURE.OPTION=VALUE, not {text!r}")
        try:
            found.setdefault(measure, {})[name] = parse_json(value)
        except ValueError:
            found.setdefault(measure, {})[name] = value
    return found


def fixed_path(spec: str | os.PathLike[str]) -> str:
    """A path made absolute, so that a run can be resumed from another folder; names as they are."""
    text = os.fspath(spec)
    prefix, separator, rest = text.partition(":")
    if separator and not Path(text).exists() and prefix.isalnum() and "//" not in rest:
        return f"{prefix}:{_absolute(rest)}"  # a data set's name with a local file
    return _absolute(text)


def _absolute(text: str) -> str:
    path = Path(text).expanduser()
    if path.exists() or (any(mark in text for mark in "*?[") and path.parent != Path(".")):
        return str(path.absolute())
    return text

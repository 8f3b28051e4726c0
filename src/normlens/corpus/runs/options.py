"""What a run is asked for: what its numbers depend on, how the work is done, on what resources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from normlens.errors import InputError, OptionError, check_choice, listed, parse_json
from normlens.options import (
    AUTO,
    DEVICE,
    DTYPE,
    PRECISION,
    PRECISIONS,
    REVISION,
    TRUST,
    Option,
    names_of,
    parse_batch_size,
    parse_bytes,
    whole_number,
)

# How many workers there are, and what each takes of a node: ``gpu=1,cpu=4,memory=16GB``.


#: Resources that every cluster has, by the names that are typed for them.
CPU, GPU, MEMORY = "cpu", "gpu", "memory"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")


def parse_workers(value: int | str) -> int | str:
    """A number of workers, or "auto"."""
    try:
        return AUTO if value == AUTO else int(value)
    except ValueError:
        raise OptionError(
            "workers", f"{{option}} is a number from 1 or 'auto', not {value!r}"
        ) from None


def parse_resources(text: str | None) -> dict[str, float]:
    """Amounts by name; memory is in bytes, and names beside the common ones are the cluster's."""
    amounts: dict[str, float] = {}
    if text is None:
        return amounts
    for part in text.split(","):
        name, _, given = (side.strip() for side in part.partition("="))
        common = name.lower() in (CPU, GPU, MEMORY)
        name = name.lower() if common else name
        if not _NAME.fullmatch(name) or not given:
            raise _refused(
                f"{{option}} is NAME=AMOUNT,…, such as gpu=1,cpu=4,memory=16GB, not {text!r}"
            )
        if name in amounts:
            raise _refused(f"{{option}} names {name!r} twice: {text!r}")
        amounts[name] = _amount(name, given)
    return amounts


def _amount(name: str, given: str) -> float:
    try:
        amount = float(parse_bytes(given) or 0) if name == MEMORY else float(given)
    except InputError:
        raise _refused(f"{{option}}: memory={given} is no size; write for example 16GB") from None
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise _refused(f"{{option}}: {name}={given} is no number from 0")
    if name != MEMORY and amount > 1 and amount != int(amount):
        # Ray shares out one of a resource in fractions, but more of it in whole ones only.
        raise _refused(f"{{option}}: {name}={given} must be whole, or a fraction below 1")
    return amount


def _refused(message: str) -> OptionError:
    return OptionError("resources", message)


def named(amounts: dict[str, float]) -> str:
    """Amounts as they are typed."""
    return ",".join(
        f"{name}={amount / (1 << 30):.3g}GB" if name == MEMORY else f"{name}={amount:g}"
        for name, amount in amounts.items()
    )


# What a run is asked for: what its numbers depend on, and how the work is done.


ENGINES = ("local", "ray")
#: The measures of maps, which a run takes unless told otherwise.
DEFAULT_MEASURES = ("similarity", "mixing", "amplification", "norms")
#: Every built-in measure. Single heads take their time, and explanations a model with a head.
MEASURES = (*DEFAULT_MEASURES, "heads", "explanations")


def parse_measures(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of measures from "similarity,mixing" or from a list; those of maps by default."""
    if value is None:
        return DEFAULT_MEASURES
    return parse_names(value)


def parse_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Names from "label,score" or from a list."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(name.strip() for name in names if name.strip())


def parse_settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of measures from ``amplification.axis=target``; values are JSON or plain text."""
    settings: dict[str, dict[str, Any]] = {}
    for text in given:
        left, equals, value = text.partition("=")
        measure, dot, name = left.rpartition(".")
        if not (equals and dot and measure and name.isidentifier()):
            raise InputError(f"--set takes MEASURE.OPTION=VALUE, not {text!r}")
        try:
            settings.setdefault(measure, {})[name] = parse_json(value)
        except ValueError:
            settings.setdefault(measure, {})[name] = value
    return settings


_SET = Option(
    "An option of a measure, e.g. amplification.axis=target; may be repeated.",
    metavar="MEASURE.OPTION=VALUE",
    flags=("--set",),
    typed=list[str],
    parse=parse_settings,
    takes="Mapping[str, Mapping[str, object]] | None",
)


#: Options of measures that may name functions; SQL does not depend on them, so they are not
#: followed.
NAMES_CODE = ("relations", "methods")


def code_named(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """The functions that a measure's options name (``my_module:my_function``), by the option."""
    given = {option: options.get(option) or () for option in NAMES_CODE}
    named = {
        option: [
            str(name)
            for name in (value if isinstance(value, (list, tuple)) else [value])
            if ":" in str(name)
        ]
        for option, value in given.items()
    }
    return {option: names for option, names in named.items() if names}


#: Seconds that a step of a sequence may take. Far more than one needs that does not hang, on a slow
#: machine, too: what is ended by mistake is lost, and what hangs only costs time.
SEQUENCE_TIMEOUT = 600.0
#: A worker writes its rows when they are so many MB, or so many minutes old.
FILE_SIZE, FILE_MINUTES = 64, 10


@dataclass(frozen=True)
class RunOptions:
    """What the tables depend on. They are fixed for a run's whole life.

    - `measures` by their names, and `settings`, options of measures by these names:
      ``{"amplification": {"axis": "target"}}``.
    - `mask` replaces that share of the tokens by mask tokens; `seed` is that of masks and samples.
    - `limit` takes the first sequences only, `max_length` so many tokens of each; without
      `truncate` a longer sequence is a failure.
    - `column`, `pair_column` and `paragraphs` say how the data is read; `extra_columns` are kept
      beside the text for measures that read them (`Item.encoded.extra`).
    - `precision` is that of the feed-forward products on a GPU.
    - `block_size` is the number of sequences that are handed out to a worker at a time; the tables
      do not depend on it.
    """

    model: str
    data: str
    measures: tuple[str, ...] = Option(
        f"Some of {','.join(MEASURES)}, or your own as module:name. Default: all of maps, "
        f"{','.join(DEFAULT_MEASURES)}.",
        metavar="LIST",
        typed=str,
        parse=parse_measures,
        takes="str | Sequence[str | Measure] | None",  # names, or ready measures
    ).field(DEFAULT_MEASURES)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict, metadata=_SET.metadata)
    mask: float | None = Option(
        "Mask this share of the tokens; the papers take 0.12.", metavar="SHARE"
    ).field(None)
    limit: int | None = Option("The first N sequences only.", metavar="N").field(None)
    max_length: int | None = Option("Tokens per sequence.", metavar="N").field(128)
    truncate: bool = Option(
        "Take the beginning of longer sequences (default), or count them as failures.",
        flags=("--truncate/--no-truncate",),
    ).field(True)
    seed: int = Option("Of masks and samples.", metavar="N").field(0)
    column: str | None = Option("The column of a table that holds the text.", metavar="NAME").field(
        None
    )
    pair_column: str | None = Option(
        "The column of the second text of a pair.", metavar="NAME"
    ).field(None)
    paragraphs: bool = Option("Paragraphs of a .txt file instead of lines.").field(False)
    extra_columns: tuple[str, ...] = Option(
        "Further columns that a measure reads, separated by commas.",
        metavar="NAMES",
        typed=str,
        parse=parse_names,
        takes="str | Sequence[str]",
    ).field(())
    revision: str | None = REVISION.field(None)
    precision: str = PRECISION.field(AUTO)
    block_size: int = Option("Sequences that a worker is given at a time.", metavar="N").field(64)

    def __post_init__(self) -> None:
        if not self.measures:
            raise InputError("no measure is chosen; leave --measures out to take those of maps")
        if len(set(self.measures)) != len(self.measures):
            raise InputError(f"a measure is named twice: {', '.join(self.measures)}")
        check_choice(self.precision, PRECISIONS, "precision")
        if self.mask is not None and not 0 < self.mask <= 1:
            raise OptionError("mask", f"{{option}} is a share between 0 and 1, not {self.mask}")
        for name in ("limit", "max_length", "block_size"):
            value = getattr(self, name)
            if value is not None:
                whole_number(value, name, 1)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "measures": list(self.measures)}

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> RunOptions:
        """The options that a manifest holds; fields of other versions are passed over."""
        values = {name: written[name] for name in names_of(cls) if name in written}
        lists = {name: tuple(values.get(name, ())) for name in ("measures", "extra_columns")}
        return cls(**{**values, **lists})


@dataclass(frozen=True)
class Execution:
    """How the work is done; no table depends on it, so a run may go on with another one.

    Device and dtype are what was asked for. What they came to is the manifest's, and is fixed.
    `workers` are processes, each with a model; "auto" takes as many as there is room for. A block
    whose worker has died `attempts` times is tried sequence by sequence. A sequence is a failure if
    one step of it takes longer than `sequence_timeout`: so many seconds, and more by the square of
    its length if it has more than 128 tokens; None or 0 is no limit.

    `address` and `resources` are Ray's. A worker takes one GPU where the cluster has some, or what
    `resources` says: ``gpu=1,cpu=4,memory=16GB``, or resources that the cluster names itself. A
    worker joins the rows of its blocks until they are `file_size` MB, or until the first of them is
    `file_minutes` old; what it has not written is computed again if it dies.
    """

    device: str = DEVICE.field(AUTO)
    dtype: str = DTYPE.field(AUTO)
    engine: str = Option(f"{listed(ENGINES, 'or')}.", metavar="NAME").field("local")
    workers: int | str = Option(
        "Processes, each with a model; auto: as many as there is room for.",
        metavar="N",
        typed=str,
        parse=parse_workers,
    ).field(1)
    attempts: int = Option(
        "Deaths of its worker after which a block is tried sequence by sequence.", metavar="N"
    ).field(3)
    sequence_timeout: float | None = Option(
        "Seconds after which a sequence that hangs is a failure, of up to 128 tokens; longer ones "
        "have more, by the square of their length. 0: no limit.",
        metavar="SECONDS",
    ).field(SEQUENCE_TIMEOUT)
    batch_size: int | str = Option(
        "Sequences at a time.", metavar="N", typed=str, parse=parse_batch_size
    ).field(AUTO)
    heartbeat: str | None = Option(
        "Append a line of JSON to this file every minute: how far the run is; - is stdout.",
        metavar="FILE",
    ).field(None)
    address: str | None = Option(
        "Ray cluster: auto, ray://host:10001 or local.", metavar="ADDRESS"
    ).field(None)
    resources: str | None = Option(
        "What a Ray worker takes: gpu=1,cpu=4,memory=16GB, or resources of the cluster's own.",
        metavar="NAME=AMOUNT,…",
    ).field(None)
    trust_remote_code: bool = TRUST.field(False)
    verify: bool = Option(
        "Before a run goes on, compare every finished file with its checksum."
    ).field(False)
    file_size: float = Option(
        "Write a worker's rows when they are so many MB; 0: after every block.", metavar="MB"
    ).field(FILE_SIZE)
    file_minutes: float = Option(
        "Write a worker's rows when the first of them are so many minutes old.", metavar="MINUTES"
    ).field(FILE_MINUTES)

    def __post_init__(self) -> None:
        for name in ("file_size", "file_minutes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise OptionError(name, f"{{option}} is a number from 0, not {value}")
        check_choice(self.engine, ENGINES, "engine")
        if parse_workers(self.workers) != AUTO:
            whole_number(self.workers, "workers", 1)  # type: ignore[arg-type]
        whole_number(self.attempts, "attempts", 1)
        timeout = self.sequence_timeout
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            raise OptionError(
                "sequence_timeout", f"{{option}} is a number of seconds from 0, not {timeout}"
            )
        of_ray = (self.address, self.resources)
        if self.engine != "ray" and any(value is not None for value in of_ray):
            raise InputError("--address and --resources are Ray's; add --engine ray")
        parse_resources(self.resources)
        parse_batch_size(self.batch_size)

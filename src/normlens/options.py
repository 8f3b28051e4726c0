"""What an analysis and a model may be asked for: one set of options for Python, runs, server and
shell.

Fields that can be typed carry an `Option`. Nothing here needs torch until an analysis begins.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from normlens import scopes as scope_names
from normlens.errors import InputError, OptionError, check_choice, valid_choice
from normlens.nonlinearities import IG, NOT_LINEAR, RULES, SHAPLEY
from normlens.option_fields import Option
from normlens.origins import INPUT, LAYER, ORIGINS
from normlens.parsing import FROM_ZERO, parse_batch_size, parse_bytes, parse_layers, parse_scopes
from normlens.precisions import AUTO, CHECKPOINT, DTYPES, MAP_DTYPES, PRECISIONS
from normlens.wording import listed

if TYPE_CHECKING:
    from normlens.decomposition import Settings

# Options that analyses and runs have in common.
DEVICE = Option("auto, cpu, cuda, mps, …", metavar="DEVICE")
DTYPE = Option(f"{listed((AUTO, CHECKPOINT, *DTYPES), 'or')}.", metavar="TYPE")
REVISION = Option("Branch, tag or commit on the hub.", metavar="REV")
TRUST = Option("Run Python code that the model brings along.")
DEVICE_MAP = Option(
    "How accelerate spreads a large model over GPUs, memory and disk: auto, balanced or "
    "sequential. Default: all of it on one device.",
    metavar="KIND",
)
PART = Option(
    "Of a model made of several: which one, by its path, for example vision_model.", metavar="PATH"
)
PRECISION = Option(f"Of FF products on a GPU: {listed(PRECISIONS, 'or')}.", metavar="KIND")


@dataclass(frozen=True)
class LoadOptions:
    """The keywords of `normlens.load`, which explains them."""

    device: str = DEVICE.field(AUTO)
    dtype: str = DTYPE.field(AUTO)
    revision: str | None = REVISION.field(None)
    trust_remote_code: bool = TRUST.field(False)
    part: str | None = PART.field(None)
    device_map: str | None = DEVICE_MAP.field(None)


@dataclass(frozen=True)
class AnalysisOptions:
    """The options of `Lens.maps`; wrong ones are refused when it is made.

    - `scopes` and `layers` (from 0; negative from the end) choose; None is all of them.
    - `heads` adds head-level ATTN maps.
    - `statistics` adds what the papers measure of the feed-forward block's vectors.
    - `nonlinearity` is the rule for the feed-forward activation: "ig", "ig-bias", "gradient" or
      "shapley" (`samples` permutations, `seed`; the maps' `standard_error` is that of each norm).
    - `batch_size` is how many sequences go through the model at a time; "auto" asks the memory.
    - `memory_limit` ("512MB") bounds what the feed-forward stage takes beside inputs and outputs.
    - `precision` is that of the feed-forward products on a GPU: "float32" (the default), "tf32" or
      "bfloat16"; the maps' provenance says which it was.
    - `map_dtype` is the type of the maps that are returned, of whole scopes and of heads: "float16"
      takes half the memory and leaves a GPU in half the time, with three digits instead of seven;
      maps that float16 cannot hold are refused. All other results keep the algebra's type.
    - `origin` says whose contributions maps show: "layer", those of each layer's input vectors, or
      "input", those of the model's input tokens, through all layers before. Biases then belong to
      no token, and weights, `heads`, `statistics` and "shapley" have no such origin.
    """

    scopes: str | Iterable[str] | None = Option(
        "Scope such as ATTNRESLN-N, or its last component (ATTN, RES1, LN1, FF, …); repeat it or "
        "separate names by commas. Default: all.",
        metavar="NAME",
        flags=("--scope", "-s"),
        typed=list[str],
        parse=parse_scopes,
    ).field(None)
    layers: int | Iterable[int] | None = Option(
        f"For example 2 or 0,2-4; {FROM_ZERO}. Default: all.",
        metavar="LIST",
        typed=str,
        parse=parse_layers,
    ).field(None)
    heads: bool = Option("Head-level ATTN maps too.").field(False)
    statistics: bool = False
    nonlinearity: str = Option(
        f"How the feed-forward activation is passed on: {listed(RULES, 'or')}.", metavar="RULE"
    ).field(IG)
    samples: int = Option("Permutations of shapley.", metavar="N").field(64)
    seed: int = Option("Seed of shapley.", metavar="N").field(0)
    batch_size: int | str = Option(
        "Sequences at a time.", metavar="N", typed=str, parse=parse_batch_size
    ).field(AUTO)
    memory_limit: int | float | str | None = Option(
        "Memory for the feed-forward stage, for example 512MB.", metavar="SIZE", typed=str
    ).field(None)
    precision: str = PRECISION.field(AUTO)
    map_dtype: str = Option(
        f"Of the numbers in maps: {listed(MAP_DTYPES, 'or')}; float16 takes half the memory.",
        metavar="TYPE",
    ).field(AUTO)
    origin: str = Option(
        "Sources: each layer's input vectors (layer) or the model's input tokens (input).",
        metavar="ORIGIN",
    ).field(LAYER)

    def __post_init__(self) -> None:
        valid_choice(self.nonlinearity, RULES, "rule for the nonlinearity")
        check_choice(self.precision, PRECISIONS, "precision")
        check_choice(self.map_dtype, MAP_DTYPES, "map_dtype")
        at_least_one(self.samples, "samples")
        whole(self.seed, "seed")
        parse_bytes(self.memory_limit)
        if self.batch_size != AUTO:
            if isinstance(self.batch_size, str):
                raise OptionError(
                    "batch_size", f"{{option}} is a number or 'auto', not {self.batch_size!r}"
                )
            at_least_one(self.batch_size, "batch_size")
        check_choice(self.origin, ORIGINS, "origin")
        if self.origin == INPUT:
            self._check_whole_way()

    def _check_whole_way(self) -> None:
        """Refuse what only a layer's own sources have."""
        if self.nonlinearity == SHAPLEY:
            raise InputError(NOT_LINEAR)
        for asked, what in ((self.heads, "heads"), (self.statistics, "statistics")):
            if asked:
                raise InputError(
                    f"{what} are of one layer and its own sources, not of the way from the input "
                    f"tokens; leave `{what}` out, or take origin={LAYER!r}"
                )
        if self.precision not in (AUTO, "float32"):
            raise InputError(
                f"precision {self.precision!r} is of kernels for one layer's sources; with "
                f"origin={INPUT!r} leave it out"
            )

    @property
    def settings(self) -> Settings:
        """The same for the algebra."""
        from normlens.decomposition import Settings
        from normlens.decomposition.memory import DEFAULT_LIMIT

        return Settings(
            rule=self.nonlinearity,
            heads=self.heads,
            statistics=self.statistics,
            memory_limit=parse_bytes(self.memory_limit) or DEFAULT_LIMIT,
            samples=whole(self.samples, "samples"),
            seed=whole(self.seed, "seed"),
            precision=self.precision,
        )

    def scopes_of(self, available: list[str]) -> list[str]:
        """The chosen ones of a model's scopes, in its order."""
        chosen = scope_names.resolve_all(self.scopes, available)
        if self.origin == LAYER:
            return chosen
        weights = [scope for scope in chosen if scope in scope_names.WEIGHT_SCOPES]
        if weights and self.scopes not in (None, "all"):
            raise InputError(
                f"{weights[0]} shows one layer's attention weights, which do not go back to the "
                f"input tokens; choose scopes that end in -N, or take origin={LAYER!r}"
            )
        return [scope for scope in chosen if scope not in weights]

    def layers_of(self, count: int, name: str) -> list[int]:
        """The chosen ones of a model's layers, in order; negative ones count from the end."""
        if self.layers is None or (isinstance(self.layers, str) and self.layers == "all"):
            return list(range(count))
        several = isinstance(self.layers, Iterable) and not isinstance(self.layers, str)
        indices = set()
        for layer in self.layers if several else [self.layers]:  # type: ignore[union-attr]
            if not _is_whole(layer) or not -count <= int(layer) < count:  # type: ignore[arg-type]
                raise InputError(
                    f"layer {layer!r} is out of range; {name} has layers 0 to {count - 1} "
                    f"({FROM_ZERO})"
                )
            indices.add(int(layer) % count)  # type: ignore[arg-type]
        if not indices:
            raise InputError("no layer is chosen; leave `layers` out to take all")
        return sorted(indices)


class AnalysisKeywords(TypedDict, total=False):
    """The fields of `AnalysisOptions` as keywords."""

    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    samples: int
    seed: int
    batch_size: int | str
    memory_limit: int | float | str | None
    precision: str
    map_dtype: str
    origin: str


@dataclass(frozen=True)
class Request:
    """What one call asks of the layers, once it is known which model it asks."""

    scopes: list[str]
    layers: list[int]
    settings: Settings
    arrays: bool = True
    correlations: bool = False
    origin: str = LAYER
    map_dtype: str = AUTO


def whole(value: int, option: str) -> int:
    """A whole number as such, or an error that names the option."""
    if not _is_whole(value):
        raise OptionError(option, f"{{option}} must be a whole number, not {value!r}")
    return operator.index(value)


def at_least_one(value: int, option: str) -> int:
    """A whole number from 1, or an error that names the option."""
    if whole(value, option) < 1:
        raise OptionError(option, f"{{option}} must be at least 1, not {value}")
    return operator.index(value)


def _is_whole(value: object) -> bool:
    """Python's and NumPy's whole numbers, without truth values."""
    return not isinstance(value, bool) and hasattr(value, "__index__")

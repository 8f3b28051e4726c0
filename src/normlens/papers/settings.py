"""The settings of a reproduction."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypedDict

from normlens.errors import InputError, OptionError, valid_choice
from normlens.option_fields import Option
from normlens.options import REVISION

KINDS = ("ff", "mixing")
MASK = 0.12  # Kobayashi et al. 2021 and 2024
#: what the runs depend on; the rest only changes what is made of them
_OF_RUNS = (
    "model",
    "revision",
    "column",
    "pair_column",
    "paragraphs",
    "max_length",
    "mask",
    "seed",
    "relations",
)


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers of a report depend on, model and data included."""

    kinds: tuple[str, ...]
    model: str
    data: tuple[str, ...]
    revision: str | None = REVISION.field(None)
    column: str | None = None  # of the data, as in a run
    pair_column: str | None = None
    paragraphs: bool = False
    limits: dict[str, int] = field(default_factory=dict)  # data → its first so many sequences
    max_length: int = 128
    mask: float = Option(
        "Masked share in the experiments that mask; causal models are never masked.",
        metavar="SHARE",
    ).field(MASK)
    seed: int = Option("Of masks, samples and resamples.", metavar="N").field(0)
    resamples: int = Option("Of every bootstrap.", metavar="N").field(10_000)
    #: rarer pairs of subwords are left out
    min_count: int = Option("Occurrences of a subword pair that counts.", metavar="N").field(2)
    top: int = Option("Most amplified pairs per layer.", metavar="N").field(10)
    layer: int | None = Option(
        "Layer of the histograms, counted from 1 as in the papers. Default: the clearest.",
        metavar="N",
    ).field(None)
    relations: tuple[str, ...] = Option(
        "Your own relation between tokens: a function of an item that gives (n, n) booleans; may "
        "be repeated.",
        metavar="MODULE:NAME",
        flags=("--relation",),
        typed=list[str],
        parse=tuple,
    ).field(())
    ranks: str | None = Option(
        "Frequency ranks of subwords, `rank count id` per line. Default: the corpus's.",
        metavar="FILE",
        parse=os.path.abspath,
    ).field(None)
    sentence: str | None = Option(
        "Of the attention maps; 'first|second' is a pair.", metavar="TEXT"
    ).field(None)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            valid_choice(kind, KINDS, "experiments")
        if not self.data:
            raise InputError("a reproduction needs --data")
        for name, least in (("resamples", 100), ("min_count", 1), ("top", 1), ("max_length", 2)):
            value = getattr(self, name)
            if value < least:
                raise OptionError(name, f"{{option}} must be at least {least}, not {value}")
        if self.layer is not None and self.layer < 1:
            raise OptionError(
                "layer",
                f"{{option}} must be at least 1, not {self.layer}: the papers' report counts "
                "layers from 1",
            )

    def joined(self, other: Settings) -> Settings:
        """Merge these settings into a folder begun with `other`; refuse to mix two kinds."""
        for item in fields(self):
            then, now = getattr(other, item.name), getattr(self, item.name)
            if item.name in _OF_RUNS and then != now:
                raise InputError(
                    f"the folder holds results with {item.name.replace('_', ' ')} {then!r}, not "
                    f"{now!r}; choose another --out"
                )
        for data in self.data:
            then, now = other.limits.get(data), self.limits.get(data)
            if data in other.data and then != now:
                raise InputError(
                    f"the folder holds results of {_sequences(then)} of {data!r}, not of "
                    f"{_sequences(now)}; choose another --out"
                )
        kinds = tuple(kind for kind in KINDS if kind in (*self.kinds, *other.kinds))
        data = tuple(dict.fromkeys(other.data + self.data))
        return replace(self, kinds=kinds, data=data, limits=other.limits | self.limits)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, contents: dict[str, Any]) -> Settings:
        names = {item.name for item in fields(cls)}
        values = {name: value for name, value in contents.items() if name in names}
        tuples = ("kinds", "data", "relations")
        return cls(**values | {name: tuple(values.get(name, ())) for name in tuples})


class SettingsKeywords(TypedDict, total=False):
    """The fields of `Settings` as keywords of `reproduce`, apart from those it has by name."""

    revision: str | None
    column: str | None
    pair_column: str | None
    paragraphs: bool
    max_length: int
    mask: float
    seed: int
    resamples: int
    min_count: int
    top: int
    layer: int | None
    relations: tuple[str, ...]
    ranks: str | None
    sentence: str | None


def _sequences(limit: int | None) -> str:
    return "all sequences" if limit is None else f"the first {limit} sequences"

"""The settings of a reproduction."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from normlens.errors import InputError, valid_choice

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
    revision: str | None = None
    column: str | None = None  # of the data, as in a run
    pair_column: str | None = None
    paragraphs: bool = False
    limits: dict[str, int] = field(default_factory=dict)  # data → its first so many sequences
    max_length: int = 128
    mask: float = MASK
    seed: int = 0
    resamples: int = 10_000  # of every bootstrap
    min_count: int = 2  # occurrences of a pair of subwords that counts; rarer ones are left out
    top: int = 10  # pairs per layer
    layer: int | None = None  # of the histograms, from 1; None: where the effect is largest
    relations: tuple[str, ...] = ()  # a user's own, my_module:my_relation
    ranks: str | None = None  # a file of `rank count id` lines; None: ranks from the corpus
    sentence: str | None = None  # of the attention maps; "first|second" is a pair

    def __post_init__(self) -> None:
        for kind in self.kinds:
            valid_choice(kind, KINDS, "experiments")
        if not self.data:
            raise InputError("a reproduction needs --data")
        for name, least in (("resamples", 100), ("min_count", 1), ("top", 1), ("max_length", 2)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise InputError(f"--{option} must be at least {least}, not {getattr(self, name)}")
        if self.layer is not None and self.layer < 1:
            raise InputError(
                f"--layer must be at least 1, not {self.layer}: the papers' report counts layers "
                "from 1"
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


def _sequences(limit: int | None) -> str:
    return "all sequences" if limit is None else f"the first {limit} sequences"

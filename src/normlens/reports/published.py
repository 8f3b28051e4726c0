"""Published numbers, and measured ones beside them."""

from __future__ import annotations

from dataclasses import dataclass


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

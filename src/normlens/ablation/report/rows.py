"""Ablations with their changes, one by one."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from normlens.reports.formatting import signed


class Row(NamedTuple):
    """One ablation: what it replaces where, and what that changes."""

    number: int
    component: str
    kind: str
    layer: int | None  # from 1; None: several
    layers: str
    change: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """Its layer; "all" where there are several."""
        return "all" if self.layer is None else str(self.layer)

    @property
    def key(self) -> tuple[str, int | None]:
        """Its cell: component and layer."""
        return self.component, self.layer

    def text(self, digits: int) -> str:
        """Its change with the ends of its interval."""
        low, high = signed(self.low, digits), signed(self.high, digits)
        return f"{signed(self.change, digits)} [{low}, {high}]"


def rows_of(changes: pd.DataFrame) -> list[Row]:
    """The rows of a table of changes."""
    columns = [changes[name].tolist() for name in Row._fields[1:]]
    return [
        Row(number, component, kind, None if layer != layer else int(layer), *rest)
        for number, (component, kind, layer, *rest) in zip(
            changes.index.tolist(), zip(*columns, strict=True), strict=True
        )
    ]

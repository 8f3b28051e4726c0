"""Rows of explanations: which tokens made the model say this, over a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from normlens.corpus.measures.base import Asked, Item, Needs, RowMeasure
from normlens.corpus.measures.explanation_tables import ORDER, TABLES, rows_of
from normlens.corpus.measures.pair_explanation_rows import PairExplanations
from normlens.errors import InputError
from normlens.options import ExplainOptions


class ExplanationsMeasure(RowMeasure):
    """What each token, component and bias contributes to a score of every sequence.

    `target`, `contrast`, `position` and `first_piece` as in `Lens.explain`: by default what the
    model says, at the last position of a causal model and at the mask of a masked one. Of an
    encoder–decoder, `position` is a place in its target, by default each in turn.
    """

    name = "explanations"
    tables: Mapping[str, pa.Schema] = TABLES
    order: Mapping[str, tuple[str, ...]] = ORDER

    def __init__(
        self,
        target: str | int | None = None,
        contrast: str | int | None = None,
        position: str | int | None = None,
        first_piece: bool = False,
        nonlinearity: str = ExplainOptions.nonlinearity,
    ):
        for name, value in (("target", target), ("contrast", contrast), ("position", position)):
            if value is not None and not isinstance(value, str | int):
                raise InputError(f"explanations.{name} is a word or a number, not {value!r}")
        if isinstance(position, str) and position != "all":
            raise InputError(f"explanations.position is a number or 'all', not {position!r}")
        ExplainOptions(nonlinearity=nonlinearity, first_piece=first_piece)
        self.asked = Asked(target, contrast, position, bool(first_piece), nonlinearity)

    def for_two_stacks(self) -> PairExplanations:
        return PairExplanations(self.asked)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, asked=self.asked)

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self.asked).items() if value is not None}

    def rows(self, item: Item) -> dict[str, pa.Table]:
        tables = [rows_of(item.index, item.sequence, why) for why in item.explanations]
        return {
            name: pa.concat_tables([schema.empty_table(), *(made[name] for made in tables)])
            for name, schema in self.tables.items()
        }

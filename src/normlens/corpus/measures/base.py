"""The interface of a measure: rows per sequence, combining rows, and merging shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.options import IG
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

if TYPE_CHECKING:  # it needs torch, which those who read a run's tables do not
    from normlens.inputs.text import Encoded

AT_ONCE = 1 << 16  # pairs of tokens, which bounds the memory that a measure takes


@dataclass(frozen=True)
class Item:
    """One sequence with its maps, as a measure receives it.

    Of an encoder–decoder these are the decoder's maps and tokens, and `source` is what the encoder
    reads. `encoded` may also say which entity each token belongs to (`entities`: index or
    None) and which tokens were masked (`masked`: booleans). Where no measure of a run needs maps,
    `maps` have no layers; where one asks for them, `explanations` are the answers to its question.
    """

    sequence: str  # the record's id
    index: int  # its running number in the data, from 0
    maps: Maps
    encoded: Encoded
    seed: int = 0
    explanations: tuple[Explanation, ...] = ()

    def __len__(self) -> int:
        return len(self.encoded.ids)

    @property
    def tokens_read(self) -> int:
        """The tokens that the model reads: its own, and the source's where there is one."""
        return sum(map(len, self.encoded.sequences))

    @property
    def source(self) -> Encoded | None:
        """What an encoder reads beside the decoder's tokens; None: the model has one stack."""
        return self.encoded.source


@dataclass(frozen=True)
class Asked:
    """A question that `Lens.explain` answers about every sequence."""

    target: str | int | None = None
    contrast: str | int | None = None
    position: str | int | None = None
    first_piece: bool = False
    nonlinearity: str = IG


@dataclass(frozen=True)
class Needs:
    """What a measure asks of `Lens.analyse`: scopes (None is all of them) and statistics.

    A measure that sets `arrays` to False reads the maps' `correlations` alone, where there are any.
    `asked` is a question to explain. With `apart`, the texts of a pair are encoded each for itself.
    With `pairs`, only an encoder–decoder will do, and texts are words that spaces separate.
    """

    scopes: tuple[str, ...] | None = None
    statistics: bool = False
    arrays: bool = True
    correlations: bool = False
    asked: Asked | None = None
    apart: bool = False
    pairs: bool = False

    @property
    def maps(self) -> bool:
        """Whether any maps are needed."""
        return self.scopes != () or self.statistics or self.arrays or self.correlations

    def __or__(self, other: Needs) -> Needs:
        """Combine what two measures need."""
        if self.asked is not None and other.asked not in (None, self.asked):
            raise InputError("two measures explain different questions; take one run for each")
        scopes = None
        if self.scopes is not None and other.scopes is not None:
            scopes = tuple(dict.fromkeys(self.scopes + other.scopes))
        return Needs(
            scopes,
            self.statistics or other.statistics,
            self.arrays or other.arrays,
            self.correlations or other.correlations,
            self.asked if other.asked is None else other.asked,
            self.apart or other.apart,
            self.pairs or other.pairs,
        )


@runtime_checkable
class Measure(Protocol):
    """Turns one sequence into rows of one or more tables.

    A row table keeps every row and has the columns `index` and `sequence`. An aggregate keeps sums
    or a bounded sample: `combine` merges rows of any sequences (it is associative, and merging
    twice changes nothing), and `sql` merges the union of all shards, called `parts`, in DuckDB. A
    table without `sql` is a row table, final as it is. `order` names the columns that sort it.
    """

    @property
    def name(self) -> str: ...
    @property
    def tables(self) -> Mapping[str, pa.Schema]: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def sql(self) -> Mapping[str, str]: ...
    @property
    def order(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def options(self) -> dict[str, Any]:
        """The options that a manifest records (as JSON) to make this measure again."""
        ...

    def rows(self, item: Item) -> dict[str, pa.Table]:
        """Measure one sequence: its rows, per table."""
        ...

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Merge rows of several sequences, or of several combined tables."""
        ...


class RowMeasure:
    """A measure whose tables only grow: nothing to combine."""

    needs = Needs()
    sql: Mapping[str, str] = {}

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return parts


def alike(maps: Maps, *scopes: str) -> list[NDArray[np.intp]]:
    """Group layers (by place) to measure at once: few, and with the same pairs and scopes.

    With `scopes`, those layers alone that have all of them.
    """
    changed = (maps.allowed[1:] != maps.allowed[:-1]).any(axis=(1, 2))
    if maps.coverage and maps.scopes:
        here = np.array([has_layers(maps, scope) for scope in maps.scopes])  # (scope, layer)
        changed |= (here[:, 1:] != here[:, :-1]).any(axis=0)
    size = max(1, AT_ONCE // max(1, maps.allowed[0].size))
    groups = [
        group[start : start + size]
        for group in np.split(np.arange(len(maps.layers)), np.flatnonzero(changed) + 1)
        for start in range(0, len(group), size)
    ]
    having = np.all([has_layers(maps, scope) for scope in scopes], axis=0)
    return [group for group in groups if not scopes or having[group[0]]]


def has_layers(maps: Maps, scope: str) -> NDArray[np.bool_]:
    """Whether each of the maps' layers has a scope."""
    return are_among(maps.layers, maps.layers_of(scope))


def are_among(layers: Iterable[int], others: Iterable[int]) -> NDArray[np.bool_]:
    """Whether each of these layers is one of the others."""
    # A model has few layers: `numpy.isin` takes ten times as long.
    others = set(others)
    return np.array([layer in others for layer in layers], dtype=bool)


def at_layers(maps: Maps, scope: str, group: NDArray[np.intp]) -> NDArray[Any]:
    """A scope's maps (layer, target, source) of some of the maps' layers, by their places."""
    layers = maps.layers_of(scope)
    return maps[scope][[layers.index(maps.layers[place]) for place in group]]


def check_square(item: Item, measure: str) -> None:
    """Raise where sources are other tokens than targets, for measures of pairs of one text."""
    if item.maps.source_axis is not None:
        raise InputError(
            f"the measure {measure!r} compares the tokens of one text; the sources of "
            f"{item.sequence!r} are other tokens than its targets"
        )

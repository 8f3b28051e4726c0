"""Which columns a picture shows where sources are two sequences, and where these meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.results.sequences import OWN_SEQUENCE
from normlens.scopes import holds

if TYPE_CHECKING:
    from normlens.results.maps import Maps


@dataclass(frozen=True)
class ShownColumns:
    """The sources that a picture shows: all, or those of one sequence."""

    maps: Maps  # with these columns alone
    places: NDArray[np.intp]
    sequence: str | None = None

    @classmethod
    def of(cls, maps: Maps, sources: str | None) -> ShownColumns:
        """All columns, or those of the sequence called `sources`, "encoder" or "decoder"."""
        if sources is None:
            return cls(maps, np.arange(len(maps.sources)))
        shown = maps.sources_of(sources)
        return cls(shown, np.flatnonzero(np.array(maps.source_sequences) == sources), sources)

    def cut(self, values: Any) -> Any:
        """Values (…, j) of all columns, for those that are shown."""
        return values[..., self.places]

    def scopes(self, names: Sequence[str]) -> list[str]:
        """The scopes that have parts of what is shown."""
        if self.sequence is None:
            return list(names)
        own = self.sequence == OWN_SEQUENCE
        shown = [name for name in names if holds(name)[0 if own else 1]]
        if not shown:
            raise InputError(
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no parts of the "
                f"{self.sequence}'s tokens; choose other scopes, or show all sources"
            )
        return shown

    @property
    def divided(self) -> float | None:
        """Where the line between two sequences stands, in columns; None if there is one."""
        sequences = self.maps.source_sequences
        if len(set(sequences)) < 2:
            return None
        return sequences.index(OWN_SEQUENCE) - 0.5

    @property
    def blank_note(self) -> list[str]:
        """A note on columns that stay blank in some of the panels."""
        if self.divided is None or not self.maps.stack:
            return []
        return [
            "A line divides the encoder's tokens from the decoder's; a scope is blank where it has "
            "no parts of a sequence."
        ]

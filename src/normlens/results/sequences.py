"""Maps whose sources are two sequences: which column is whose."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from normlens.results.axes import Allowed
from normlens.results.labelled import LabelledMaps
from normlens.scopes import holds

#: What the groups of columns are called where sources are two sequences.
OWN_SEQUENCE, OTHER_SEQUENCE = "decoder", "encoder"

M = TypeVar("M", bound="SequencedMaps")


class SequencedMaps(LabelledMaps):
    """Maps that know which sequence each of their sources belongs to."""

    @property
    def decoder(self: M) -> M:
        """The same maps without the encoder's, which `encoder` has."""
        return replace(self, encoder=None)

    @property
    def source_sequences(self) -> list[str]:
        """The sequence of each source: "decoder", the targets' own, or "encoder", the other one.

        Empty where all sources are the targets.
        """
        if self.source_axis is None:
            return []
        own = np.flatnonzero(self.is_same_token.any(axis=0))
        names = [OTHER_SEQUENCE] * len(self.sources)
        for place in own:
            names[place] = OWN_SEQUENCE
        return names

    @property
    def table_sequences(self) -> list[str]:
        """The sequence of each source in tables: of an encoder–decoder's maps alone, else empty."""
        if not self.stack:
            return []
        return self.source_sequences or [self.stack] * len(self.sources)

    def pairs_of(self, *scopes: str) -> Allowed:
        """[layer, target, source], the allowed pairs that any of these scopes has a part of.

        The targets' tokens are no sources of the cross-attention alone, nor is the other sequence
        one of what stands before it: zeros that maps share there say nothing.
        """
        if len(set(self.source_sequences)) < 2:
            return self.allowed
        own, other = (any(flags) for flags in zip(*map(holds, scopes), strict=True))
        names = {OWN_SEQUENCE: own, OTHER_SEQUENCE: other}
        return self.allowed & np.array([names[name] for name in self.source_sequences], dtype=bool)

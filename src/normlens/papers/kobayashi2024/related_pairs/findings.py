"""The result of comparing related pairs with others, by layer and procedure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.papers.settings import PAPER

ALPHA = 0.05
#: Procedures: the paper's, the same with every occurrence as a pair of its own, and the one
#: that depends on no draw and takes no two pairs of a sequence as independent.
TYPES, OCCURRENCES, ALL = "subword pairs, one draw", "occurrences, one draw", "all occurrences"
COLUMNS = [
    "layer",
    "procedure",
    "pairs",
    "mean",
    "others",
    "difference",
    "g",
    "p",
    "p adjusted",
    "significant",
    "mean low",
    "mean high",
    "others low",
    "others high",
    "difference low",
    "difference high",
]
ADJACENT = "adjacent"
_LABELS = {
    "same_word": "word-split pairs",
    "same_entity": "named-entity pairs",
    "entity_across_words": "entity pairs across words",
    "same_type": "same-subword pairs",
    ADJACENT: "adjacent pairs",
}


@dataclass(frozen=True)
class Finding:
    """The comparison of one kind of pairs with others under one pair of scopes.

    `frames` has a row per layer for each procedure that could be applied; `related` and `others`
    hold the scores that `TYPES` compares.
    """

    name: str
    frames: dict[str, pd.DataFrame]
    related: NDArray[np.float64]  # (pairs, layers)
    others: NDArray[np.float64]
    left_out: int
    sequences: int  # that hold such pairs
    near: bool  # adjacent tokens, to which no distance can be matched
    against: str = PAPER  # which pairs are the others: `Settings.others`

    @property
    def label(self) -> str:
        return _LABELS.get(self.name, f"{self.name} pairs")

    @property
    def compared(self) -> str:
        """What the pairs are compared with."""
        if self.near:
            return "pairs further apart"
        return f"{'other' if self.of_paper else 'unrelated'} pairs at the same distance"

    @property
    def of_paper(self) -> bool:
        """Whether the others are those of the paper."""
        return self.against == PAPER

    @property
    def procedure(self) -> str:
        """What the sentences call `TYPES`."""
        return "the paper's procedure" + ("" if self.of_paper else " against unrelated pairs")

    @property
    def robust(self) -> pd.DataFrame:
        """The rows of `ALL`; layers without an answer have no p."""
        return self.frames[ALL]

    @property
    def paper(self) -> pd.DataFrame | None:
        """The rows of the paper's procedure, if it could be applied."""
        return self.frames.get(TYPES)

    @property
    def frame(self) -> pd.DataFrame:
        """All procedures, layer by layer."""
        together = pd.concat(self.frames.values(), ignore_index=True)
        return together.sort_values("layer", kind="stable", ignore_index=True)

    @property
    def threshold(self) -> str:
        """The limit for p in a layer, with how p was adjusted."""
        number = len(self.robust)
        corrected = f" after Benjamini–Hochberg over {number} layers" if number > 1 else ""
        return f"{ALPHA}{corrected}"


def strongest(frame: pd.DataFrame) -> int | None:
    """Find the row of the largest effect in either direction."""
    effect = frame["g"].abs()
    return None if effect.isna().all() else int(effect.to_numpy().argmax())


def verdicts(frame: pd.DataFrame) -> dict[int, int]:
    """Map each tested layer to its significant direction: +1, −1, or 0 where there is none."""
    tested = frame[frame["p"].notna()]
    signs = np.where(tested["significant"], np.sign(tested["difference"]), 0)
    return dict(zip(tested["layer"].tolist(), signs.astype(int).tolist(), strict=True))

"""How frequent a subword is: ranks from the user's file, or from the corpus itself."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from normlens.errors import InputError
from normlens.measures.ranks import average_ranks
from normlens.papers.base import Evidence

#: A copy of the user's file, so that a report can be built again without it.
FILE = "ranks.txt"


def read_ranks(path: str | Path) -> dict[int, int]:
    """Read each subword id's rank from a file of `rank count id` lines (rank 1: most frequent)."""
    path = Path(path)
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the ranks in {str(path)!r}: {reason}") from error
    ranks: dict[int, int] = {}
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rank, _, token = (int(field) for field in line.split())
        except ValueError:
            shown = line.strip() if len(line.strip()) <= 40 else line.strip()[:39] + "…"
            raise InputError(
                f"line {place} of {str(path)!r} is {shown!r}; it must hold three whole numbers, "
                "rank count id"
            ) from None
        if rank < 1 or token < 0:
            raise InputError(f"line {place} of {str(path)!r} has a rank below 1 or an id below 0")
        if token in ranks:
            raise InputError(f"line {place} of {str(path)!r} gives id {token} a second rank")
        ranks[token] = rank
    if not ranks:
        raise InputError(f"{str(path)!r} has no line `rank count id`")
    return ranks


def subword_ranks(evidence: Evidence, groups: pd.DataFrame) -> tuple[pd.Series, int]:
    """Rank each subword of the run; return the ranks and how many subwords the file lacks.

    As in the authors' program, subwords without a rank come behind all that have one.
    """
    counts = groups[groups["scope"] == groups["scope"].iloc[0]].set_index("token_id")["occurrences"]
    if evidence.settings.ranks is None:
        return pd.Series(average_ranks(-counts.to_numpy()), index=counts.index), 0
    kept = evidence.folder / FILE
    ranked = read_ranks(kept if kept.is_file() else evidence.settings.ranks)
    ranks = pd.Series([ranked.get(token, math.nan) for token in counts.index], index=counts.index)
    unranked = int(ranks.isna().sum())
    if unranked == len(ranks):
        raise InputError(
            f"{str(evidence.settings.ranks)!r} has no rank for any subword of this run; its ids "
            "must be those of the model's vocabulary"
        )
    return ranks.fillna(max(ranked.values()) + 1), unranked

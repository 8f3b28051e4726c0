"""The cost of each head's path to the feed-forward neurons, ``B_h W_k``.

``Q_jh = U_jh W_k = v_jh (B_h W_k)``: the rows of n sources come from U, which takes
n·k·H·2dm operations, or from the paths, which takes k·H·2·d_head·dm operations to form them and
then n·k·H·2·d_head·m.
"""

from __future__ import annotations


def paths_pay(d_head: int, d: int, tokens: int) -> bool:
    """Whether paths that are formed for n tokens cost less than they save.

    ``H·d_head·d·m + n·H·d_head·m < n·H·d·m``, from which H and m cancel.
    """
    return d_head * (d + tokens) < tokens * d


def path_elements(heads: int, d_head: int, m: int, projections: int) -> int:
    """Numbers of the paths (k, H, d_head, m)."""
    return projections * heads * d_head * m


def path_operations(heads: int, d_head: int, d: int, m: int, projections: int) -> int:
    """Operations that form the paths: each of their numbers is a sum over d dimensions."""
    return 2 * d * path_elements(heads, d_head, m, projections)


def row_operations(sources: int, heads: int, width: int, m: int, projections: int) -> int:
    """Operations of Q_jh, from vectors of `width` numbers: d for U, d_head with paths."""
    return 2 * sources * projections * heads * width * m

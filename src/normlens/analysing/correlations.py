"""Spearman's ρ between a batch's scopes, each two of them over the sources that they have."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normlens.analysis.device_ranks import spearman_matrices
from normlens.device_constants import on_device
from normlens.scopes import holds


def correlations_of(maps: Tensor, scopes: Sequence[str], allowed: Tensor, others: int) -> Tensor:
    """ρ of every two of the `scopes`, (b, s, i, j) → (b, s, s), over the allowed pairs (b, i, j).

    The first `others` columns are of another sequence. Two scopes that have parts of the same
    sequence alone are compared there: the zeros that both have in other columns would inflate ρ.
    """
    rho = spearman_matrices(maps, allowed)
    if not others:
        return rho
    for kind, columns in (((True, False), slice(others, None)), ((False, True), slice(others))):
        some = [place for place, scope in enumerate(scopes) if holds(scope) == kind]
        if some:
            at = on_device(tuple(some), maps.device)
            part = spearman_matrices(maps[:, at][..., columns], allowed[..., columns])
            rho[:, at[:, None], at] = part
    return rho

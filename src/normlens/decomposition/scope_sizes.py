"""What is measured of the vectors at a scope: norms for its mixing ratio, and its completeness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normlens.decomposition.completeness import relative_rows
from normlens.decomposition.devices import takes_one_pass
from normlens.decomposition.parts import Parts


class ScopeSizes(NamedTuple):
    """Numbers of each target, (b, i)."""

    own: Tensor  # ‖F_i(x_i)‖
    others: Tensor | None  # ‖Σ_{j≠i} F_i(x_j)‖; None: no tokens are mixed yet
    errors: Tensor | None  # ‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖; None: y was not traced


def scope_sizes(parts: Parts, real: Tensor | None, lengths: Sequence[int]) -> ScopeSizes:
    """The sizes of parts, of which the model has computed `real` (b, i, d)."""
    if parts.mixed is not None and takes_one_pass(parts.own):
        from normlens.decomposition.fused.rows import measured  # Triton is slow to import

        return ScopeSizes(*measured(parts, real, lengths))
    return ScopeSizes(
        torch.linalg.vector_norm(parts.own, dim=-1),
        None if parts.mixed is None else torch.linalg.vector_norm(parts.mixed, dim=-1),
        None if real is None else relative_rows(parts.total, real, lengths),
    )

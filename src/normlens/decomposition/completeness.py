"""The error of completeness: parts and bias against the vectors that the model computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlens.device_constants import on_device


def relative_error(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The largest ``‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖`` over the real tokens of a batch (b, i, d).

    The number stays on the device: reading it here would hold up the layers that follow.
    """
    return largest_errors([relative_rows(total, real, lengths)])[0]


def relative_rows(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The error of each target (b, i), 0 for padding."""
    y = real.to(total.dtype)
    error = torch.linalg.vector_norm(total - y, dim=-1)
    size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
    relative = error / size
    if min(lengths) < total.shape[1]:
        ends = on_device(tuple(lengths), total.device)
        is_token = torch.arange(total.shape[1], device=total.device) < ends[:, None]
        relative = relative.masked_fill(~is_token, 0)
    return relative


def largest_errors(relative: Sequence[Tensor]) -> Sequence[Tensor]:
    """The largest of each scope's errors (b, i), all taken together."""
    if not relative:
        return ()
    worst = torch.stack(list(relative)).flatten(1).amax(1)
    # NaN must not pass as a small error.
    return worst.nan_to_num(nan=float("inf"), posinf=float("inf")).unbind()

"""The error of completeness: parts and bias against the vectors that the model computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def relative_error(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The largest ``‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖`` over the real tokens of a batch (b, i, d).

    The number stays on the device: reading it here would hold up the layers that follow.
    """
    y = real.to(total.dtype)
    error = torch.linalg.vector_norm(total - y, dim=-1)
    size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
    relative = error / size
    if min(lengths) < total.shape[1]:
        ends = torch.tensor(list(lengths)).to(total.device, non_blocking=True)
        is_token = torch.arange(total.shape[1], device=total.device) < ends[:, None]
        relative = relative.masked_fill(~is_token, 0)
    # NaN must not pass as a small error.
    return relative.max().nan_to_num(nan=float("inf"), posinf=float("inf"))

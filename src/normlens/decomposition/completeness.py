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
    return relative_errors([(total, real)], lengths)[0]


def relative_errors(
    pairs: Sequence[tuple[Tensor, Tensor]], lengths: Sequence[int]
) -> Sequence[Tensor]:
    """The same of several totals and real vectors."""
    if not pairs:
        return ()
    total = torch.stack([total for total, _ in pairs])  # (s, b, i, d)
    y = torch.stack([real for _, real in pairs]).to(total.dtype)
    error = torch.linalg.vector_norm(total - y, dim=-1)
    size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
    relative = error / size
    if min(lengths) < total.shape[2]:
        ends = on_device(tuple(lengths), total.device)
        is_token = torch.arange(total.shape[2], device=total.device) < ends[:, None]
        relative = relative.masked_fill(~is_token, 0)
    # NaN must not pass as a small error.
    worst = relative.flatten(1).amax(1).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return worst.unbind()

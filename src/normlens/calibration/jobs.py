"""Feed-forward stages of random numbers, as they come up in layers of a given shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens.components import FeedForward, Linear, Reach
from normlens.decomposition.costs.calibrated import BlockShape
from normlens.decomposition.feedforward_job import AddBypass, FeedForwardJob
from normlens.decomposition.parts import Factors

HEAD_WIDTH = 64


@dataclass(frozen=True)
class RandomJob:
    """A stage and its residual connection, in which a `share` of the neurons is active."""

    shape: BlockShape
    n: int
    share: float = 1.0

    def on(self, device: torch.device, dtype: torch.dtype = torch.float32) -> FeedForwardJob:
        """The stage on a device; its numbers are those of float32 in every type."""
        generator = torch.Generator(device).manual_seed(0)
        (d, m, heads, gated), n = self.shape, self.n

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype)

        def draw(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device)

        def linear(rows: int, columns: int) -> Linear:
            return Linear(there(draw(rows, columns) / rows**0.5))

        width = min(HEAD_WIDTH, max(1, d // heads))
        others = 1 - torch.eye(n, device=device)[None, :, :, None]
        factors = Factors(
            there(draw(1, n, n, heads).softmax(1) * others),  # (b, j, i, h)
            there(1 + 0.1 * draw(1, n).abs()),
            there(draw(1, n, heads, width)),
            there(draw(heads, width, d) / width**0.5),
            Reach(),
        )
        bypassed = replace(factors, scale=torch.ones_like(factors.scale))
        gate = linear(d, m) if gated else None
        drawn = torch.rand(1, n, m, generator=generator, device=device)
        active = (drawn < self.share).float()
        job = FeedForwardJob(
            "FF",
            factors,
            (AddBypass("RES", bypassed, there(draw(1, n, d))),),
            ff=FeedForward(linear(d, m), linear(m, d), "silu" if gated else "relu", gate),
            slopes=tuple(
                there(active * (0.5 + 0.1 * draw(1, n, m))) for _ in range(1 + int(gated))
            ),
        )
        mixed = job.sum_behind_block()
        return replace(job, output=mixed, mixed=mixed)

"""How much an explanation keeps and carries back at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.explain.network import KEPT_SHARE
from normlens.explain_options import ExplainOptions
from normlens.parsing import parse_bytes

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Flow maps of one score are kept without being asked for up to this size.
FLOW_BYTES = 1 << 27


@dataclass(frozen=True)
class Room:
    """The memory of one call's explanations."""

    lens: Lens
    options: ExplainOptions

    @property
    def limit(self) -> int:
        """The memory, in bytes, that an explanation may take beside the model's own."""
        return parse_bytes(self.options.memory_limit) or DEFAULT_LIMIT

    @property
    def kept_bytes(self) -> int:
        """How much attention the forward pass may keep; what it does not keep is computed again.

        A GPU whose memory holds the model has room for as much as half of that.
        """
        if self.options.memory_limit is None and self.lens.device.type == "cuda":
            return sum(parameter.nbytes for parameter in self.lens.model.parameters()) // 2
        return self.limit // KEPT_SHARE

    def keeps_flow(self, n: int) -> bool:
        """Whether flow maps of texts of n tokens are kept."""
        if self.options.flow is not None:
            return self.options.flow
        return self.lens.n_layers * n * n * self.lens.compute_dtype.itemsize <= FLOW_BYTES

    def at_once(self, n: int, b: int) -> int:
        """How many scores of each of b texts of n tokens are carried back together."""
        maps = self.keeps_flow(n) or self.options.heads
        layers = self.lens.layers
        widest = max(linear.weight.shape[1] for layer in layers for linear in layer.linear_maps)
        heads, d = layers[0].attention.heads, layers[0].width
        each = n * (4 * widest + 8 * d)
        if maps:
            each += 3 * heads * n * n
        return max(1, self.limit // (2 * b * each * self.lens.compute_dtype.itemsize))

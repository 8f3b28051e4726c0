"""The columns of a batch's maps: tokens of another sequence, if a layer reads one, then its own.

Maps of a scope that nothing of the other sequence has reached are zero in its columns, so that all
scopes and layers have the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.components import Layer
from normlens.device_constants import on_device
from normlens.errors import UnsupportedModelError
from normlens.results.axes import axes_of, take
from normlens.results.tokens import TokenAxis
from normlens.scopes import components_of

#: The group of results that has no axis of tokens: Spearman's ρ between scopes.
CORRELATIONS = "correlations"
#: The group of what was read of experts: [layer, token] or [layer, token, place].
ROUTING = "routing"


class Columns:
    """How many tokens each sequence of a batch has, and which of another sequence it reads."""

    def __init__(self, lengths: Sequence[int], others: Sequence[TokenAxis] = ()):
        self.lengths = list(lengths)
        self.others = [len(tokens) for tokens in others]
        self.width = max(self.others, default=0)  # columns of the other sequence, with padding
        self._tokens = list(others)

    def other_tokens(self, index: int) -> TokenAxis | None:
        """The tokens of the other sequence that sequence `index` reads; None if there is none."""
        return self._tokens[index] if self._tokens else None

    def check(self, sources: Mapping[str, Tensor]) -> None:
        """Raise unless the other sequence has as many vectors (b, j, d) as it has tokens."""
        for name, vectors in sources.items():
            if vectors.shape[:2] != (len(self.lengths), self.width):
                raise UnsupportedModelError(
                    f"{vectors.shape[1]} vectors of {name!r} are read where the adapter's "
                    f"`source_tokens` lists up to {self.width} tokens"
                )

    def padded(self, tensor: Tensor, group: str, name: str, layer: Layer) -> Tensor:
        """A layer's result (b, …, i, j) with zeros in the columns that it does not have."""
        if not self.width or group == CORRELATIONS or axes_of(group, name)[-1] != "source":
            return tensor
        n, parts = tensor.shape[-2], components_of(name)
        if tensor.shape[-1] == self.width + n:  # of both sequences
            return tensor
        crossed = "CROSS" in parts or (group == "statistics" and reads_others(layer))
        # Weights and single heads are of one attention; norms behind CROSS are of both sequences.
        one_attention = group == "heads" or name.endswith("-W")
        if not crossed:
            tensor = F.pad(tensor, (self.width, 0))
        elif one_attention:
            tensor = F.pad(tensor, (0, n))
        assert tensor.shape[-1] == self.width + n
        return tensor

    def real(self, array: NDArray[Any], group: str, name: str, index: int) -> NDArray[Any]:
        """One sequence's result, first axis layers, without padding."""
        if group == CORRELATIONS:
            return array
        if group == ROUTING:
            return array[:, : self.lengths[index]]
        axes, n = axes_of(group, name), self.lengths[index]
        if self.width and axes[-1] == "source":
            columns = [*range(self.others[index]), *range(self.width, self.width + n)]
            return take(array, axes, {"target": np.arange(n), "source": np.array(columns)})
        tokens = sum(axis in ("target", "source") for axis in axes)
        place: tuple[Any, ...] = (..., *([slice(n)] * tokens))
        return array[place]

    def are_real(self, device: torch.device) -> Tensor:
        """Which columns of the other sequence are no padding, (b, j)."""
        lengths = on_device(tuple(self.others), device)
        return torch.arange(self.width, device=device) < lengths[:, None]


def reads_others(layer: Layer) -> bool:
    """Whether a layer has an attention to another sequence."""
    return any(attention.source is not None for attention in layer.attentions)

"""A few rows of the input and output of each linear module."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: Tokens whose vectors are kept of each module: enough to check that it computes x W + b, and very
#: little memory beside a layer's.
ROWS = 8


class Rows(NamedTuple):
    """Some rows of a module's input, and the same rows of its output."""

    input: Tensor  # (row, in)
    output: Tensor  # (row, out)


class RowKeeper:
    """Collects the rows of one layer's modules as they run."""

    def __init__(self) -> None:
        self._calls: dict[nn.Module, list[Rows]] = {}

    def keep(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Keep some rows of a call, evenly spread; a chunked block makes several calls."""
        calls = self._calls.setdefault(module, [])
        if sum(len(rows.input) for rows in calls) >= ROWS:
            return
        tensors = args[0] if args else next(iter(kwargs.values())), output
        tables = [tensor.detach().reshape(-1, tensor.shape[-1]) for tensor in tensors]
        stride = max(1, len(tables[0]) // ROWS)
        # A view would keep the whole tensor alive.
        calls.append(Rows(*(table[::stride][:ROWS].clone() for table in tables)))

    def rows(self, device: torch.device | None = None) -> dict[nn.Module, Rows]:
        """The rows of each module since the last `clear`, on this device if one is given."""
        return {
            module: Rows(
                *(torch.cat(tables).to(device=device) for tables in zip(*calls, strict=True))
            )
            for module, calls in self._calls.items()
        }

    def clear(self) -> None:
        self._calls.clear()

"""A few rows of what goes into each linear module and what comes out of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: How many tokens' vectors are kept of each module: enough to tell whether it does what its weight
#: says, and next to nothing beside a layer.
ROWS = 8


class Rows(NamedTuple):
    """Some rows of a module's input and the rows of its output that belong to them."""

    input: Tensor  # (row, in)
    output: Tensor  # (row, out)


class RowKeeper:
    """Collects the rows of one layer's modules as they run."""

    def __init__(self) -> None:
        self._calls: dict[nn.Module, list[Rows]] = {}

    def keep(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Keep some of a call's rows, evenly spread; a chunked block calls its modules often."""
        calls = self._calls.setdefault(module, [])
        if sum(len(rows.input) for rows in calls) >= ROWS:
            return
        tensors = args[0] if args else next(iter(kwargs.values())), output
        tables = [tensor.detach().reshape(-1, tensor.shape[-1]) for tensor in tensors]
        stride = max(1, len(tables[0]) // ROWS)
        # A view would keep the whole tensor alive.
        calls.append(Rows(*(table[::stride][:ROWS].clone() for table in tables)))

    def rows(self) -> dict[nn.Module, Rows]:
        """What was kept of each module since the last `clear`."""
        return {
            module: Rows(*(torch.cat(tables) for tables in zip(*calls, strict=True)))
            for module, calls in self._calls.items()
        }

    def clear(self) -> None:
        self._calls.clear()

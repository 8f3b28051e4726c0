"""Value zeroing: how far a layer's output turns when one token's value vector is zero.

    c_ij = 1 − cos(y_i, y_i with v_j = 0 in all heads of the layer),    rows to 1, rollout

Mohebbi et al. 2023. The model's own blocks run again with a hook on the value projection, which is
taken off on every way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlens.components import Layer, Linear
from normlens.errors import UnsupportedModelError
from normlens.results.maps import Maps
from normlens.rollouts.layerwise import (
    BatchMaps,
    Given,
    RolloutOptions,
    as_given,
    rolled_maps,
    sequences,
)
from normlens.text import Encoded
from normlens.tracing.model_inputs import model_inputs, without_autocast
from normlens.tracing.recorder import Call, LayerTrace
from normlens.tracing.running import Hooks
from normlens.tracing.trace import reading, run_traced
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """``1 − cos(a, b) = ½ ‖a/‖a‖ − b/‖b‖‖²`` of vectors (…, d), exact for small angles, too."""
    return 0.5 * (F.normalize(a, dim=-1) - F.normalize(b, dim=-1)).square().sum(-1)


def value_zeroing(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """Value zeroing of a text, as maps [layer, target, source]; a list gives a list."""
    check_layers(lens)
    encoded, many = sequences(lens, text, options)
    maps = rolled_maps(
        lens,
        encoded,
        lambda batch: distances(lens, batch, options.limit),
        options,
        scope=lens.scopes[-1],
        method="value-zeroing",
    )
    return as_given(maps, many)


def distances(lens: Lens, batch: Sequence[Encoded], limit: int) -> BatchMaps:
    """The distances of every layer for a batch, as many sources at a time as `limit` bytes hold."""
    inputs = model_inputs(lens.adapter, batch, lens.device)
    b, n = inputs["input_ids"].shape
    copies = min(n, max(1, limit // (b * _copy_memory(lens, n))))
    # The model itself makes the masks and positions that a block is called with for many copies.
    repeated = {name: value.repeat_interleave(copies, 0) for name, value in inputs.items()}
    visited: list[_Visited] = []

    def visit(traced: LayerTrace) -> None:
        visited.append(_Visited.of(traced, copies))

    def run() -> list[Tensor]:
        model = lens.adapter.model
        with without_autocast(lens.device), reading(model, lens.adapter):
            run_traced(lens.adapter, model, repeated, range(lens.n_layers), visit)
            return [block.distances(copies, lens.compute_dtype) for block in visited]

    return BatchMaps(alone_with_model(lens.adapter.model, run), [])


@dataclass(frozen=True)
class _Visited:
    """A block that the model ran on copies of a batch: enough to run it again."""

    block: nn.Module
    layer: Layer
    call: Call  # without the vectors, of which one copy is enough
    x: Tensor  # (b, j, d)
    output: Tensor  # (b, i, d)

    @classmethod
    def of(cls, traced: LayerTrace, copies: int) -> _Visited:
        args, kwargs = traced.call
        others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        # Copied: a view would keep the vectors of all copies.
        x, output = (v.detach()[::copies].clone() for v in (traced.x, traced.output))
        return cls(traced.block, traced.layer, (args[1:], others), x, output)

    def distances(self, copies: int, dtype: torch.dtype) -> Tensor:
        """``1 − cos(y_i, y_i with v_j = 0)``, (b, i, j)."""
        b, n, _ = self.x.shape
        args, kwargs = self.call
        y = self.output.to(dtype)[:, None]  # (b, 1, i, d)
        pairs = y.new_zeros(b, n, n)
        for first in range(0, n, copies):
            count = min(copies, n - first)
            x = self.x.repeat_interleave(copies, 0)
            with zeroed_values(self.layer.attention.value, b, copies, first, count):
                out = self.block(x, *args, **kwargs)
            out = out[0] if isinstance(out, (tuple, list)) else out
            changed = out.view(b, copies, n, -1)[:, :count].to(dtype)
            pairs[..., first : first + count] = cosine_distance(y, changed).transpose(1, 2)
        # Where attention cannot look, copies of a vector differ by rounding alone.
        return pairs * self.layer.reach.mask(n, pairs.device)


@contextmanager
def zeroed_values(value: Linear, b: int, copies: int, first: int, count: int) -> Iterator[None]:
    """While this is open, copy c of every sequence has no value vector at token ``first + c``.

    Of a projection that makes queries and keys as well, only the columns of values are zero.
    """
    module = value.module
    assert module is not None
    # Where the model adds the bias behind the module, the sum of both has to be zero.
    zero_value = -value.bias if value.bias_outside and value.bias is not None else 0.0
    calls = 0

    def zero(_: nn.Module, __: Any, ___: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        columns = value.part(torch.arange(output.shape[-1], device=output.device))
        copy = torch.arange(count, device=output.device)[:, None]
        # The model's own tensor stays as it is; others may hold it.
        changed = output.clone().view(b, copies, -1, output.shape[-1])
        changed[:, copy, first + copy, columns] = zero_value
        return changed.view_as(output)

    with Hooks() as hooks:
        hooks.behind(module, zero)
        yield
    if calls != 1:
        raise UnsupportedModelError(
            f"{type(module).__name__}, which the adapter calls the value projection, ran {calls} "
            "times in its block; value zeroing needs it to run once"
        )


def check_layers(lens: Lens) -> None:
    """Refuse layers whose value projection cannot be hooked."""
    if any(layer.attention.value.module is None for layer in lens.layers):
        raise UnsupportedModelError(
            "the adapter does not say which module computes the value vectors (Linear's `module`), "
            "and value zeroing has to hook it"
        )


def _copy_memory(lens: Lens, n: int) -> int:
    """Bytes of one sequence of n tokens inside a block: scores, vectors, neurons."""
    attention = lens.layers[0].attention
    d = attention.output.weight.shape[1]
    widest = max(linear.weight.shape[1] for linear in lens.layers[0].linear_maps)
    return lens.dtype.itemsize * n * (3 * attention.heads * n + 8 * d + 3 * widest)

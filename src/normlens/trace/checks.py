"""Whether a traced layer is what its adapter says: what it attends to, and its linear maps.

Parts and bias add up to the real vectors (completeness) even where the adapter is wrong about what
a target may see, and in half precision a wrong matrix can hide behind the tolerance of a whole
layer. Both are compared here with what the model did. Numbers stay on their device until a
batch is through.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import InputError, NormLensError, UnsupportedModelError
from normlens.frozen.attention import QueryKey, alpha_of
from normlens.gpu.matmul import LazyTensor, matmul_rows
from normlens.gpu.transfer import DeviceTransfer, on_device, pinned_copy
from normlens.layers import Layer, Linear, Reach
from normlens.models.base import Adapter
from normlens.models.reading import class_name, execution_places, weights_dtype

if TYPE_CHECKING:
    from normlens.trace.run import LayerTrace, Rows

#: A weight up to this size outside the reach is a mask that leaks, and shows nowhere.
NEGLIGIBLE = 1e-8
#: An empty part of the reach is a mask, and no accident, from so many weights on.
EVIDENCE = 8
#: The share of pairs at the edge of a mask that has weight; small weights fade out instead.
SHARP = 0.9

#: Largest error of a module's output against x W + b. In half precision it is four units of
#: rounding: an output's own rounding is about half a unit of its norm, and the rest is room for
#: devices that form their sums in less than float32.
LINEAR_TOLERANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 4 * 2.0**-11,
    torch.bfloat16: 4 * 2.0**-8,
}


row_norms = partial(torch.linalg.vector_norm, dim=-1)
CPU = torch.device("cpu")
#: Bytes of tensors that may stay on a device until they are copied together.
HELD_ON_DEVICE = 2 << 30


class Deferred:
    """Tensors that stay on their device until they are copied to the host together.

    Every number that is asked of a GPU makes it wait; here that happens once, at the end. Those of
    one key have one shape and lie one behind the other, those of one type in one flat tensor.
    """

    def __init__(self, transfer: DeviceTransfer | None = None):
        self._transfer = transfer
        self._waiting: dict[Hashable, list[Tensor]] = {}
        self._held = 0  # bytes on the device
        self._stacked: list[tuple[Tensor, list[tuple[Hashable, torch.Size]]]] = []
        self._home: dict[Hashable, NDArray[Any]] = {}  # the first axis a key's tensors

    def add(self, key: Hashable, tensor: Tensor) -> None:
        """Keep one more tensor; all of a key have the same shape.

        If those that wait take too much of the device's memory, all are copied to the host.
        """
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # NumPy has none
        self._waiting.setdefault(key, []).append(tensor)
        self._held += tensor.nbytes if tensor.is_cuda else 0
        if self._held > HELD_ON_DEVICE and self._transfer is not None:
            self.arrived()

    def stack_pending(self) -> None:
        """Put everything that waits into one tensor of each type; nothing is waited for."""
        for dtype in dict.fromkeys(tensors[0].dtype for tensors in self._waiting.values()):
            same = {key: each for key, each in self._waiting.items() if each[0].dtype == dtype}
            tensors = [tensor for each in same.values() for tensor in each]
            # Layers may lie on several devices, and on the CPU.
            device = next((tensor.device for tensor in tensors if tensor.is_cuda), CPU)
            flat = torch.cat([tensor.flatten().to(device) for tensor in tensors])
            shapes = [(key, torch.Size([len(each), *each[0].shape])) for key, each in same.items()]
            self._stacked.append((flat, shapes))
        self._waiting.clear()
        self._held = 0

    def leave(self) -> None:
        """Send off everything that waits, behind the device's last kernel."""
        self.stack_pending()
        self._stacked = [(self._sent(flat), shapes) for flat, shapes in self._stacked]

    def to_host(self) -> None:
        """Copy everything that waits to pinned memory, as the last thing that the device does."""
        self.stack_pending()
        self._stacked = [(pinned_copy(flat), shapes) for flat, shapes in self._stacked]

    def replayed(self, recorded: Deferred) -> None:
        """Take over what a recorded batch leaves."""
        self._stacked = list(recorded._stacked)

    def take(self) -> None:
        """Copy numbers that the next replay writes over."""
        self._stacked = [(flat.clone(), shapes) for flat, shapes in self._stacked]

    def arrived(self) -> dict[Hashable, NDArray[Any]]:
        """Everything on the host, the first axis the tensors of a key in their order."""
        pieces: list[tuple[Hashable, NDArray[Any]]] = []
        if self._held:
            self.stack_pending()
        for key, tensors in self._waiting.items():
            whole = torch.stack(tensors) if len(tensors) > 1 else tensors[0][None]
            pieces.append((key, whole.cpu().numpy()))
        self._waiting.clear()
        for flat, shapes in self._stacked:
            if self._transfer is not None and flat.is_cuda:
                flat = self._sent(flat)
                self._transfer.wait()
            numbers = flat.cpu().numpy()
            for key, shape in shapes:
                pieces.append((key, numbers[: shape.numel()].reshape(shape)))
                numbers = numbers[shape.numel() :]
        self._stacked.clear()
        for key, piece in pieces:
            before = self._home.get(key)
            self._home[key] = piece if before is None else np.concatenate([before, piece])
        return self._home

    def _sent(self, flat: Tensor) -> Tensor:
        """Where numbers arrive that are on their way."""
        assert self._transfer is not None
        arrived = torch.empty(flat.shape, dtype=flat.dtype)
        self._transfer.send_flat(flat, arrived)
        return arrived


@dataclass
class Checks:
    """What one batch showed of each layer, to be judged when all layers are through."""

    adapter: Adapter
    dtype: torch.dtype  # of the model
    lengths: Sequence[int]
    layer_in_words: str = "layer"  # what errors call one
    others: Sequence[int] = ()  # real tokens of the other sequence that layers read
    pending: Deferred = field(default_factory=Deferred)  # may hold a batch's results, too
    # No layer is kept: in half precision that would be a copy of its weights in float32.
    _layers: list[tuple[str, Reach, int]] = field(default_factory=list)  # name, reach, heads
    #: linear maps by the shape of their `linear_sizes`
    _linear: dict[torch.Size, list[tuple[str, nn.Module]]] = field(default_factory=dict)
    _padding: list[str] = field(default_factory=list)

    def add(self, traced: LayerTrace) -> None:
        """Measure one layer, whose components are in the algebra's precision."""
        layer = traced.layer
        check_tokens(self.adapter, traced, self.lengths)
        for source, vectors in traced.sources.items():
            if vectors.shape[:2] != (len(self.lengths), most := max(self.others, default=0)):
                raise UnsupportedModelError(
                    f"{vectors.shape[1]} vectors of {source!r} are read where the adapter's "
                    f"`source_tokens` lists up to {most} tokens"
                )
        name = f"{self.layer_in_words} {traced.index}"
        for attention, given in zip(layer.attentions, traced.alphas, strict=True):
            alpha = alpha_of(given).dense
            if attention.source is not None:
                # Every token of another sequence may be seen, but none of its padding.
                if self.others and min(self.others) < alpha.shape[-1]:
                    self._padding.append(name)
                    self.pending.add("padding", self._weight_on_padding(alpha))
                continue
            outside, offsets = attention_support(alpha, layer.reach, self.lengths)
            self._layers.append((name, layer.reach, attention.heads))
            self.pending.add("outside", outside)
            self.pending.add("offsets", offsets)
        tokens = traced.x.shape[0] * traced.x.shape[1]
        for linear in layer.linear_maps:
            if linear.module is not None and linear.module in traced.rows:
                sizes = linear_sizes(linear, traced.rows[linear.module], tokens)
                self.pending.add(("linear", sizes.shape), sizes)
                self._linear.setdefault(sizes.shape, []).append((name, linear.module))

    def _weight_on_padding(self, alpha: Tensor) -> Tensor:
        """The largest weight that a real token gives to padding of another sequence."""
        n, others = alpha.shape[2:]
        targets = real_tokens(self.lengths, n, alpha.device)[:, :, None]
        sources = real_tokens(self.others, others, alpha.device)[:, None, :]
        return alpha.amax(1).masked_fill(~targets | sources, 0).amax().float()

    def judge(self) -> None:
        """Raise where a layer is not what its adapter says."""
        tolerance, arrived = LINEAR_TOLERANCE[self.dtype], self.pending.arrived()
        for shape, maps in self._linear.items():
            errors = linear_errors(torch.from_numpy(arrived["linear", shape]))
            for (name, module), error in zip(maps, errors, strict=True):
                if error > tolerance:
                    raise UnsupportedModelError(
                        f"{self.adapter.name_of(module)} ({class_name(module)}) of {name} does not "
                        "compute x W + b with the weight that it holds (relative error "
                        f"{error:.1e}, tolerance {tolerance:.0e}): an adapter that is not linear, "
                        "quantised activations, a hook or another precision act inside it; merge "
                        "adapters (model.merge_and_unload()), turn quantised weights back "
                        "(model.dequantize()) or load the plain model"
                    )
        for name, weight in zip(self._padding, arrived.get("padding", ()), strict=True):
            if weight > NEGLIGIBLE:
                raise UnsupportedModelError(
                    f"{name} attends to the padding of the other sequence "
                    f"(weights up to {weight:.2g}), so texts of different lengths cannot "
                    "run together; take batch_size=1"
                )
        adapter = f"the adapter {type(self.adapter).__name__}"
        seen = arrived.get("outside", ()), arrived.get("offsets", ())
        for (name, reach, heads), outside, offsets in zip(self._layers, *seen, strict=True):
            if outside > NEGLIGIBLE:
                raise UnsupportedModelError(
                    f"{name} attends to tokens that {adapter} says it cannot see "
                    f"(weights up to {outside:.2g} lie outside {reach.in_words}); its "
                    "`causal`, `window` or `reach` must say what the model does "
                    "(normlens help adapters)"
                )
            middle = len(offsets) // 2
            for side, counts, limit in (
                ("ahead", offsets[middle:], reach.ahead),
                ("back", offsets[middle::-1], reach.back),
            ):
                if (edge := masked_beyond(counts, limit, heads)) is None:
                    continue
                looks = f"looks further {side} than {edge} tokens"
                cure = "say so in `window` or `reach`"
                if side == "ahead" and edge == 0:
                    looks, cure = "looks ahead", "set `causal = True`"
                raise UnsupportedModelError(
                    f"no token of {name} {looks}, in any head, where {adapter} allows "
                    f"{reach.in_words}; {cure} (normlens help adapters)"
                )


def check_tokens(adapter: Adapter, traced: LayerTrace, lengths: Sequence[int]) -> None:
    """Raise where the model made another number of tokens of its input than the adapter says."""
    if (n := traced.x.shape[1]) != max(lengths):
        raise UnsupportedModelError(
            f"the layers of {type(adapter.model).__name__} have {n} tokens where the adapter "
            f"{type(adapter).__name__} counts {max(lengths)}; it must say what the model does "
            "(normlens help adapters)"
        )


def check_fast_attention(traced: LayerTrace) -> None:
    """Raise where a decoder's fast attention looks ahead, as umt5's does in transformers 5.17."""
    for attention, alpha in zip(traced.layer.attentions, traced.alphas, strict=True):
        if attention.source is None and traced.layer.reach.ahead == 0:
            is_open = isinstance(alpha, QueryKey) and alpha.mask is None and not alpha.causal
            if is_open and traced.x.shape[1] > 1:
                raise UnsupportedModelError(
                    f"layer {traced.index} looks ahead under sdpa, which its eager attention does "
                    "not; upgrade transformers"
                )


def real_tokens(lengths: Sequence[int], n: int, device: torch.device) -> Tensor:
    """Whether each of n places of each sequence holds a token (b, i), and no padding."""
    return torch.arange(n, device=device) < on_device(tuple(lengths), device)[:, None]


def attention_support(alpha: Tensor, reach: Reach, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest weight outside the reach, and how many pairs have weight at each j − i.

    `alpha` is (b, h, i, j); a pair counts if any head of any sequence gives it weight. The counts
    run from j − i = 1 − n to n − 1.
    """
    n, device = alpha.shape[-1], alpha.device
    real = real_tokens(lengths, n, device)
    peak = alpha.amax(1).masked_fill(~(real[:, :, None] & real[:, None, :]), 0).amax(0)  # (i, j)
    # Rows of a wider matrix read one element short each: equal offsets fall into one column.
    skewed = F.pad((peak > 0).flip(0), (0, n)).flatten()[: n * (2 * n - 1)].view(n, 2 * n - 1)
    return peak.masked_fill(reach.mask(n, device), 0).amax().float(), skewed.sum(0)


def masked_beyond(counts: NDArray[np.integer], limit: int | None, heads: int) -> int | None:
    """The distance at which a mask ends what a reach of `limit` tokens allows, or None.

    `counts` holds the pairs with weight at distance 0, 1, …. A mask has a sharp edge, with all
    pairs on one side of it and none on the other, while small weights that are rounded to zero fade
    out. Too few pairs beyond it are no evidence.
    """
    n, seen = len(counts), np.flatnonzero(counts)
    furthest = n - 1 if limit is None else min(limit, n - 1)
    edge = int(seen[-1]) if len(seen) else furthest
    empty = int((n - np.arange(edge + 1, furthest + 1)).sum())
    sharp = counts[edge] >= SHARP * (n - edge)
    return edge if sharp and empty >= n and empty * heads >= EVIDENCE else None


def linear_sizes(linear: Linear, rows: Rows, tokens: int) -> Tensor:
    """Norms of each row's input, output, product x W, and error y − (x W + b), as (4, row).

    All that is made of them waits until they are on the CPU: a GPU spends more on starting such
    small steps than on taking them. In the algebra `tokens` vectors pass through the same map.
    """
    dtype = linear.weight.dtype
    x, y = rows.input.to(dtype), linear.part(rows.output).to(dtype)
    product = matmul_rows(x, linear.weight, tokens)
    of_module = None if linear.bias_outside else linear.bias
    error = y - product if of_module is None else y - product - of_module
    return torch.stack(tuple(map(row_norms, (x, y, product, error))))


def linear_errors(sizes: Tensor) -> list[float]:
    """The worst error of the rows in each map's `linear_sizes`, relative to its output's size."""
    x, y, product, error = sizes.double().unbind(1)  # (map, row)
    # Where an output is small because large terms cancel, their rounding is still that of a row of
    # ordinary size.
    typical = (product / x).nan_to_num(0).median(-1, keepdim=True).values * x
    size = torch.maximum(torch.maximum(y, product), typical)
    # Values that overflow are left to completeness, which says so.
    return (error / size).nan_to_num(0, posinf=0).amax(-1).tolist()


# Checks that a loaded model can be run and its weights read.


def check_weights(
    model: nn.Module, layers: Sequence[Layer], blocks: Sequence[nn.Module] | None = None
) -> None:
    """Raise unless all weights are in memory, on one device, and in one precision.

    With `blocks` only the weights of each block have to be on one device.
    """
    name = type(model).__name__
    places = execution_places(model)
    if torch.device("meta") in places:
        raise UnsupportedModelError(
            f"the weights of {name} are not in memory, and no hook of accelerate brings them when "
            "a module runs; load it whole, without device_map or offloading"
        )
    if len(places) > 1 and blocks is None:
        raise UnsupportedModelError(
            f"the weights of {name} are spread over {_listed(places)}; only maps of single layers "
            "(lens.maps) can be taken of such a model. Load it on one device (without device_map, "
            'then model.to("cuda"))'
        )
    if len(places) > 1:
        for index, block in enumerate(blocks or ()):
            if len(within := execution_places(block)) > 1:
                raise UnsupportedModelError(
                    f"the weights of layer {index} of {name} are spread over {_listed(within)}; a "
                    "layer is analysed where its weights are, so give each layer one device in the "
                    "device_map (accelerate's no_split_module_classes)"
                )
    kinds = {weights_dtype(model)}
    for layer in layers:
        for linear in layer.linear_maps:
            # What is formed late takes and gives vectors in the model's precision.
            if not isinstance(linear.weight, LazyTensor):
                kinds.add(linear.weight.dtype)
    if len(kinds) > 1:
        raise _mixed(name, kinds)


def _listed(things: Iterable[object]) -> str:
    return ", ".join(sorted(str(each).removeprefix("torch.") for each in things))


def explain_failure(model: nn.Module, error: RuntimeError) -> None:
    """Raise with the cause if the model failed because of where or in what its weights are."""
    name, said = type(model).__name__, str(error)
    if isinstance(error, NormLensError):
        return
    if "meta tensor" in said:
        raise UnsupportedModelError(
            f"{name} needs weights of a module that does not run, which accelerate's hooks do not "
            "bring; load it whole, without device_map or offloading"
        ) from error
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(kinds) > 1 and ("dtype" in said or "scalar type" in said):
        raise _mixed(name, kinds, f": {said.splitlines()[0]}") from error


def _mixed(name: str, kinds: set[torch.dtype], reason: str = "") -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the weights of {name} are of several precisions ({_listed(kinds)}){reason}; convert it "
        "with model.to(torch.float32), or load(…, dtype=…)"
    )


def check_chunks(blocks: Sequence[Any], n: int) -> None:
    """Raise where feed-forward blocks run in chunks that do not divide `n` tokens."""
    for block in blocks:
        chunk = getattr(block, "chunk_size_feed_forward", 0)
        if chunk and n % chunk:
            raise InputError(
                f"this model runs its feed-forward blocks in chunks of {chunk} tokens, and {n} "
                "tokens are not a multiple of that; set chunk_size_feed_forward to 0 in its "
                "configuration and load it again"
            )

"""Attribution through all layers by a product of maps: what only approximates the frozen network.

>>> maps = normlens.rollouts.alti(lens, "She teaches soap opera history.")
>>> maps = normlens.rollouts.method("rollout-LN1")(lens, ["one text", "another"])

Every method takes a lens and a text (or a list, which gives a list) and returns `Maps` whose
sources are the model's input tokens: [layer, target, source], the last layer for the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlens.errors import InputError, MemoryLimitError, UnsupportedModelError, valid_choice
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import source_memory, source_parts, unowned_bias
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.norm_maps import layer_maps
from normlens.inputs.text import Encoded, Text, Texts
from normlens.layers import Layer, Linear, Norm
from normlens.measures import rollout
from normlens.options import NOT_LINEAR, RULES, SHAPLEY, AnalysisOptions, parse_bytes
from normlens.pipeline.batches import batches, check_completeness, launched
from normlens.plan.memory import DEFAULT_LIMIT, relative_error
from normlens.results.maps import Maps
from normlens.results.rolled import rolled_out
from normlens.scopes import WEIGHT_SCOPES, resolve
from normlens.trace.locking import alone_with_model
from normlens.trace.patches import Hooks
from normlens.trace.recorder import Call, LayerTrace
from normlens.trace.run import model_inputs, reading, run_traced, trace, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


#: A text, a list of them, or sequences that `Lens.encode` made of texts or token ids.
Given: TypeAlias = Text | Texts | Sequence[Encoded]


@dataclass(frozen=True)
class RolloutOptions:
    """How texts are analysed together; no number depends on it but for its last digits."""

    batch_size: int | str = "auto"
    memory_limit: int | float | str | None = None
    truncate: bool = False  # whether the beginning of a text that is too long will do

    def __post_init__(self) -> None:
        parse_bytes(self.memory_limit)

    @property
    def limit(self) -> int:
        """Bytes that intermediate results may take."""
        return parse_bytes(self.memory_limit) or DEFAULT_LIMIT


@dataclass(frozen=True)
class BatchMaps:
    """One map of every layer for a batch, and how far parts and bias missed the model's vectors."""

    layers: list[Tensor]  # each (b, i, j)
    errors: list[tuple[int, str, Tensor]]  # layer, scope, worst relative error


#: Maps of a batch of sequences.
OfBatch = Callable[[list[Encoded]], BatchMaps]
#: The map (b, i, j) of a traced layer with sequences of these lengths, and the worst relative error
#: of its parts and bias.
OfLayer = Callable[[LayerTrace, Sequence[int]], tuple[Tensor, Tensor]]


def sequences(lens: Lens, text: Given, options: RolloutOptions) -> tuple[list[Encoded], bool]:
    """The sequences, and whether they were given as a list."""
    if isinstance(text, (list, tuple)) and any(isinstance(item, Encoded) for item in text):
        encoded = [item for item in text if isinstance(item, Encoded)]
        if len(encoded) < len(text):
            raise InputError("give texts, or sequences that lens.encode made; not both in one list")
        return encoded, True
    return lens.encode(text, truncate=options.truncate), isinstance(text, list)  # type: ignore[arg-type]


def as_given(maps: list[Maps], many: bool) -> Maps | list[Maps]:
    """A list for a list, and the one result for a single text."""
    return maps if many else maps[0]


def rolled_maps(
    lens: Lens,
    encoded: Sequence[Encoded],
    of_batch: OfBatch,
    options: RolloutOptions,
    *,
    scope: str,
    method: str,
    normalise: bool = True,
    rule: str = "ig",
) -> list[Maps]:
    """The rollout of what `of_batch` makes of every layer, for each sequence.

    The maps are called `scope`: what of a layer they see; `rule` is that of the nonlinearity. The
    lens analyses the texts first, as far as the attention, so that a model that is not what its
    adapter says is refused.
    """
    check_stack(lens)
    attention = AnalysisOptions(scopes="ATTN-N", nonlinearity=rule, batch_size=options.batch_size)
    analysed = lens.analyse(encoded, attention)
    labels = {id(sequence): maps for sequence, maps in zip(encoded, analysed, strict=True)}

    def finish(batch: list[Encoded], maps: BatchMaps) -> list[Maps]:
        return _packed(lens, [labels[id(sequence)] for sequence in batch], maps, scope)

    results: dict[int, Maps] = {}
    for indices in batches(lens, encoded, options.batch_size):
        done = launched([encoded[i] for i in indices], of_batch, finish, lens.device)()
        for place, maps in zip(indices, done, strict=True):
            results[place] = rolled_out(
                maps, scope, method=method, residual=0.0, normalise=normalise
            )
    return [results[place] for place in range(len(encoded))]


def traced_maps(lens: Lens, batch: Sequence[Encoded], scope: str, of_layer: OfLayer) -> BatchMaps:
    """Run the model on a batch once and take a map of every layer as it is traced.

    `of_layer` is given layers in the algebra's precision.
    """
    lengths = [len(sequence) for sequence in batch]
    maps = BatchMaps([], [])

    def consume(traced: LayerTrace) -> None:
        dtype = lens.compute_dtype
        traced = replace(
            traced,
            layer=traced.layer.to(dtype),
            x=traced.x.to(dtype),
            alphas=tuple(alpha.to(dtype) for alpha in traced.alphas),
        )
        of_pairs, error = of_layer(traced, lengths)
        maps.layers.append(of_pairs)
        maps.errors.append((traced.index, scope, error))

    inputs = model_inputs(lens.adapter, batch, lens.device)
    with without_autocast(lens.device):
        trace(lens.adapter, inputs, range(lens.n_layers), consume)
    return maps


def check_stack(lens: Lens) -> None:
    """Refuse models whose layers cannot be multiplied: what enters one did not leave the last."""
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"the layers of {lens.name} cannot be rolled out: {outside}")
    if any(attention.source for layer in lens.layers for attention in layer.attentions):
        raise InputError(
            f"the layers of {lens.name} read another sequence, which a rollout cannot follow"
        )


def _packed(lens: Lens, labelled: list[Maps], maps: BatchMaps, scope: str) -> list[Maps]:
    """The maps of each sequence of a batch, with the labels that the lens gave it."""
    numbers = [(layer, name, float(error)) for layer, name, error in maps.errors]
    check_completeness(numbers, lens.dtype)
    stacked = torch.stack(maps.layers, dim=1).cpu().numpy()  # (b, layer, i, j)
    packed = []
    for labels, array in zip(labelled, stacked, strict=True):
        n = len(labels.tokens)
        worst = max([labels.completeness, *(error for *_, error in numbers)])
        packed.append(
            replace(
                labels,
                arrays={scope: array[:, :n, :n].copy()},
                completeness=worst,
                provenance={**labels.provenance, "completeness": worst},
            )
        )
    return packed


# ALTI: how much closer to a target's vector a source's part brings it, in the L1 norm.
#
#     c_ij = max(0, ‖y_i‖₁ − ‖y_i − F_i(x_j)‖₁),    rows to 1, rollout
#
# Ferrando et al. 2022. Its authors take the attention block of a post-LN layer: y and F behind
# ATTN RES LN (scope "LN1"; its counterpart in a pre-LN layer is ATTN RES, "RES1"). By default this
# module takes the whole layer, whose output is what the next layer reads.


def contributions(y: Tensor, parts: Tensor) -> Tensor:
    """``max(0, ‖y_i‖₁ − ‖y_i − F_i(x_j)‖₁)``: vectors (b, i, d), parts (j, b, i, d) → (b, i, j).

    The difference is taken dimension by dimension: two large sums would cancel where a part is
    small.
    """
    closer = (y.abs() - (y - parts).abs()).sum(-1)  # (j, b, i)
    return closer.clamp_min(0).permute(1, 2, 0)


def alti(
    lens: Lens,
    text: Given,
    options: RolloutOptions = RolloutOptions(),
    *,
    scope: str | None = None,
    nonlinearity: str = "ig",
) -> Maps | list[Maps]:
    """ALTI of a text, as maps [layer, target, source]; a list gives a list.

    `scope` says behind which component vectors and parts are taken; without it, behind the whole
    layer. `nonlinearity` is the rule for the feed-forward block, "ig", "ig-bias" or "gradient".
    """
    name = lens.scopes[-1] if scope is None else resolve(scope, lens.scopes)
    if name in WEIGHT_SCOPES:
        raise InputError(f"ALTI compares vectors; {name} has none: take a scope that ends in -N")
    if valid_choice(nonlinearity, RULES, "rule for the nonlinearity") == SHAPLEY:
        raise InputError(NOT_LINEAR)
    encoded, many = sequences(lens, text, options)
    if options.memory_limit is not None:
        _check_limit(lens, max(map(len, encoded), default=0), options.limit)

    def of_layer(traced: LayerTrace, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        return contributions_of_layer(traced, lengths, name, nonlinearity, options.limit)

    maps = rolled_maps(
        lens,
        encoded,
        lambda batch: traced_maps(lens, batch, name, of_layer),
        options,
        scope=name,
        method="alti",
        rule=nonlinearity,
    )
    return as_given(maps, many)


def contributions_of_layer(
    traced: LayerTrace, lengths: Sequence[int], scope: str, rule: str, limit: int
) -> tuple[Tensor, Tensor]:
    """The contributions (b, i, j) of one layer behind `scope`, and the error of parts and bias.

    Parts exist for as many sources at a time as `limit` bytes hold.
    """
    layer, x = traced.layer, traced.x
    (last,) = (step for step, name in layer.scope_of_step.items() if name == scope)
    vectors: dict[int, Tensor] = {}
    frozen = freeze(
        layer,
        x,
        traced.alphas,
        lengths,
        rule,
        until=last,
        parts=False,
        observe=vectors.__setitem__,
    )
    y = vectors[last]
    b, n, _ = x.shape
    at_once = max(1, limit // source_memory(layer, b, n, x.element_size()))
    pairs = x.new_zeros(b, n, n)
    total = unowned_bias(frozen)
    for first in range(0, n, at_once):
        stop = min(first + at_once, n)
        parts = source_parts(frozen, first, stop)
        pairs[..., first:stop] = contributions(y, parts)
        total = total + parts.sum(0)
    return pairs, relative_error(total, traced.real.get(last, y), lengths)


def _check_limit(lens: Lens, n: int, limit: int) -> None:
    """Raise where a memory limit of the user's does not hold the parts of one source."""
    itemsize = torch.empty(0, dtype=lens.compute_dtype).element_size()
    least = max(source_memory(layer, 1, n, itemsize) for layer in lens.layers)
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit is too low for {n} tokens: the parts of one source take "
            f"{least / (1 << 20):.1f} MB; give that much, leave the limit out, or shorten the text"
        )


# GlobEnc: the rollout of norms through a post-LN layer without its feed-forward block.
#
#     ‖(P_ij − mean P_ij) / σ(LN2)_i ⊙ γ₂‖,    P the parts behind ATTN RES LN
#
# Modarressi et al. 2022. The feed-forward block is left out of the parts, which pass it by the
# residual connection, but σ is that of LN2's real input. Rows are not normalised.


#: The components that GlobEnc is defined for, and those that its parts pass.
COMPONENTS = "ATTN RES LN FF RES LN"
SCOPE = "ATTNRESLNLN-N"


def globenc(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """GlobEnc of a text, as maps [layer, target, source]; a list gives a list."""
    check_globenc_layers(lens)
    encoded, many = sequences(lens, text, options)
    maps = rolled_maps(
        lens,
        encoded,
        lambda batch: traced_maps(lens, batch, SCOPE, norms_of_layer),
        options,
        scope=SCOPE,
        method="globenc",
        normalise=False,
    )
    return as_given(maps, many)


def check_globenc_layers(lens: Lens) -> None:
    """Refuse layers that GlobEnc is not defined for."""
    for layer in lens.layers:
        if layer.component_sequence != COMPONENTS:
            raise InputError(
                f"GlobEnc is defined for layers of {COMPONENTS}; those of {lens.name} are "
                f"{layer.component_sequence}"
            )


def norms_of_layer(traced: LayerTrace, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The norms (b, i, j) of one layer, and the error of the parts behind its first norm."""
    layer = traced.layer
    (first, _), (second, norm) = (
        (index, step) for index, step in enumerate(layer.steps) if isinstance(step, Norm)
    )
    frozen = freeze(layer, traced.x, traced.alphas, lengths, until=first)
    # What stands behind RES2 in the model is what LN2 reads.
    last = FrozenNorm.at(norm, traced.real[second - 1].to(traced.x.dtype))
    without_block = Layer([*layer.steps[: first + 1], norm], layer.reach)
    frozen = FrozenLayer(without_block, traced.x, (*frozen.steps, last), frozen.lengths)
    maps = layer_maps(frozen, [SCOPE], real={first: traced.real[first]})
    return maps.norms[SCOPE], maps.completeness["ATTNRESLN-N"]


# Value zeroing: how far a layer's output turns when one token's value vector is zero.
#
#     c_ij = 1 − cos(y_i, y_i with v_j = 0 in all heads of the layer),    rows to 1, rollout
#
# Mohebbi et al. 2023. The model's own blocks run again with a hook on the value projection, which
# is taken off on every way out.


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """``1 − cos(a, b) = ½ ‖a/‖a‖ − b/‖b‖‖²`` of vectors (…, d), exact for small angles, too."""
    return 0.5 * (F.normalize(a, dim=-1) - F.normalize(b, dim=-1)).square().sum(-1)


def value_zeroing(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """Value zeroing of a text, as maps [layer, target, source]; a list gives a list."""
    check_value_zeroing_layers(lens)
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


def check_value_zeroing_layers(lens: Lens) -> None:
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


# Every method by its name, with one contract: a lens and a text make maps.


#: Before a scope's name, the method that rolls out that scope: "rollout-LN1".
PREFIX = "rollout-"


class Method(Protocol):
    """A lens and a text, or several, make maps through all layers."""

    def __call__(
        self, lens: Lens, text: Given, options: RolloutOptions = ...
    ) -> Maps | list[Maps]: ...


def rollout_of_scope(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions(), *, scope: str
) -> Maps | list[Maps]:
    """The rollout of any scope (`Maps.rollout`); a list of texts gives a list."""
    check_stack(lens)
    name = resolve(scope, lens.scopes)
    encoded, many = sequences(lens, text, options)
    of_scope = AnalysisOptions(
        scopes=name, batch_size=options.batch_size, memory_limit=options.memory_limit
    )
    maps = [one.rollout(name) for one in lens.analyse(encoded, of_scope)]
    return as_given(maps, many)


def rollout_of_weights(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """Attention rollout, ``Â = ½ W̄ + ½ I`` (Abnar & Zuidema 2020); a list gives a list."""
    return rollout_of_scope(lens, text, options, scope="ATTN-W")


#: The methods that have a name of their own.
METHODS: Mapping[str, Method] = {
    "rollout-weights": rollout_of_weights,
    "globenc": globenc,
    "alti": alti,
    "value-zeroing": value_zeroing,
}


def method(name: str) -> Method:
    """The method of this name, ``rollout-SCOPE`` for the rollout of any scope."""
    wanted = str(name).strip().lower()
    if wanted in METHODS:
        return METHODS[wanted]
    scope = wanted.removeprefix(PREFIX)
    if scope and scope != wanted:
        return partial(rollout_of_scope, scope=scope)
    raise InputError(
        f"unknown rollout {name!r}; choose one of: {', '.join(METHODS)}, or {PREFIX}SCOPE with a "
        f"scope of the model ({PREFIX}LN1)"
    )


__all__ = [
    "METHODS",
    "Method",
    "RolloutOptions",
    "alti",
    "globenc",
    "method",
    "rollout",
    "rollout_of_scope",
    "rollout_of_weights",
    "value_zeroing",
]

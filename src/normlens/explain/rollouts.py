"""Attribution through all layers by a product of maps: what only approximates the frozen network.

>>> maps = normlens.rollouts.alti(lens, "She teaches soap opera history.")
>>> maps = normlens.rollouts.method("rollout-LN1")(lens, ["one text", "another"])

Every method takes a lens and a text (or a list, which gives a list) and returns `Maps` whose
sources are the model's input tokens: [layer, target, source], the last layer for the whole model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlens.errors import InputError, MemoryLimitError, UnsupportedModelError
from normlens.frozen.layer import freeze
from normlens.frozen.network import source_parts
from normlens.frozen.norm_maps import layer_maps
from normlens.frozen.parts import relative_error
from normlens.inputs.text import Encoded, Text, Texts
from normlens.layers import Linear
from normlens.measures.maps import rollout
from normlens.options import DEFAULT_LIMIT, AnalysisOptions, ExplainOptions, parse_bytes
from normlens.pipeline.batches import batches, check_completeness, halves
from normlens.plan.costs import source_memory
from normlens.results.maps import Maps
from normlens.results.rolled import rolled_out
from normlens.scopes import WEIGHT_SCOPES, resolve
from normlens.trace import run as tracing
from normlens.trace.locking import Hooks, exclusive

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


#: Names of methods with conditions, and the components that GlobEnc is defined for.
GLOBENC, VALUE_ZEROING, COMPONENTS = "globenc", "value-zeroing", "ATTN RES LN FF RES LN"

#: One map (b, i, j) of every layer of a batch, and how far its parts and bias miss the model's
#: vectors, where it has parts.
LayerMap: TypeAlias = tuple[Tensor, Tensor | None]


def sequences(lens: Lens, text: Given, options: RolloutOptions) -> tuple[list[Encoded], bool]:
    """The sequences, and whether they were given as a list."""
    if isinstance(text, (list, tuple)) and any(isinstance(item, Encoded) for item in text):
        encoded = [item for item in text if isinstance(item, Encoded)]
        if len(encoded) < len(text):
            raise InputError("give texts, or sequences that lens.encode made; not both in one list")
        return encoded, True
    return lens.encode(text, truncate=options.truncate), isinstance(text, list)  # type: ignore[arg-type]


def check_method(lens: Lens, method: str) -> None:
    """Refuse layers that cannot be multiplied, or that a method of this name is not defined for."""
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"the layers of {lens.name} cannot be rolled out: {outside}")
    for layer in lens.layers:
        if layer.others:
            raise InputError(
                f"the layers of {lens.name} read another sequence, which a rollout cannot follow"
            )
        if method == GLOBENC and layer.component_sequence != COMPONENTS:
            raise InputError(
                f"GlobEnc is defined for layers of {COMPONENTS}; those of {lens.name} are "
                f"{layer.component_sequence}"
            )
        if method == VALUE_ZEROING and layer.attention.value.module is None:
            raise UnsupportedModelError(
                "the adapter does not say which module computes the value vectors (Linear's "
                "`module`), and value zeroing has to hook it"
            )


def rolled_maps(
    lens: Lens,
    text: Given,
    options: RolloutOptions,
    of_batch: Callable[[list[Encoded]], list[LayerMap]],
    *,
    scope: str,
    method: str,
    normalise: bool = True,
    rule: str = "ig",
) -> Maps | list[Maps]:
    """The rollout of what `of_batch` makes of every layer; a list of texts gives a list.

    The maps are called `scope`: what of a layer they see; `rule` is that of the nonlinearity. The
    lens analyses the texts first, as far as the attention, so that a model that is not what its
    adapter says is refused.
    """
    encoded, many = sequences(lens, text, options)
    check_method(lens, method)
    attention = AnalysisOptions(scopes="ATTN-N", nonlinearity=rule, batch_size=options.batch_size)
    results = lens.analyse(encoded, attention)
    waiting = deque(batches(lens, encoded, options.batch_size))
    while waiting:
        places = waiting.popleft()
        try:
            maps = of_batch([encoded[place] for place in places])
        except (RuntimeError, MemoryError) as error:
            waiting.extendleft(reversed(halves(lens, encoded, places, error)))
            continue
        errors = [(k, scope, float(e)) for k, (_, e) in enumerate(maps) if e is not None]
        check_completeness(errors, lens.dtype)
        stacked = torch.stack([layer for layer, _ in maps], dim=1).cpu().numpy()  # (b, layer, i, j)
        for place, array in zip(places, stacked, strict=True):
            own, n = results[place], len(encoded[place])
            worst = max([own.completeness, *(error for *_, error in errors)])
            about = {**own.provenance, "completeness": worst}
            arrays = {scope: array[:, :n, :n].copy()}
            own = replace(own, arrays=arrays, completeness=worst, provenance=about)
            results[place] = rolled_out(
                own, scope, method=method, residual=0.0, normalise=normalise
            )
    return results if many else results[0]


def traced_maps(
    lens: Lens,
    of_layer: Callable[[tracing.LayerTrace, Sequence[int]], tuple[Tensor, Tensor]],
    batch: Sequence[Encoded],
) -> list[LayerMap]:
    """Run the model on a batch once and take a map of every layer as it is traced.

    `of_layer` is given layers in the algebra's precision, with the lengths of the sequences.
    """
    lengths, dtype = [len(sequence) for sequence in batch], lens.compute_dtype
    maps: list[LayerMap] = []

    def consume(traced: tracing.LayerTrace) -> None:
        maps.append(of_layer(traced.to(dtype), lengths))

    inputs = tracing.model_inputs(lens.adapter, batch, lens.device)
    tracing.trace(lens.adapter, inputs, range(lens.n_layers), consume)
    return maps


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
    ExplainOptions(nonlinearity=nonlinearity)  # the same rules hold
    of_layer = partial(contributions_of_layer, scope=name, rule=nonlinearity, options=options)
    of_batch = partial(traced_maps, lens, of_layer)
    return rolled_maps(lens, text, options, of_batch, scope=name, method="alti", rule=nonlinearity)


def contributions_of_layer(
    traced: tracing.LayerTrace,
    lengths: Sequence[int],
    scope: str,
    rule: str,
    options: RolloutOptions,
) -> tuple[Tensor, Tensor]:
    """The contributions (b, i, j) of one layer behind `scope`, and the error of parts and bias.

    Parts exist for as many sources at a time as the memory limit holds; one that a user gives has
    to hold those of one source.
    """
    layer, x = traced.layer, traced.x
    b, n, _ = x.shape
    least = source_memory(layer, 1, n, x.element_size())
    if options.memory_limit is not None and options.limit < least:
        raise MemoryLimitError(
            f"the memory limit is too low for {n} tokens: the parts of one source take "
            f"{least / (1 << 20):.1f} MB; give that much, leave the limit out, or shorten the text"
        )
    at_once = max(1, options.limit // source_memory(layer, b, n, x.element_size()))
    (last,) = (step for step, name in layer.scope_of_step.items() if name == scope)
    vectors: dict[int, Tensor] = {}
    given = layer, x, traced.alphas, lengths, rule
    frozen = freeze(*given, until=last, observe=vectors.__setitem__)
    y, bias = vectors[last], frozen.biases[last]
    pairs, total = x.new_zeros(b, n, n), torch.zeros_like(y) if bias is None else bias
    for first in range(0, n, at_once):
        stop = min(first + at_once, n)
        parts = source_parts(frozen, first, stop)
        pairs[..., first:stop] = contributions(y, parts)
        total = total + parts.sum(0)
    return pairs, relative_error(total, traced.real.get(last, y), lengths)


# GlobEnc: the rollout of norms through a post-LN layer without its feed-forward block.
#
#     ‖(P_ij − mean P_ij) / σ(LN2)_i ⊙ γ₂‖,    P the parts behind ATTN RES LN
#
# Modarressi et al. 2022. The feed-forward block is left out of the parts, which pass it by the
# residual connection, but σ is that of LN2's real input. Rows are not normalised.


#: The components that its parts pass.
SCOPE = "ATTNRESLNLN-N"


def globenc(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """GlobEnc of a text, as maps [layer, target, source]; a list gives a list."""
    of_batch = partial(traced_maps, lens, norms_of_layer)
    return rolled_maps(lens, text, options, of_batch, scope=SCOPE, method=GLOBENC, normalise=False)


def norms_of_layer(traced: tracing.LayerTrace, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The norms (b, i, j) of one layer, and the error of the parts behind its first norm."""
    names = traced.layer.step_names.items()
    frozen = freeze(traced.layer, traced.x, traced.alphas, lengths)
    kept, vectors = frozen.keeping([step for step, name in names if name not in ("FF", "RES2")])
    maps = layer_maps(kept, [SCOPE], real={len(kept.steps) - 1: vectors})
    return maps.norms[SCOPE], maps.completeness[SCOPE]


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
    of_batch, scope = partial(zeroed_maps, lens, options.limit), lens.scopes[-1]
    return rolled_maps(lens, text, options, of_batch, scope=scope, method=VALUE_ZEROING)


def zeroed_maps(lens: Lens, limit: int, batch: Sequence[Encoded]) -> list[LayerMap]:
    """The distances of every layer for a batch, as many sources at a time as `limit` bytes hold."""
    inputs = tracing.model_inputs(lens.adapter, batch, lens.device)
    b, n = inputs["input_ids"].shape
    # Bytes of one sequence inside a block: scores, vectors, neurons.
    attention = lens.layers[0].attention
    widest = max(linear.weight.shape[1] for linear in lens.layers[0].linear_maps)
    numbers = 3 * attention.heads * n + 8 * attention.output.weight.shape[1] + 3 * widest
    copies = min(n, max(1, limit // (b * n * numbers * lens.dtype.itemsize)))
    # The model itself makes the masks and positions that a block is called with for many copies.
    repeated = {name: value.repeat_interleave(copies, 0) for name, value in inputs.items()}
    visited: list[tracing.LayerTrace] = []

    def visit(traced: tracing.LayerTrace) -> None:
        args, kwargs = traced.call[0][1:], dict(traced.call[1])
        kwargs.pop("hidden_states", None)
        # Copied: a view would keep the vectors of all copies.
        x, output = (v.detach()[::copies].clone() for v in (traced.x, traced.output))
        call = args, kwargs
        visited.append(replace(traced, call=call, x=x, output=output, alphas=(), real={}, rows={}))

    def run() -> list[LayerMap]:
        model = lens.adapter.model
        with tracing.reading(model, lens.adapter):
            tracing.run_traced(lens.adapter, model, repeated, range(lens.n_layers), visit)
            return [(_distances(one, copies, lens.compute_dtype), None) for one in visited]

    return exclusive(lens.adapter.model, run)


def _distances(ran: tracing.LayerTrace, copies: int, dtype: torch.dtype) -> Tensor:
    """``1 − cos(y_i, y_i with v_j = 0)``, (b, i, j), of a layer that the model has run."""
    b, n, _ = ran.x.shape
    args, kwargs = ran.call
    y = ran.output.to(dtype)[:, None]  # (b, 1, i, d)
    pairs = y.new_zeros(b, n, n)
    for first in range(0, n, copies):
        count = min(copies, n - first)
        with zeroed_values(ran.layer.attention.value, b, copies, first, count):
            out = ran.block(ran.x.repeat_interleave(copies, 0), *args, **kwargs)
        out = out[0] if isinstance(out, (tuple, list)) else out
        changed = out.view(b, copies, n, -1)[:, :count].to(dtype)
        pairs[..., first : first + count] = cosine_distance(y, changed).transpose(1, 2)
    # Where attention cannot look, copies of a vector differ by rounding alone.
    return pairs * ran.layer.reach.mask(n, pairs.device)


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
    name = resolve(scope, lens.scopes)
    check_method(lens, name)
    encoded, many = sequences(lens, text, options)
    of_scope = AnalysisOptions(
        scopes=name, batch_size=options.batch_size, memory_limit=options.memory_limit
    )
    maps = [one.rollout(name) for one in lens.analyse(encoded, of_scope)]
    return maps if many else maps[0]


def rollout_of_weights(
    lens: Lens, text: Given, options: RolloutOptions = RolloutOptions()
) -> Maps | list[Maps]:
    """Attention rollout, ``Â = ½ W̄ + ½ I`` (Abnar & Zuidema 2020); a list gives a list."""
    return rollout_of_scope(lens, text, options, scope="ATTN-W")


#: The methods that have a name of their own.
METHODS: Mapping[str, Method] = {
    "rollout-weights": rollout_of_weights,
    GLOBENC: globenc,
    "alti": alti,
    VALUE_ZEROING: value_zeroing,
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

"""A slow and obvious reference for one layer and one sequence, in float64.

Every part is materialised as an (i, j, d) tensor, every integral is a sum over a path, every
derivative comes from autograd, and every Shapley value from all orders of the players. Nothing
here is factored, tiled or in closed form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normlens.frozen.norm_maps import LayerMaps
from normlens.layers import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Projection,
    Residual,
    cast,
)
from normlens.measures.maps import mixing_ratio
from normlens.results.maps import Maps

PANELS = 2
NODES_PER_PANEL = 20

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Parts:
    """``y_i = Σ_j owned[i, j] + bias[i]``."""

    owned: Tensor  # (i, j, d)
    bias: Tensor  # (i, d)

    @property
    def total(self) -> Tensor:
        return self.owned.sum(1) + self.bias

    @property
    def map(self) -> Tensor:
        """``‖F_i(x_j)‖``, (i, j)."""
        return self.owned.norm(dim=-1)

    @property
    def mixing(self) -> Tensor:
        """``‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖)``, (i,)."""
        n = len(self.owned)
        columns = range(self.owned.shape[1] - n, self.owned.shape[1])  # the targets' own tokens
        own = self.owned[range(n), columns]
        others = self.owned.clone()
        others[range(n), columns] = 0
        size = others.sum(1).norm(dim=-1)
        return size / (size + own.norm(dim=-1))


@dataclass(frozen=True)
class Routed:
    """The experts that each token of a sequence used, as the model's modules were called."""

    experts: Tensor  # (i, k)
    weights: Tensor  # (i, k)
    shared: Tensor | None = None  # (i,)


def routed_of(layer: Layer) -> Routed | None:
    """The routing of the first sequence that a trace put into its layer."""
    routing = None if layer.experts is None else layer.experts.routing
    if routing is None:
        return None
    shared = None if routing.shared is None else routing.shared[0]
    return Routed(routing.experts[0], routing.weights[0], shared)


@dataclass(frozen=True)
class Reference:
    """What one layer should give: parts, maps and mixing ratios by scope."""

    parts: dict[str, Parts]
    maps: dict[str, Tensor]  # scope → (i, j)
    mixing: dict[str, Tensor]  # scope → (i,)
    head_maps: dict[str, Tensor]  # scope → (h, i, j)


def mixing_of(found: LayerMaps, scope: str) -> Tensor:
    """The mixing ratio that the algebra's two norms of a scope give."""
    return mixing_ratio(*found.mixing[scope])


def reference(
    layer: Layer,
    x: Tensor,
    alpha: Tensor,
    rule: str = "ig",
    other: tuple[Tensor, Tensor] | None = None,
    routed: Routed | None = None,
) -> Reference:
    """Walk the layer's steps for input `x` (j, d) and attention weights `alpha` (h, i, j).

    `other` are the vectors (k, d) of another sequence and the weights (h, i, k) that an attention
    gives them; its columns come before those of the layer's own tokens, and its maps of weights
    and heads are those of CROSS.
    """
    layer, x, alpha = layer.to(torch.float64), x.double(), alpha.double()
    n = len(x)
    k = 0 if other is None else len(other[0])
    own_columns = range(k, k + n)

    def of_token(y: Tensor) -> Parts:
        """Vectors (i, d) of tokens that are not mixed yet: all of them belongs to the token."""
        owned = torch.zeros(n, k + n, y.shape[1], dtype=torch.float64, device=x.device)
        owned[range(n), own_columns] = y
        return Parts(owned, torch.zeros_like(y))

    state = of_token(x)
    saved: list[Parts] = []
    scopes: dict[str, Parts] = {}
    prefix = ""
    for step in layer.steps:
        if isinstance(step, Branch):
            bypass = state
            for beside in step.through:
                assert not prefix
                bypass = of_token(affine(beside, bypass).total)
            saved.append(bypass)
            continue
        if isinstance(step, Attention):
            if step.source is None:
                state, columns = attention(step, state.total, alpha), slice(k, None)
            else:
                assert other is not None
                state, columns = attention(step, *(t.double() for t in other)), slice(k)
            width = state.bias.shape[1]
            owned = torch.zeros(n, k + n, width, dtype=torch.float64, device=x.device)
            owned[:, columns] = state.owned
            state = Parts(owned, state.bias)
        elif isinstance(step, Residual):
            bypass = saved.pop()
            state = Parts(state.owned + bypass.owned, state.bias + bypass.bias)
        elif isinstance(step, (Norm, Projection)):
            state = affine(step, state)
            if not prefix:  # whatever happens to a token before it is mixed belongs to the token
                state = of_token(state.total)
        elif isinstance(step, FeedForward):
            state = feed_forward(step, state, rule)
        elif isinstance(step, Experts):
            assert routed is not None
            state = mixture(step, state, rule, routed)
        elif isinstance(step, ParallelFeedForward):
            own = state.owned.clone()
            own[range(n), own_columns] += parallel(step, x)
            state = Parts(own, state.bias)
        if prefix or isinstance(step, Attention):
            prefix += step.symbol
            scopes[f"{prefix}-N"] = state
    heads = zip(alpha, head_outputs(layer, x), strict=True)
    cross = crossing(layer, other, n)
    mean = alpha.mean(0)
    eye = torch.eye(n, dtype=torch.float64, device=x.device)
    weights = {"ATTN-W": mean, "ATTNRES-W": 0.5 * mean + 0.5 * eye}
    nothing = torch.zeros(n, k, dtype=torch.float64, device=x.device)
    return Reference(
        parts=scopes,
        maps={
            **{scope: torch.cat([nothing, w], 1) for scope, w in weights.items()},
            **{scope: w.mean(0) for scope, w in cross.items() if scope.endswith("-W")},
            **{scope: parts.map for scope, parts in scopes.items()},
        },
        mixing={
            **{scope: mixing_of_weights(layer, w) for scope, w in weights.items()},
            **{scope: torch.ones(n).to(x) for scope in cross if scope.endswith("-W")},
            **{scope: parts.mixing for scope, parts in scopes.items()},
        },
        head_maps={
            "ATTN-W": alpha,
            "ATTN-N": torch.stack([(a[:, :, None] * f).norm(dim=-1) for a, f in heads]),
            **cross,
        },
    )


def mixing_of_weights(layer: Layer, weights: Tensor) -> Tensor:
    """The share of a target's attention to tokens that other tokens get, (i,)."""
    own = weights.diagonal()
    return (weights.sum(1) - own) / weights.sum(1) if layer.attention.sinks else 1 - own


# The components ---------------------------------------------------------------------------------


def attention(step: Attention, s: Tensor, alpha: Tensor) -> Parts:
    """``F_i(x_j) = Σ_h α^h_ij f^h(x_j)``, and the output bias belongs to no token."""
    owned = sum(
        a[:, :, None] * f[None, :, :] for a, f in zip(alpha, per_head(step, s), strict=True)
    )
    bias = torch.zeros(alpha.shape[1], step.output.weight.shape[1]).to(s)
    return Parts(owned, bias if step.output.bias is None else bias + step.output.bias)


def per_head(step: Attention, s: Tensor) -> list[Tensor]:
    """``f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h`` for each head, (j, d)."""
    width = step.value.weight.shape[1] // step.groups
    outputs = []
    if step.latent is not None:  # what happens to a source alone belongs to it
        s = step.latent.down(s)
        s = norm(step.latent.norm, Parts(s[:, None], torch.zeros_like(s))).total
    for head in range(step.heads):
        group = head // (step.heads // step.groups)
        columns = slice(group * width, (group + 1) * width)
        value = s @ step.value.weight[:, columns]
        if step.value.bias is not None:
            value = value + step.value.bias[columns]
        outputs.append(value @ step.output.weight[head * width : (head + 1) * width])
    return outputs


def crossing(layer: Layer, other: tuple[Tensor, Tensor] | None, n: int) -> dict[str, Tensor]:
    """Each head's weights and norms of an attention to another sequence, with zeros for its own."""
    steps = [s for s in layer.steps if isinstance(s, Attention) and s.source is not None]
    if not steps or other is None:
        return {}
    vectors, alpha = (t.double() for t in other)
    heads = zip(alpha, per_head(steps[0], vectors), strict=True)
    norms = torch.stack([(a[:, :, None] * f).norm(dim=-1) for a, f in heads])
    none = torch.zeros(len(alpha), n, n).to(alpha)
    return {"CROSS-W": torch.cat([alpha, none], 2), "CROSS-N": torch.cat([norms, none], 2)}


def head_outputs(layer: Layer, x: Tensor) -> list[Tensor]:
    """`per_head` at the layer's input: any norms before the attention come first."""
    for step in layer.steps:
        if isinstance(step, Attention):
            return per_head(step, x)
        if isinstance(step, (Norm, Projection)):
            x = affine(step, Parts(x[:, None], torch.zeros_like(x))).total
    raise ValueError("a layer without attention")


def affine(step: Norm | Projection, parts: Parts) -> Parts:
    """A norm, or a linear map of each part; its bias belongs to no token."""
    if isinstance(step, Norm):
        return norm(step, parts)
    weight, bias = step.linear.weight, step.linear.bias
    bias_part = parts.bias @ weight
    return Parts(parts.owned @ weight, bias_part if bias is None else bias_part + bias)


def kept_parts(layer: Layer, x: Tensor, alpha: Tensor, kept: list[int]) -> Parts:
    """The parts behind some of a layer's steps, with norms held at the real vectors' deviations.

    Blocks that are kept have to read what they read in the whole layer.
    """
    whole, scopes = reference(layer, x, alpha).parts, layer.scope_of_step
    layer, x = layer.to(torch.float64), x.double()
    owned = torch.zeros(len(x), *x.shape).to(x)
    owned[range(len(x)), range(len(x))] = x
    state, saved = Parts(owned, torch.zeros_like(x)), []
    for index, step in enumerate(layer.steps):
        if isinstance(step, Branch):
            saved.append(state)
        bypass = saved.pop() if isinstance(step, Residual) else state
        if index not in kept:
            continue
        if isinstance(step, Attention):
            state = whole["ATTN-N"]
        elif isinstance(step, Residual):
            changed = bypass is not state  # else there is nothing that it could stand around
            owned, bias = state.owned + bypass.owned, state.bias + bypass.bias
            state = Parts(owned, bias) if changed else state
        elif isinstance(step, Norm):
            before = max(place for place in scopes if place < index)
            state = norm(step, state, whole[scopes[before]].total)
        else:
            state = feed_forward(step, state, "ig")
    return state


def norm(step: Norm, parts: Parts, real: Tensor | None = None) -> Parts:
    """Each part centred by its own mean, over the deviation of the real vector, times γ."""
    if step.eps is None:  # γ and β in a norm's place
        return Parts(parts.owned * step.gamma, parts.bias * step.gamma + step.beta)
    y = parts.total if real is None else real
    centre = y.mean(-1, keepdim=True) if step.centred else torch.zeros_like(y)
    deviation = (((y - centre) ** 2).mean(-1) + step.eps).sqrt()[:, None]  # (i, 1)

    def scale(v: Tensor, sigma: Tensor) -> Tensor:
        if step.centred:
            v = v - v.mean(-1, keepdim=True)
        v = v / sigma
        return v if step.gamma is None else v * step.gamma

    bias = scale(parts.bias, deviation)
    return Parts(
        scale(parts.owned, deviation[:, None]), bias if step.beta is None else bias + step.beta
    )


def parallel(step: ParallelFeedForward, x: Tensor) -> Tensor:
    """A block beside the attention, as the model computes it from the layer's input."""
    if step.norm is not None:
        x = norm(step.norm, Parts(x[:, None], torch.zeros_like(x))).total
    ff = step.feed_forward
    arguments = [ff.up(x)] if ff.gate is None else [ff.gate(x), ff.up(x)]
    return ff.down(hidden(ff)(*arguments))


def feed_forward(ff: FeedForward, parts: Parts, rule: str) -> Parts:
    """The block's hidden vector shared out by `rule`, then through the second product."""
    inputs = [ff.up] if ff.gate is None else [ff.gate, ff.up]
    tokens = [(parts.owned @ linear.weight).transpose(0, 1) for linear in inputs]  # (j, i, m)
    bias = [linear(parts.bias) for linear in inputs]  # (i, m)
    shares, bias_part = RULES[rule](hidden(ff), tokens, bias)
    down = ff.down.weight
    bias_part = bias_part @ down
    return Parts(
        (shares @ down).transpose(0, 1),
        bias_part if ff.down.bias is None else bias_part + ff.down.bias,
    )


def mixture(step: Experts, parts: Parts, rule: str, routed: Routed) -> Parts:
    """Each expert, on the targets that used it, times the weight that it had for each of them."""
    owned, bias = torch.zeros_like(parts.owned), torch.zeros_like(parts.bias)

    def add(block: FeedForward, targets: Tensor, inside: Tensor, outside: Tensor) -> None:
        some = Parts(
            inside[:, None, None] * parts.owned[targets], inside[:, None] * parts.bias[targets]
        )
        passed = feed_forward(cast(block, torch.float64), some, rule)
        owned[targets] += outside[:, None, None] * step.scale * passed.owned
        bias[targets] += outside[:, None] * step.scale * passed.bias

    for expert in routed.experts.unique().tolist():
        targets, places = torch.where(routed.experts == expert)
        weights = routed.weights[targets, places].double()
        ones = torch.ones_like(weights)
        inside, outside = (weights, ones) if step.weighs_input else (ones, weights)
        add(step.members[expert], targets, inside, outside)
    if step.shared is not None:
        every = torch.arange(len(bias), device=bias.device)
        ones = torch.ones(len(bias), dtype=torch.float64, device=bias.device)
        shared = ones if routed.shared is None else routed.shared.double()
        add(step.shared, every, ones, shared)
    return Parts(owned, bias)


def hidden(ff: FeedForward) -> Function:
    """``g(z)``, or ``g(a) u`` of a gated block, with the activation that the model itself uses."""
    g = model_activation(ff.activation)
    if ff.limit is not None:
        return Limited(g, ff.limit)
    return g if ff.gate is None else lambda a, u: g(a) * u


@dataclass(frozen=True)
class Limited:
    """gpt-oss's gate, as its experts compute it."""

    g: Function
    limit: float

    @property
    def kinks(self) -> list[tuple[int, float]]:
        """The arguments and levels at which it has a kink."""
        return [(0, self.limit), (1, self.limit), (1, -self.limit)]

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(min=None, max=self.limit)
        return (up.clamp(min=-self.limit, max=self.limit) + 1) * self.g(gate)


def model_activation(name: str) -> Function:
    """The activation that transformers computes under this name."""
    if name == "bloom_gelu":
        from transformers.models.bloom.modeling_bloom import BloomGelu

        return BloomGelu().eval()
    from transformers.activations import ACT2FN

    return ACT2FN[name]


# The rules: f, each argument's token parts (j, i, m) and bias share (i, m) → shares, remainder ----


def integrated_gradients(
    f: Function, tokens: list[Tensor], bias: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Path from nothing to everything; the bias's share of the argument is one more part."""
    players = [torch.cat([t, b[None]]) for t, b in zip(tokens, bias, strict=True)]
    nothing = [torch.zeros_like(b) for b in bias]
    shares = along_path(f, nothing, players)
    return shares[:-1], shares[-1] + f(*nothing)


def integrated_gradients_from_bias(
    f: Function, tokens: list[Tensor], bias: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Path from the bias's share to everything: what the block makes of no input stays with it."""
    return along_path(f, bias, tokens), f(*bias)


def along_path(f: Function, start: list[Tensor], players: list[Tensor]) -> Tensor:
    """``Σ_k p_k ∫₀¹ ∂f/∂p_k dα`` for every player p, all of them scaled by α."""
    integrals = mean_slopes(f, start, players)
    return sum(p * integral for p, integral in zip(players, integrals, strict=True))


def mean_slopes(f: Function, start: list[Tensor], players: list[Tensor]) -> list[Tensor]:
    """``∫₀¹ ∂f/∂p_k dα`` for every player of every argument k.

    The path is cut where f's first argument changes its sign, or where it meets another kink of f,
    so that none ever lies inside a panel of the quadrature.
    """
    cuts = [torch.zeros_like(start[0]), torch.ones_like(start[0])]  # (i, m)
    for argument, level in getattr(f, "kinks", [(0, 0.0)]):
        begin = start[argument] - level
        end = begin + players[argument].sum(0)
        cuts.append(torch.where(begin * end < 0, begin / (begin - end), torch.ones_like(begin)))
    nodes, weights = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
    integrals = [torch.zeros_like(p) for p in players]
    for low, high in itertools.pairwise(torch.stack(cuts).sort(0).values):
        width = (high - low) / PANELS
        if not width.any():
            continue
        for panel in range(PANELS):
            for node, weight in zip(nodes, weights, strict=True):
                alpha = low + width * (panel + (node + 1) / 2)
                slopes, _ = differentiate(f, start, [alpha * p for p in players])
                for integral, slope in zip(integrals, slopes, strict=True):
                    integral += width * weight / 2 * slope
    return integrals


def differentiate(
    f: Function, fixed: list[Tensor], players: list[Tensor]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """``∂f/∂p`` for every player of every argument, and f itself."""
    with torch.enable_grad():
        leaves = [p.detach().clone().requires_grad_() for p in players]
        value = f(*(s + leaf.sum(0) for s, leaf in zip(fixed, leaves, strict=True)))
        return torch.autograd.grad(value.sum(), leaves), value.detach()


def gradient(f: Function, tokens: list[Tensor], bias: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradient at the real input times each part; the remainder belongs to no token."""
    slopes, value = differentiate(f, bias, tokens)
    shares = sum(t * slope for t, slope in zip(tokens, slopes, strict=True))
    return shares, value - shares.sum(0)


def shapley(f: Function, tokens: list[Tensor], bias: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean marginal contribution over all orders of the players, the bias among them."""
    players = [torch.cat([t, b[None]]) for t, b in zip(tokens, bias, strict=True)]
    count = len(players[0])
    shares = torch.zeros_like(players[0])
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        sums = [torch.zeros_like(b) for b in bias]
        before = f(*sums)
        for player in order:
            sums = [total + p[player] for total, p in zip(sums, players, strict=True)]
            after = f(*sums)
            shares[player] += after - before
            before = after
    shares /= len(orders)
    return shares[:-1], shares[-1] + f(*(torch.zeros_like(b) for b in bias))


RULES: dict[str, Function] = {
    "ig": integrated_gradients,
    "ig-bias": integrated_gradients_from_bias,
    "gradient": gradient,
    "shapley": shapley,
}


# What a model computes, seen with plain hooks ---------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """One run of a model on one sequence, layer by layer."""

    x: list[Tensor]  # each (j, d), a block's input
    output: list[Tensor]  # each (i, d), a block's output
    alpha: list[Tensor]  # each (h, i, j)
    routed: list[Routed | None] = field(default_factory=list)  # of each block that ran


def observe(
    model: torch.nn.Module, blocks: list[torch.nn.Module], ids: list[int] | dict[str, object]
) -> Observed:
    """Run `model` on `ids`, or other inputs, and keep what enters and leaves each of `blocks`."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    routed: list[Routed | None] = []
    seen: dict[str, Tensor] = {}

    def before(_: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        inputs.append((args[0] if args else kwargs["hidden_states"])[0])
        seen.clear()

    def after(_: object, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[0])
        routed.append(Routed(**seen) if seen else None)

    handles = []
    for block in dict.fromkeys(blocks):
        handles += observe_routing(block, seen)
        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(after))
    device = next(model.parameters()).device
    given = ids if isinstance(ids, dict) else {"input_ids": torch.tensor([ids], device=device)}
    try:
        with torch.no_grad():
            result = model(**given, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    if not inputs:
        return observe_unhooked(model, given)
    return Observed(inputs, outputs, [alpha[0] for alpha in result.attentions], routed)


def observe_unhooked(model: torch.nn.Module, given: dict[str, object]) -> Observed:
    """The same of SqueezeBERT, which calls no block as a module and returns scores, not weights."""
    with torch.no_grad():
        result = model(**given, output_attentions=True, output_hidden_states=True)
    states = [vectors[0] for vectors in result.hidden_states]
    alpha = [scores[0].softmax(-1) for scores in result.attentions]
    return Observed(states[:-1], states[1:], alpha, [None] * len(alpha))


def observe_routing(block: torch.nn.Module, seen: dict[str, Tensor]) -> list[Any]:
    """Hooks that note what a block's experts are called with, and the weight of a shared one."""

    def chosen(_: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        given = [*args, *kwargs.values()]
        if len(given) == 3:
            seen["experts"], seen["weights"] = given[1:]

    def scores(_: object, __: object, output: tuple[Tensor, ...]) -> None:
        # Llama 4 hands its experts vectors that are weighed already.
        count = int((output[0] > 0).sum(-1).max())
        seen["weights"], seen["experts"] = output[0].topk(count)

    def shared(_: object, __: object, output: Tensor) -> None:
        seen["shared"] = output.sigmoid().flatten()

    handles: list[Any] = []
    for name, module in block.named_modules():
        if name.endswith("experts") and not name.endswith("shared_experts"):
            handles.append(module.register_forward_pre_hook(chosen, with_kwargs=True))
        elif name.endswith("shared_expert_gate"):
            handles.append(module.register_forward_hook(shared))
        elif type(module).__name__ == "Llama4Router":
            handles.append(module.register_forward_hook(scores))
    return handles


@dataclass(frozen=True)
class ObservedPair:
    """One run of an encoder–decoder on one pair."""

    encoder: Observed
    decoder: Observed
    cross: list[Tensor]  # each (h, i, k), the weights of a decoder layer's second attention
    memory: Tensor  # (k, d), what the encoder returned


def observe_pair(
    model: torch.nn.Module,
    stacks: tuple[list[torch.nn.Module], list[torch.nn.Module]],
    inputs: dict[str, Tensor],
) -> ObservedPair:
    """Run an encoder–decoder once and keep what enters and leaves each block of both stacks."""
    seen: dict[str, list[Tensor]] = {"x": [], "y": []}

    def before(_: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        seen["x"].append((args[0] if args else kwargs["hidden_states"])[0])

    def after(_: object, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        seen["y"].append((output[0] if isinstance(output, tuple) else output)[0])

    handles = []
    for block in [*stacks[0], *stacks[1]]:
        handles.append(block.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(block.register_forward_hook(after))
    try:
        with torch.no_grad():
            result = model(**inputs, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    count = len(stacks[0])

    def stack(attentions: tuple[Tensor, ...], rows: slice) -> Observed:
        return Observed(seen["x"][rows], seen["y"][rows], [alpha[0] for alpha in attentions])

    return ObservedPair(
        stack(result.encoder_attentions, slice(count)),
        stack(result.decoder_attentions, slice(count, None)),
        [alpha[0] for alpha in result.cross_attentions],
        result.encoder_last_hidden_state[0],
    )


# Comparing --------------------------------------------------------------------------------------


def references(
    model: torch.nn.Module, ids: list[int] | dict[str, object], rule: str = "ig"
) -> list[Reference]:
    """What every layer of `model` should give for `ids`; its parts are the model's own vectors.

    The sum of parts and bias at the end of a layer is compared with the block's real output here,
    so that a reference which misreads the model cannot agree with anything.
    """
    from normlens.models import adapt

    adapter = adapt(model)
    blocks = list(adapter.blocks())
    seen = observe(adapter.model, blocks, ids)
    found = []
    ran = zip(blocks, seen.x, seen.alpha, seen.output, seen.routed, strict=True)
    for block, x, alpha, y, routed in ran:
        layer = adapter.layer(block)
        expected = reference(layer, x, alpha, rule, routed=routed)
        total = list(expected.parts.values())[-1].total
        # Many models compute norms and softmax in float32 even when they run in float64.
        assert torch.allclose(total, y.double(), rtol=1e-4, atol=1e-5 * float(y.abs().max()))
        found.append(expected)
    return found


def pair_references(
    model: torch.nn.Module, inputs: dict[str, Tensor], rule: str = "ig"
) -> tuple[list[Reference], list[Reference]]:
    """What every layer of an encoder–decoder should give: the encoder's, then the decoder's.

    The sum of parts and bias at the end of a layer is compared with the block's real output.
    """
    from normlens.models import adapt

    adapter = adapt(model)
    stacks = list(adapter.encoder_blocks()), list(adapter.decoder_blocks())
    seen = observe_pair(adapter.model, stacks, inputs)
    others = [None] * len(stacks[0]), [(seen.memory, alpha) for alpha in seen.cross]
    both: tuple[list[Reference], list[Reference]] = [], []
    for place, stack in enumerate((seen.encoder, seen.decoder)):
        rows = zip(stacks[place], stack.x, stack.alpha, others[place], stack.output, strict=True)
        for block, x, alpha, other, y in rows:
            expected = reference(adapter.layer(block), x, alpha, rule, other)
            total = list(expected.parts.values())[-1].total
            assert torch.allclose(total, y.double(), rtol=1e-4, atol=1e-5 * float(y.abs().max()))
            both[place].append(expected)
    return both


def largest_error(found: Tensor | np.ndarray, expected: Tensor | np.ndarray) -> float:
    """The worst difference, relative to the largest entry that is expected; NaN counts as ∞."""
    found, expected = (torch.as_tensor(np.asarray(v)).double() for v in (found, expected))
    assert found.shape == expected.shape
    error = (found - expected).abs().max() / expected.abs().max()
    return float(error) if torch.isfinite(error) else float("inf")


def assert_maps_match(maps: object, expected: list[Reference], tolerance: float) -> None:
    """Every scope, layer, map and mixing ratio of `maps` equals the reference."""
    assert maps.layers == list(range(len(expected)))
    assert set(maps.scopes) == set(expected[0].maps)
    for position, layer in enumerate(expected):
        for scope in maps.scopes:
            where = f"layer {position}, {scope}"
            error = largest_error(maps[scope][position], layer.maps[scope].cpu())
            assert error <= tolerance, f"map of {where}: {error:.1e}"
            ratio = torch.from_numpy(maps.mixing_ratio(scope)[position]).double()
            error = float((ratio - layer.mixing[scope].cpu()).abs().max())
            assert error <= tolerance, f"mixing ratio of {where}: {error:.1e}"


def assert_same_maps(found: Maps, expected: Maps, tolerance: float = 1e-6) -> None:
    """The same labels, and the same numbers to a tolerance, in both stacks if there are two."""
    assert found.scopes == expected.scopes
    assert found.layers == expected.layers
    assert (found.tokens, found.source_tokens) == (expected.tokens, expected.source_tokens)
    assert found.grid == expected.grid
    assert (found.encoder is None) == (expected.encoder is None)
    np.testing.assert_array_equal(found.allowed, expected.allowed)
    np.testing.assert_array_equal(found.is_same_token, expected.is_same_token)
    for scope in expected.scopes:
        assert largest_error(found[scope], expected[scope]) <= tolerance, scope
        difference = found.mixing_ratio(scope) - expected.mixing_ratio(scope)
        assert np.abs(difference).max() <= tolerance, scope
    if found.encoder is not None and expected.encoder is not None:
        assert_same_maps(found.encoder, expected.encoder, tolerance)


def padded(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    """Rows of ids as a tensor with padding on one side, and its mask."""
    width = max(map(len, rows))
    ids, mask = [], []
    for row in rows:
        fill = [1] * (width - len(row))
        flags = [0] * len(fill)
        ids.append(fill + row if side == "left" else row + fill)
        mask.append(flags + [1] * len(row) if side == "left" else [1] * len(row) + flags)
    return torch.tensor(ids), torch.tensor(mask)

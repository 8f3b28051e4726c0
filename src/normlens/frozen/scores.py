"""A score's way back through a frozen layer: what each component adds, and what flows where.

A score s is linear in the vectors behind the layer, with ``g_i = ∂s/∂y_i``. One walk from the last
step to the first gives the gradient at the layer's input, and on the way

    Σ_j g_j · x_j + Σ_components unowned = Σ_i g_i · y_i                     (completeness)

The flow map ``L_ij = g_i · F_i(x_j)`` says how much of s goes from source j to target i: its column
sums are ``g_j · x_j``, its row sums and biases ``g_i · y_i``.

A layer that reads another sequence e (CROSS) hands a gradient to it, too, and has a second flow map
``g_i · F_i(e_k)``; ``Σ_k g_k · e_k`` then stands on the left as well.

Rows of the flow maps are split by component. Every way of a vector through the layer belongs to the
first block that it passes, or to RES if it passes none, so that nothing is counted twice:

    Σ_j L_ij = Σ_h ATTN^h_i + CROSS_i + FF_i + RES_i
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.norm import FrozenBranch, FrozenNorm, FrozenProjection, FrozenResidual
from normlens.frozen.norm_maps import decompose_layer
from normlens.frozen.step import FrozenBlock, Scored, State, inner
from normlens.layers import Layer, Routing
from normlens.options import IG, SHAPLEY, Settings
from normlens.plan.memory import relative_error


@dataclass(frozen=True)
class LayerScores:
    """What one layer does to scores; `…` are scores side by side."""

    through: Tensor  # ∂s/∂x_j (…, b, j, d) by way of the attention
    beside: Tensor  # ∂s/∂x_j (…, b, j, d) by every other way, on which a token stays by itself
    passed: Mapping[int, Tensor]  # step → (…, b, i), what its output owes to its input
    unowned: Mapping[int, Tensor]  # step → (…, b, i), what its output owes to biases
    ways: Mapping[int, Tensor]  # block → (…, b, i), ways of the layer's input that it is first on
    residual: Tensor | None  # (…, b, i), ways that pass no block; None: there are none
    heads: Mapping[int, Tensor]  # attention step → (…, b, h, i), `ways` by head
    at_heads: Mapping[int, Tensor]  # the same → ∂s/∂(what a head reads) (…, b, h, i, d_head)
    gradients: Mapping[int, Tensor]  # step → ∂s/∂(its output), of those asked for
    others: Mapping[str, Tensor]  # other sequence → ∂s/∂e_k (…, b, k, d)

    @property
    def arriving(self) -> Tensor:
        """∂s/∂x_j (…, b, j, d)."""
        return self.through + self.beside


def layer_scores(frozen: FrozenLayer, g: Tensor, keep: Collection[int] = ()) -> LayerScores:
    """Carry g (…, b, i, d) behind a layer to its input; `keep` the gradient behind these steps."""
    scores = _carry(frozen, g, len(frozen.steps) - 1, keep)
    return replace(scores, residual=inner(g, frozen.beside_blocks[len(frozen.steps)]))


def flow(frozen: FrozenLayer, scores: LayerScores) -> Tensor:
    """The flow map (…, b, i, j) of all heads, and on its diagonal what passes beside them."""
    place, attention = own_attention(frozen)
    whole = attention.flow(scores.at_heads[place], _unowned_before(frozen, place))
    whole.diagonal(dim1=-2, dim2=-1).add_((scores.beside * frozen.x).sum(-1))
    return whole


def flow_by_head(frozen: FrozenLayer, scores: LayerScores) -> Tensor:
    """What flows through each head, (…, b, h, i, j)."""
    place, attention = own_attention(frozen)
    return attention.head_flow(scores.at_heads[place], _unowned_before(frozen, place))


def scores_behind(frozen: FrozenLayer, g: Tensor, step: int) -> LayerScores:
    """The way back of what passes the end of `step` only, g (…, b, i, d) the gradient there."""
    return _carry(frozen, g, step, ())


def cross_flow(frozen: FrozenLayer, scores: LayerScores) -> Tensor | None:
    """The flow map (…, b, i, k) from the other sequence that the layer reads; None: it has none."""
    flows = [
        attention.flow(scores.at_heads[place])
        for place, attention in cross_attentions(frozen)
        if place in scores.at_heads
    ]
    return sum(flows[1:], flows[0]) if flows else None


def cross_flow_by_head(frozen: FrozenLayer, scores: LayerScores) -> Tensor | None:
    """What flows through each head that reads the other sequence, (…, b, h, i, k)."""
    crossing = cross_attentions(frozen)
    if not crossing:
        return None
    ((place, attention),) = crossing
    return attention.head_flow(scores.at_heads[place])


def _carry(frozen: FrozenLayer, g: Tensor, last: int, keep: Collection[int]) -> LayerScores:
    """Carry g from behind step `last` to the layer's input."""
    passed: dict[int, Tensor] = {}
    unowned: dict[int, Tensor] = {}
    ways: dict[int, Tensor] = {}
    heads: dict[int, Tensor] = {}
    at_heads: dict[int, Tensor] = {}
    kept: dict[int, Tensor] = {}
    residuals = _residual_of_branch(frozen)
    attention, own = own_attention(frozen)
    beside = State(g)
    through: State[Tensor] | None = None  # once the attention is passed
    for index in reversed(range(last + 1)):
        step = frozen.steps[index]
        if index in keep:
            kept[index] = beside.stream
        scored = step.backward(beside, step.score)
        shares = [scored.unowned]
        if through is not None:
            shares.append(step.backward(through, step.score).unowned)
        name = residuals.get(index, index)
        for share in shares:
            if share is not None:
                unowned[name] = unowned[name] + share if name in unowned else share
        if scored.heads is not None and scored.at_heads is not None:
            heads[index], at_heads[index] = scored.heads, scored.at_heads
        if scored.passed is not None:
            passed[index] = scored.passed
            ways[index] = _first_on(frozen, index, scored)
        if index == attention:
            if (before := _unowned_before(frozen, index)) is not None:
                heads[index] = own.owed_by_head(at_heads[index], before)
                ways[index] = heads[index].sum(-2)
            through = State(beside.stream)
            beside.stream = torch.zeros_like(beside.stream)
    assert through is not None
    return LayerScores(
        through.arrived,
        beside.arrived,
        passed,
        unowned,
        ways,
        None,
        heads,
        at_heads,
        kept,
        beside.others,
    )


def _first_on(frozen: FrozenLayer, index: int, scored: Scored) -> Tensor:
    """What the layer's input owns of a block's output by ways that pass no block before it."""
    assert scored.passed is not None
    if scored.heads is not None:
        return scored.passed
    entering = inner(scored.arriving, frozen.beside_blocks[index])
    return torch.zeros_like(scored.passed) if entering is None else entering


def own_attention(frozen: FrozenLayer) -> tuple[int, FrozenAttention]:
    """The layer's attention over its own tokens, and its place among the steps."""
    places = [place for place in _attentions(frozen) if place[1].attention.source is None]
    if len(places) != 1:
        raise InputError(
            "scores are carried back through layers with one attention over their own tokens"
        )
    if any(index < places[0][0] for index, _ in cross_attentions(frozen)):
        raise InputError(
            "scores are not carried back through layers that read another sequence before their "
            "own tokens"
        )
    return places[0]


def cross_attentions(frozen: FrozenLayer) -> list[tuple[int, FrozenAttention]]:
    """The attentions that read another sequence, each with its place among the steps."""
    return [place for place in _attentions(frozen) if place[1].attention.source is not None]


def _attentions(frozen: FrozenLayer) -> list[tuple[int, FrozenAttention]]:
    steps = enumerate(frozen.steps)
    return [(index, step) for index, step in steps if isinstance(step, FrozenAttention)]


def _unowned_before(frozen: FrozenLayer, attention: int) -> Tensor | None:
    """What no token owns of the attention's input: β (d,) of a norm in front of it, mostly.

    Behind several steps each token has its own, (b, j, d).
    """
    unowned: Tensor | None = None
    for step in frozen.steps[:attention]:
        if not isinstance(step, (FrozenNorm, FrozenProjection)):
            continue
        if unowned is not None:
            unowned = step.linear(unowned)
        if step.unowned is not None:
            unowned = step.unowned if unowned is None else unowned + step.unowned
    return unowned


def _residual_of_branch(frozen: FrozenLayer) -> dict[int, int]:
    """The residual of each branch, by which its biases are named."""
    residuals: dict[int, int] = {}
    open_branches: list[int] = []
    for index, step in enumerate(frozen.steps):
        if isinstance(step, FrozenBranch):
            open_branches.append(index)
        elif isinstance(step, FrozenResidual):
            residuals[open_branches.pop()] = index
    return residuals


# Whether all faces of a frozen layer say the same: its vectors, parts, operators and scores.
#
# Every analysis reads one of them, and a term that one of them lacks shows in that analysis alone.


#: Tokens of a text whose parts are taken: they suffice for every term, and cost next to nothing.
TOKENS = 4
#: Scores that are read at each of these tokens, in directions of no special kind.
SCORES = 2

Errors = Iterator[tuple[str, float]]


def vectors_of(
    layer: Layer,
    x: Tensor,
    alphas: Sequence[Tensor],
    lengths: Sequence[int],
    rule: str,
    sources: Mapping[str, Tensor],
) -> tuple[FrozenLayer, dict[int, Tensor]]:
    """A layer frozen for its operators, and the vectors (b, i, d) behind each of its steps."""
    slopes = IG if rule == SHAPLEY else rule
    y: dict[int, Tensor] = {}
    observe = y.__setitem__
    frozen = freeze(layer, x, alphas, lengths, slopes, sources, parts=False, observe=observe)
    return frozen, y


def face_errors(
    layer: Layer, x: Tensor, alphas: Sequence[Tensor], rule: str, sources: Mapping[str, Tensor]
) -> Errors:
    """How far each face misses the layer's own vectors, for the first tokens of one text.

    The weights of the sources that are left out go to the others: whatever the weights, all faces
    agree.
    """
    x, sources = x[:1, :TOKENS], {name: e[:1, :TOKENS] for name, e in sources.items()}
    alphas = [alpha[:1, :, :TOKENS, :TOKENS] for alpha in alphas]
    alphas = [a / a.sum(-1, keepdim=True).clamp_min(1e-6) for a in alphas]
    if layer.experts is not None and (routing := layer.experts.routing) is not None:
        shared = None if routing.shared is None else routing.shared[:1, :TOKENS]
        layer = layer.routed(
            Routing(routing.experts[:1, :TOKENS], routing.weights[:1, :TOKENS], shared)
        )
    lengths = [x.shape[1]]
    frozen, y = vectors_of(layer, x, alphas, lengths, rule, sources)
    sampled = rule == SHAPLEY and not layer.by_source and layer.experts is None
    settings = Settings(rule if sampled else IG if rule == SHAPLEY else rule, samples=1)
    maps = decompose_layer(layer, x, alphas, lengths, layer.scopes, settings, y, sources=sources)
    for scope, error in maps.completeness.items():
        yield f"the parts of {scope}", float(error)
    if maps.kernel_error is not None:
        yield "the parts behind the feed-forward block", float(maps.kernel_error)
    last = y[max(y)]
    total = frozen.forward(x, sources) + frozen.unowned()
    yield "vectors and biases", float(relative_error(total, last, lengths))
    try:
        own_attention(frozen)
    except InputError:
        return  # no score is carried through such a layer
    yield from _score_errors(frozen, last, sources)


def _score_errors(frozen: FrozenLayer, y: Tensor, sources: Mapping[str, Tensor]) -> Errors:
    """How far what is said of scores misses them, each read at one target.

    A term e that is lost at target i moves the score of a random g by about ``‖e‖``, so errors are
    relative to ``‖y_i‖``.
    """
    n, d = y.shape[1:]
    random = torch.randn(SCORES, n, 1, 1, d, generator=torch.Generator().manual_seed(0)).to(y)
    g = random * torch.eye(n).to(y).view(n, 1, n, 1)  # (score, i, b, i, d)
    scores = layer_scores(frozen, g, keep=range(len(frozen.steps)))
    size = torch.linalg.vector_norm(y[0], dim=-1).clamp_min(torch.finfo(y.dtype).tiny)

    def error(missed: Tensor) -> float:
        each = missed.flatten(2).square().sum(-1).mean(0).sqrt() / size
        return float(each.amax().nan_to_num(nan=float("inf")))

    nodes = (scores.arriving * frozen.x).sum(-1)  # (score, i, b, j)
    others = {name: (arrived * sources[name]).sum(-1) for name, arrived in scores.others.items()}
    shares = [*scores.unowned.values(), *others.values()]
    total = nodes.sum(-1) + sum(share.sum(-1) for share in shares)
    yield "contributions and biases of a score", error(total - (g * y).sum((-1, -2)))
    yield "gradients", error(frozen.adjoint(g)[0] - scores.arriving)
    whole = flow(frozen, scores)
    yield "the flow of a score", error(whole.sum(-2) - nodes)
    of_heads = flow_by_head(frozen, scores).sum(-3)
    of_heads.diagonal(dim1=-2, dim2=-1).add_((scores.beside * frozen.x).sum(-1))
    yield "the flow of a score by head", error(of_heads - whole)
    if (crossing := cross_flow(frozen, scores)) is not None:
        yield (
            "the flow of a score from the other sequence",
            error(crossing.sum(-2) - sum(others.values())),
        )
        by_head = cross_flow_by_head(frozen, scores)
        assert by_head is not None
        yield (
            "the flow of a score from the other sequence by head",
            error(by_head.sum(-3) - crossing),
        )
    rows = whole.sum(-1) if crossing is None else whole.sum(-1) + crossing.sum(-1)
    ways = [scores.heads[i].sum(-2) if i in scores.heads else w for i, w in scores.ways.items()]
    if scores.residual is not None:
        ways.append(scores.residual)
    yield "the components of a score", error(torch.stack(ways).sum(0) - rows)
    for index, passed in scores.passed.items():
        name, step = frozen.layer.step_names[index], frozen.steps[index]
        assert isinstance(step, FrozenBlock)
        own = (scores.gradients[index] * step.output).sum(-1)
        yield (
            f"what {name} adds to a score",
            error(passed + scores.unowned.get(index, torch.zeros_like(passed)) - own),
        )

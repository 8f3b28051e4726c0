"""A score's backward pass through a frozen layer: what each component adds, and what flows where.

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
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.attention import Alpha, FrozenAttention, alpha_of
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.norm_maps import layer_maps
from normlens.frozen.parts import State, inner, plus, relative_error
from normlens.layers import Branch, Layer, Residual, Routing
from normlens.options import IG, SHAPLEY, AnalysisOptions


@dataclass
class LayerScores:
    """What one layer does to scores; `…` are scores side by side."""

    through: Tensor  # ∂s/∂x_j (…, b, j, d) by way of the attention
    beside: Tensor  # ∂s/∂x_j (…, b, j, d) by every other way, on which a token stays by itself
    others: Mapping[str, Tensor]  # other sequence → ∂s/∂e_k (…, b, k, d)
    residual: Tensor | None = None  # (…, b, i), ways that pass no block; None: there are none
    passed: dict[int, Tensor] = field(default_factory=dict)  # step → (…, b, i), of its input
    bias_part: dict[int, Tensor] = field(default_factory=dict)  # step → (…, b, i), of biases
    #: block → (…, b, i), ways of the layer's input that it is the first block on
    ways: dict[int, Tensor] = field(default_factory=dict)
    heads: dict[int, Tensor] = field(default_factory=dict)  # attention → (…, b, h, i), `ways`
    at_heads: dict[int, Tensor] = field(default_factory=dict)  # → (…, b, h, i, d_head), ∂s/∂read
    gradients: dict[int, Tensor] = field(default_factory=dict)  # of the outputs asked for

    @property
    def arriving(self) -> Tensor:
        """∂s/∂x_j (…, b, j, d)."""
        return self.through + self.beside


def layer_scores(
    frozen: FrozenLayer, g: Tensor, keep: Collection[int] = (), last: int | None = None
) -> LayerScores:
    """Carry g (…, b, i, d) behind step `last`, or the layer, to the layer's input.

    The gradients behind the steps in `keep` are kept.
    """
    (own, _), *_ = attentions(frozen)
    named = _named_biases(frozen.layer)
    beside, through = State(g), State(g)
    beside_blocks = frozen.beside_blocks()
    scores = LayerScores(g, g, beside.others)
    if last is None:
        last = len(frozen.steps) - 1
        scores.residual = inner(g, beside_blocks.pop(len(frozen.steps)))
    for index in reversed(range(last + 1)):
        step = frozen.steps[index]
        if index in keep:
            scores.gradients[index] = beside.stream
        scored = step.backward(beside)
        share = scored.bias_part
        if index < own:
            share = plus(share, step.backward(through).bias_part)
        if share is not None:
            name = named.get(index, index)
            scores.bias_part[name] = plus(share, scores.bias_part.get(name))
        if scored.heads is not None and scored.at_heads is not None:
            scores.heads[index], scores.at_heads[index] = scored.heads, scored.at_heads
            scores.ways[index] = scored.heads.sum(-2)
        elif scored.passed is not None:
            entering = inner(scored.arriving, beside_blocks.pop(index))
            scores.ways[index] = torch.zeros_like(scored.passed) if entering is None else entering
        if scored.passed is not None:
            scores.passed[index] = scored.passed
        if index == own:
            through.stream, beside.stream = beside.stream, torch.zeros_like(beside.stream)
    scores.beside = plus(beside.stream, beside.start)
    scores.through = plus(through.stream, through.start)
    return scores


def layer_flow(
    frozen: FrozenLayer, scores: LayerScores, by_head: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The flow map (…, b, i, j) of all heads, and on its diagonal what passes beside them.

    With it that (…, b, i, k) from the other sequence that the layer reads; None: it reads none. By
    head they are (…, b, h, i, j), and nothing passes beside.
    """
    (place, attention), *crossing = attentions(frozen)
    flow = FrozenAttention.head_flow if by_head else FrozenAttention.flow
    own, other = flow(attention, scores.at_heads[place]), None
    if not by_head:
        own.diagonal(dim1=-2, dim2=-1).add_((scores.beside * frozen.x).sum(-1))
    for place, attention in crossing:
        if place in scores.at_heads:
            other = plus(flow(attention, scores.at_heads[place]), other)
    return own, other


def attentions(frozen: FrozenLayer) -> list[tuple[int, FrozenAttention]]:
    """The attention over the layer's tokens, and those over another sequence, by their places."""
    steps = enumerate(frozen.steps)
    found = [(index, step) for index, step in steps if isinstance(step, FrozenAttention)]
    is_own = [step.attention.source is None for _, step in found]
    if not is_own or not is_own[0] or any(is_own[1:]):
        raise InputError(
            "scores are carried back through layers with one attention over their own tokens, and "
            "none that read another sequence before their own tokens"
        )
    return found


def _named_biases(layer: Layer) -> dict[int, int]:
    """The residual of each branch, by which its biases are named."""
    residuals: dict[int, int] = {}
    open_branches: list[int] = []
    for index, step in enumerate(layer.steps):
        if isinstance(step, Branch):
            open_branches.append(index)
        elif isinstance(step, Residual):
            residuals[open_branches.pop()] = index
    return residuals


# Whether all faces of a frozen layer say the same: its vectors, parts, operators and scores.
#
# Every analysis reads one of them, and a term that one of them lacks shows in that analysis alone.


#: What an analysis reads of a frozen layer: its parts, whole vectors, or scores carried back.
PARTS, VECTORS, SCORES = "parts", "vectors", "scores"
#: Tokens of a text whose parts are taken: they suffice for every term, and cost next to nothing.
TOKENS = 4
#: Directions, of no special kind, in which scores are read at each of these tokens.
DIRECTIONS = 2

Errors = Iterator[tuple[str, float]]


def vectors_of(
    layer: Layer,
    x: Tensor,
    alphas: Sequence[Tensor | Alpha],
    lengths: Sequence[int],
    rule: str,
    sources: Mapping[str, Tensor],
    parts: bool = False,
) -> tuple[FrozenLayer, dict[int, Tensor]]:
    """A layer frozen for its operators or `parts`, and the vectors (b, i, d) behind each step.

    Where the rule would have to be sampled and cannot be, the standard one takes its place.
    """
    if not parts or layer.by_source or layer.experts is not None:
        rule = IG if rule == SHAPLEY else rule
    y: dict[int, Tensor] = {}
    given = layer, x, alphas, lengths, rule, sources
    return freeze(*given, parts=parts, observe=y.__setitem__), y


def face_errors(
    face: str,
    layer: Layer,
    x: Tensor,
    alphas: Sequence[Tensor | Alpha],
    rule: str,
    sources: Mapping[str, Tensor],
) -> Errors:
    """How far one face misses the layer's own vectors, for the first tokens.

    The weights of the sources that are left out go to the others: whatever the weights, all faces
    agree.
    """
    x, sources = x[:1, :TOKENS], {name: e[:1, :TOKENS] for name, e in sources.items()}
    some = [alpha_of(alpha).first(TOKENS) for alpha in alphas]
    alphas = [a / a.sum(-1, keepdim=True).clamp_min(1e-6) for a in some]
    if layer.experts is not None and (routing := layer.experts.routing) is not None:
        shared = None if routing.shared is None else routing.shared[:1, :TOKENS]
        layer = layer.routed(
            Routing(routing.experts[:1, :TOKENS], routing.weights[:1, :TOKENS], shared)
        )
    lengths = [x.shape[1]]
    frozen, y = vectors_of(layer, x, alphas, lengths, rule, sources, parts=face == PARTS)
    last = y[max(y)]
    if face == PARTS:
        maps = layer_maps(frozen, layer.scopes, AnalysisOptions(samples=1), y)
        for scope, error in maps.completeness.items():
            yield f"the parts of {scope}", float(error)
        if (missed := maps.kernel_errors.get("sum")) is not None:
            yield "the parts behind the feed-forward block", float(missed)
    elif face == VECTORS:
        total = frozen.forward(x, sources) + frozen.bias_part()
        yield "vectors and biases", float(relative_error(total, last, lengths))
    else:
        yield from _score_errors(frozen, last, sources)


def _score_errors(frozen: FrozenLayer, y: Tensor, sources: Mapping[str, Tensor]) -> Errors:
    """How far what is said of scores misses them, each read at one target.

    A term e that is lost at target i moves the score of a random g by about ``‖e‖``, so errors are
    relative to ``‖y_i‖``.
    """
    n, d = y.shape[1:]
    random = torch.randn(DIRECTIONS, n, 1, 1, d, generator=torch.Generator().manual_seed(0)).to(y)
    g = random * torch.eye(n).to(y).view(n, 1, n, 1)  # (score, i, b, i, d)
    scores = layer_scores(frozen, g, keep=range(len(frozen.steps)))
    size = torch.linalg.vector_norm(y[0], dim=-1).clamp_min(torch.finfo(y.dtype).tiny)

    def error(missed: Tensor) -> float:
        each = missed.flatten(2).square().sum(-1).mean(0).sqrt() / size
        return float(each.amax().nan_to_num(nan=float("inf")))

    nodes = (scores.arriving * frozen.x).sum(-1)  # (score, i, b, j)
    others = {name: (arrived * sources[name]).sum(-1) for name, arrived in scores.others.items()}
    shares = [*scores.bias_part.values(), *others.values()]
    total = nodes.sum(-1) + sum(share.sum(-1) for share in shares)
    yield "contributions and biases of a score", error(total - (g * y).sum((-1, -2)))
    whole, crossing = layer_flow(frozen, scores)
    rows = whole.sum(-1)
    yield "the flow of a score", error(whole.sum(-2) - nodes)
    if crossing is not None:
        missed = crossing.sum(-2) - sum(others.values())
        yield "the flow of a score from the other sequence", error(missed)
        rows = rows + crossing.sum(-1)
    ways = sum(scores.ways.values(), torch.zeros_like(rows))
    yield "the components of a score", error(plus(ways, scores.residual) - rows)
    for index, passed in scores.passed.items():
        name, real = frozen.layer.step_names[index], frozen.steps[index].apply(frozen.x)
        own = (scores.gradients[index] * real).sum(-1)
        found = plus(passed, scores.bias_part.get(index))
        yield f"what {name} adds to a score", error(found - own)

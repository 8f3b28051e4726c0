"""Whether all faces of a frozen layer say the same: its vectors, parts, operators and scores.

Every analysis reads one of them, and a term that one of them lacks shows in that analysis alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from normlens.components import Layer, Routing
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.frozen import FrozenLayer, freeze
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.norm_maps import decompose_layer
from normlens.decomposition.projection import FrozenProjection
from normlens.decomposition.residual import FrozenBranch, FrozenResidual
from normlens.decomposition.scores import (
    cross_flow,
    cross_flow_by_head,
    flow,
    flow_by_head,
    layer_scores,
    own_attention,
)
from normlens.decomposition.settings import Settings
from normlens.errors import InputError
from normlens.nonlinearities import IG, SHAPLEY

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
        assert not isinstance(step, (FrozenBranch, FrozenResidual, FrozenNorm, FrozenProjection))
        own = (scores.gradients[index] * step.output).sum(-1)
        yield (
            f"what {name} adds to a score",
            error(passed + scores.unowned.get(index, torch.zeros_like(passed)) - own),
        )

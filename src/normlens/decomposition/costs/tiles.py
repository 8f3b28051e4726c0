"""The feed-forward stage by PyTorch: tiles, one matrix per target, or sampled players.

Operations for one sequence and layer, with `pairs` allowed (target, source) pairs:

    tiles      pairs · 2m(d + kH)            mix H rows, scale, multiply by W_down
    matrices   n · 2d²m + pairs · 2d(d + H)  M_i = Σ_k W_k diag(r^k_i) W_down once per target

where k counts the input projections (2 in a gated block). Matrices win for long inputs. With
experts, m counts the neurons that a target uses, and tiles form the parts themselves, because
targets share no rows:

    experts    pairs · 2d(H + (k + 1)m)
"""

from __future__ import annotations

from normlens.decomposition.costs.shape import Shape
from normlens.nonlinearities import SHAPLEY

TILES, MATRICES = "tiles", "matrices"
#: Rows of the smallest tile that makes reading W_down worth it.
FEWEST_ROWS = 16


def tile_operations(shape: Shape) -> int:
    """Operations of all tiles: kH rows of m numbers are mixed, and one is multiplied by W_down."""
    if shape.widest is not None:
        products = shape.pairs * 2 * shape.d * shape.m * (shape.projections + 1)
        return products + mix_operations(shape)
    return shape.pairs * 2 * shape.m * (shape.d + shape.projections * shape.heads)


def matrix_operations(shape: Shape) -> int:
    """Operations of the matrices: (d×m)(m×d) per target; a part mixed and (d)(d×d) per pair."""
    matrices = shape.n * 2 * shape.d * shape.d * shape.m
    return matrices + shape.pairs * 2 * shape.d * shape.d + mix_operations(shape)


def mix_operations(shape: Shape) -> int:
    """Operations of the parts ``Σ_h A_ijh U_jh``: H vectors of d numbers for each pair."""
    return shape.pairs * 2 * shape.d * shape.heads


def cheaper_method(shape: Shape) -> str:
    """`TILES` or `MATRICES`, by operations."""
    return MATRICES if matrix_operations(shape) < tile_operations(shape) else TILES


def tile_memory(shape: Shape, method: str, sources: int, targets: int) -> int:
    """Bytes of the largest intermediate tensors of one tile.

    Tiles: for each projection the rows Q (j, h, m) and the U (j, h, d) that they come from; per
    pair k hidden rows of m numbers, and the part, its copy in a norm and the bypassed part.
    Matrices: d×d per target, the scaled projection and a temporary of its size; per pair four
    vectors, among them the part before and behind the block.
    Experts: one expert's weights in the algebra's precision; per pair k of its hidden rows, the
    part before and behind the experts, and a copy of either for one of them.
    """
    rows, k = sources * targets, shape.projections
    if shape.widest is not None:
        expert = (k + 2) * shape.d * shape.widest
        matrices = targets * shape.d * shape.d if method == MATRICES else rows * k * shape.widest
        return (expert + matrices + 8 * rows * shape.d) * shape.itemsize
    if method == MATRICES:
        elements = targets * shape.d * shape.d + 2 * shape.d * shape.m + 4 * rows * shape.d
    else:
        rows_of_sources = sources * shape.heads * k * (shape.m + shape.d)
        elements = rows_of_sources + rows * (k * shape.m + 3 * shape.d)
    return elements * shape.itemsize


def player_memory(shape: Shape, scopes: int) -> int:
    """Bytes for sampling one target: its n tokens, other sources and the bias, m neurons each.

    The players and one order's running sums, for each input projection (2k); the means, and one
    order's values and contributions, each with a temporary copy (5); and a gradient for each scope
    behind the block.
    """
    players = shape.n + (shape.sources or 0) + 1
    return players * shape.m * (2 * shape.projections + 5 + scopes) * shape.itemsize


def least_memory(shape: Shape, rule: str, scopes: int = 1) -> int:
    """Bytes of the smallest tile that still finishes in reasonable time.

    `scopes` counts those from the feed-forward block on.
    """
    if rule == SHAPLEY:
        return player_memory(shape, scopes)
    method, sources = cheaper_method(shape), shape.source_count
    # Matrices would be formed again for every block of sources, so there is only one block.
    if method == TILES:
        sources = min(sources, FEWEST_ROWS)
    return tile_memory(shape, method, sources, 1)

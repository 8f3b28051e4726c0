"""How to cut the feed-forward stage: which method, and tiles that fit the memory limit.

Operations for one sequence and layer, with `pairs` allowed (target, source) pairs:

    tiles      pairs · 2m(d + kH)            mix H rows, scale, multiply by W_down
    matrices   n · 2d²m + pairs · 2d(d + H)  M_i = Σ_k W_k diag(r^k_i) W_down once per target

where k counts the input projections (2 in a gated block). Matrices win for long inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Rows of one tile: enough for the matrix product to run at full speed, small enough that the
# mixed rows are still in the cache when it reads them.
SOURCES = 128
TARGETS = 16
MATRIX_TARGETS = 4


@dataclass(frozen=True)
class Shape:
    """The sizes that decide the cost of one feed-forward stage."""

    n: int  # targets
    pairs: int
    d: int
    m: int
    heads: int
    projections: int
    itemsize: int = 4
    sources: int | None = None  # None: as many as targets

    @property
    def tile_operations(self) -> int:
        return self.pairs * 2 * self.m * (self.d + self.projections * self.heads)

    @property
    def matrix_operations(self) -> int:
        per_target = 2 * self.d * self.d * self.m
        return self.n * per_target + self.pairs * 2 * self.d * (self.d + self.heads)


@dataclass(frozen=True)
class Plan:
    """Sizes of one tile and the method that fills it."""

    method: str  # "tiles" or "matrices"
    sources: int
    targets: int

    def memory(self, shape: Shape) -> int:
        """Bytes of the largest intermediate tensors of one tile."""
        rows = self.sources * self.targets
        k = shape.projections
        if self.method == "matrices":
            matrices = self.targets * shape.d * shape.d + 2 * shape.d * shape.m
            elements = matrices + 4 * rows * shape.d
        else:
            rows_of_sources = self.sources * shape.heads * k * (shape.m + shape.d)
            elements = rows_of_sources + rows * (k * shape.m + 3 * shape.d)
        return elements * shape.itemsize

    def halved(self) -> Plan | None:
        """The next smaller plan, or None if this is the smallest."""
        if self.targets > 1:
            return replace(self, targets=self.targets // 2)
        if self.sources > 1:
            return replace(self, sources=self.sources // 2)
        return None


def player_memory(shape: Shape, scopes: int) -> int:
    """Bytes that the sampling of one target takes.

    The players, their means, one order's sums, values and contributions, and a gradient for each
    scope behind the block.
    """
    return (shape.n + 1) * shape.m * (2 * shape.projections + 5 + scopes) * shape.itemsize


def choose_plan(shape: Shape, limit: int | None) -> Plan:
    """The cheaper method, in the largest standard tile that fits `limit` bytes.

    A tile never covers all pairs of a sequence, so that no tensor of n×n×m elements exists
    however short the sequence is.
    """
    half = max(1, shape.n // 2)
    sources = shape.n if shape.sources is None else shape.sources
    if shape.matrix_operations < shape.tile_operations:
        plan = Plan("matrices", sources, min(MATRIX_TARGETS, half))
    else:
        plan = Plan("tiles", min(SOURCES, sources), min(TARGETS, half))
    while limit is not None and plan.memory(shape) > limit:
        smaller = plan.halved()
        if smaller is None:
            break
        plan = smaller
    return plan

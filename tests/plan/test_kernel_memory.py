"""What the kernels keep in memory, and the pieces that their work is cut into."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_case import in_one_case

from normlens.gpu.sizes import PRECISIONS, TargetTiling
from normlens.layers import Reach
from normlens.plan.costs import Shape
from normlens.plan.kernels import CHUNK_BYTES, KernelStage, TargetPieces, chunk_limit

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def bert_base(n: int, precision: str = "float32", batch: int = 1) -> KernelStage:
    shape = Shape(n, Reach().pairs(n), 768, 3072, 12, 1)
    return KernelStage(shape, PRECISIONS[precision], batch, 64, slots=7, bypassed=True)


def test_a_chunk_is_never_larger_than_a_launch_can_use():
    assert chunk_limit(None) == chunk_limit(1 << 40) == CHUNK_BYTES
    assert chunk_limit(1000) == 1000


@given(n=st.integers(1, 9000), size=st.integers(1, 1 << 16), limit=st.integers(1, 1 << 30))
def test_pieces_fit_unless_they_are_the_smallest(n, size, limit):
    tiling = TargetTiling()
    pieces = TargetPieces(tiling, n, size)
    sources = pieces.sources(limit)
    used = pieces.tiles(limit, sources) * tiling.tile * sources * size
    assert 1 <= sources <= n
    assert used <= max(limit, pieces.least_bytes)


@in_one_case("method", ["source_memory", "matrix_memory"])
@in_one_case("precision", PRECISIONS)
def test_a_limit_bounds_what_is_beside_sums_and_operands(method, precision):
    roomy = bert_base(2048, precision)
    tight = replace(roomy, memory_limit=16 << 20)
    assert getattr(tight, method) < getattr(roomy, method)

"""Which method through the feed-forward stage is taken, and why."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from one_case import in_one_case

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from normlens.errors import MemoryLimitError
from normlens.frozen import tiles
from normlens.frozen.stage import tail_of
from normlens.gpu.feed_forward import BySource, cheapest_method
from normlens.gpu.sizes import PRECISIONS
from normlens.gpu.stage import Method, Stage
from normlens.layers import Reach
from normlens.plan import kernels
from normlens.plan.costs import Shape
from normlens.plan.kernels import KernelStage, target_blocks

DOCS = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the GPU runs the kernels itself here"
)


def bert_base(n: int, precision: str = "bfloat16") -> KernelStage:
    return KernelStage(Shape(n, Reach().pairs(n), 768, 3072, 12, 1), PRECISIONS[precision])


@in_one_case("n", [1, 5, 64, 100, 128, 200, 512])
def test_blocks_of_targets_are_those_of_the_kernel(n):
    for targets in (64, 128):
        starts = range(0, n, targets)
        assert target_blocks(n, n * n, targets) == n * len(starts)
        causal = sum(j < start + targets for j in range(n) for start in starts)
        assert target_blocks(n, Reach(None, 0).pairs(n), targets) == causal


def table(title: str) -> list[list[str]]:
    """The rows of the table behind `title` in the document."""
    behind = DOCS.read_text().split(title, 1)[1]
    rows = re.findall(r"^\|.*\|$", behind.split("\n\n", 2)[1], re.M)[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_document_shows_what_the_model_expects():
    """Ratios in brackets, which somebody who changes a constant has to measure anew."""
    for precision, *cells in table("Long inputs, BERT-base"):
        for n, cell in zip((512, 1024, 2048, 4096), cells, strict=False):
            costs = bert_base(n, precision)
            expected = float(re.search(r"\((.*)\)", cell)[1])
            assert costs.by_source / costs.matrices == pytest.approx(expected, abs=0.01)


@pytest.fixture
def stage_of(monkeypatch):
    """The stage of a problem, caught before it runs, with head products that are worth forming."""

    class Caught(Exception):
        pass

    def make(given) -> Stage:
        def catch(job, lengths, *_):
            tail = tail_of(job)
            assert tail is not None
            caught.append(Stage(job, tail, lengths, PRECISIONS["float32"]))
            raise Caught

        caught: list[Stage] = []
        monkeypatch.setattr(tiles, "head_products_pay", lambda *sizes: True)
        with monkeypatch.context() as patched:
            patched.setattr("normlens.frozen.norm_maps.feed_forward_norms", catch)
            with pytest.raises(Caught):
                given.solve()
        return caught[0]

    return make


@pytest.fixture
def no_overhead(monkeypatch):
    """Operations alone, as if nothing had to be launched or moved."""
    for name in ("STORED_BYTE", "LAUNCHES"):
        monkeypatch.setattr(kernels, name, 0.0)


@interpreted
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_few_tokens_go_source_by_source(activation, problem, stage_of, no_overhead):
    given = problem("pre", n=4, activation=activation, dtype=torch.float32)
    assert isinstance(cheapest_method(stage_of(given)), BySource)


class Greedy(Method):
    """A method that runs out of memory above some limit."""

    def __init__(self, enough: int):
        self.enough, self.tried = enough, []

    least_bytes = 1 << 20

    def fill(self, limit: int) -> None:
        self.tried.append(limit)
        if limit > self.enough:
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_does_not_fit_is_done_in_smaller_pieces():
    method = Greedy(enough=5 << 20)
    method.run(32 << 20)
    assert method.tried == [32 << 20, 16 << 20, 8 << 20, 4 << 20]
    with pytest.raises(MemoryLimitError, match="shorter text"):
        Greedy(enough=0).run(4 << 20)

"""Sources of another sequence in blocks: the same parts, norms and sums as in one piece."""

from __future__ import annotations

import torch
from one_case import in_one_case

from normlens.frozen.activations import Linearised
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.parts import Factors
from normlens.frozen.stage import Squares
from normlens.frozen.tiles import Job, feed_forward_norms
from normlens.layers import FeedForward as Block
from normlens.layers import Linear, Reach

B, H, E, D, M = 2, 3, 4, 10, 14


def factors(n: int, sources: int, lengths: tuple[int, ...]) -> Factors:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = draw(B, sources, n, H).abs()
    for index, length in enumerate(lengths):
        weights[index, length:] = 0
    values, basis = draw(B, sources, H, E), draw(H, E, D)
    scale = draw(B, n).abs()
    return Factors(weights, scale, values, basis, Reach(), "encoder", lengths)


@in_one_case(("n", "lengths"), [(4, (9, 2)), (9, (4, 3)), (5, (5, 1)), (1, (3, 2))])
def test_blocks_have_the_norms_and_sums_of_the_whole(n, lengths):
    given = factors(n, max(lengths), lengths)
    targets = (n, max(1, n - 2))
    squares = Squares.of(given, targets)
    cut = squares.factors(given)
    assert cut.weights.shape[1:3] == (n, n)
    assert all(length <= n for length in squares.block_lengths)
    torch.testing.assert_close(squares.norms(cut.norms()), given.norms())
    whole = cut.sum_of_sources().unflatten(0, (B, -1)).sum(1)
    torch.testing.assert_close(whole, given.sum_of_sources())
    parts = torch.einsum("bjih,bjhd,bi->bijd", given.weights, given.values, given.scale)
    torch.testing.assert_close(given.sum_of_sources(), parts.sum(2))
    torch.testing.assert_close(given.norms(), parts.norm(dim=-1))


@in_one_case(("n", "lengths"), [(4, (9, 2)), (9, (4, 3))])
def test_a_job_in_blocks_has_the_result_of_the_whole(n, lengths):
    given = factors(n, max(lengths), lengths)
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    block = Block(Linear(draw(D, M)), Linear(draw(M, D)), "gelu")
    neurons = Linearised((draw(B, n, M),), draw(B, n, M), None)
    job = Job(FrozenFeedForward(block, neurons), given, "FF-N", {})
    targets = [n, n]
    squares = Squares.of(given, targets)
    cut = squares.job(job)
    found = squares.joined(feed_forward_norms(cut, squares.block_lengths))
    expected = feed_forward_norms(job, targets)
    torch.testing.assert_close(found.norms["FF-N"], expected.norms["FF-N"])
    torch.testing.assert_close(found.mixed, expected.mixed)
    for each in (job, cut):
        mixed = each.block.linear(each.factors.sum_of_sources())
        whole = mixed.unflatten(0, (B, -1)).sum(1)
        torch.testing.assert_close(whole, expected.mixed)
    torch.testing.assert_close(cut.block.output, squares.repeated(job.block.output))

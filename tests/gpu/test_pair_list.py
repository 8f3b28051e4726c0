"""The list of allowed pairs, against the mask that allows them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from normlens.gpu.feed_forward import PairList
from normlens.layers import Reach

N, LENGTHS = 7, (7, 2, 5)
REACHES = [Reach(), Reach(ahead=0), Reach(back=2, ahead=0), Reach(back=0), Reach(1, 3)]


def of_mask(reach: Reach) -> list[tuple[int, int]]:
    """(token, target) of every allowed pair, source by source."""
    return [
        (place * N + j, i)
        for place, length in enumerate(LENGTHS)
        for j in range(length)
        for i in range(length)
        if reach.mask(length)[i, j]
    ]


@pytest.fixture(params=REACHES, ids=str)
def reach(request) -> Reach:
    return request.param


def test_every_allowed_pair_is_listed_once(reach):
    pairs = PairList.of(reach, LENGTHS, N, torch.device("cpu"))
    sources, tokens, lows, begins = pairs.on_device
    place = torch.arange(len(pairs))
    targets = place - begins[sources] + lows[sources]
    assert list(zip(tokens[sources].tolist(), targets.tolist(), strict=True)) == of_mask(reach)
    assert len(pairs) == sum(reach.pairs(length) for length in LENGTHS)


def test_ranges_of_tokens_and_of_pairs_give_their_sources(reach):
    pairs = PairList.of(reach, LENGTHS, N, torch.device("cpu"))
    listed = np.array(of_mask(reach))
    numbers = {token: number for number, token in enumerate(pairs.tokens.tolist())}
    for first in range(len(listed)):
        for last in range(first + 1, len(listed) + 1):
            few = [numbers[token] for token in listed[first:last, 0].tolist()]
            assert pairs.sources_of(first, last) == (few[0], few[-1] + 1)
    for first in range(0, N * len(LENGTHS)):
        for last in range(first, N * len(LENGTHS) + 1):
            start, stop = pairs.sources(first, last)
            inside = [token for token in pairs.tokens.tolist() if first <= token < last]
            assert pairs.tokens[start:stop].tolist() == inside

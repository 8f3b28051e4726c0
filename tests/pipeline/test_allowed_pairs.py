"""Masks of the pairs that attention allows."""

from __future__ import annotations

import numpy as np
from one_case import in_one_case

from normlens.layers import Reach
from normlens.pipeline.collector import allowed_pairs

CAUSAL, NEAR, ALL = Reach(ahead=0), Reach(back=1, ahead=1), Reach()


@in_one_case("others", [0, 2])
@in_one_case("reaches", [[CAUSAL] * 3, [CAUSAL, NEAR, ALL], [ALL]])
def test_masks_are_those_of_the_reaches(reaches: list[Reach], others: int) -> None:
    found = allowed_pairs([(reach, True) for reach in reaches], 5, others)
    assert found.shape == (len(reaches), 5, others + 5)
    for mask, reach in zip(found, reaches, strict=True):
        assert mask[:, :others].all()
        assert np.array_equal(mask[:, others:], reach.mask(5).numpy())


def test_like_layers_share_their_mask() -> None:
    found = allowed_pairs([(CAUSAL, False)] * 4, 5)
    assert found.strides[0] == 0
    mixed = allowed_pairs([(CAUSAL, False), (ALL, False)], 5)
    assert mixed.strides[0] > 0

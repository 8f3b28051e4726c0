"""Some of many layers, and their numbers in words."""

from __future__ import annotations

from itertools import pairwise

from one_case import in_one_case

from normlens.scopes import layers_in_words, thinned


@in_one_case("most", [2, 6, 12])
@in_one_case("count", [2, 6, 12, 13, 96])
def test_thinning_keeps_first_and_last(count: int, most: int) -> None:
    kept = thinned(range(5, 5 + count), most)
    assert (kept[0], kept[-1]) == (5, 4 + count)
    assert len(kept) == min(count, most)
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps) - min(gaps) <= 1  # evenly spread, and none twice
    assert min(gaps) >= 1


def test_one_layer_is_the_first() -> None:
    assert thinned([3, 4, 7], 1) == [3]
    assert thinned([3], 6) == [3]


@in_one_case(
    ("layers", "words"),
    [
        ([4], "layer 4"),
        (range(3), "layers 0–2"),
        ([0, 2], "layers 0 and 2"),
        ([3, 4, 5, 6, 7, 9, 10, 11], "layers 3–7 and 9–11"),
        ([6, 1, 3], "layers 1, 3 and 6"),
    ],
)
def test_layers_in_words(layers: list[int], words: str) -> None:
    assert layers_in_words(layers) == words

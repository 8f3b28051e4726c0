"""Entities in every tagging scheme of the CoNLL shared tasks."""

from __future__ import annotations

import pytest

from normlens.corpus import Entity
from normlens.corpus.data import formats

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def tags_of(lengths: list[tuple[int, str, int]], scheme: str) -> tuple[list[str], list[Entity]]:
    """Tags in a scheme for (gap, label, length) triples, and the entities they stand for."""
    tags: list[str] = []
    entities: list[Entity] = []
    for gap, label, length in lengths:
        tags += ["O"] * gap
        touches = bool(entities) and entities[-1].stop == len(tags)
        again = touches and entities[-1].label == label
        if scheme == "IOE1" and again:
            tags[-1] = f"E-{label}"
        entities.append(Entity(len(tags), len(tags) + length, label))
        letters = ["I"] * length
        if scheme == "IOB2" or (scheme == "IOB1" and again):
            letters[0] = "B"
        if scheme == "IOE2":
            letters[-1] = "E"
        if scheme in ("IOBES", "BILOU"):
            letters[0], letters[-1] = "B", "E" if scheme == "IOBES" else "L"
            if length == 1:
                letters = ["S" if scheme == "IOBES" else "U"]
        tags += [f"{letter}-{label}" for letter in letters]
    return tags, entities


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU"])
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["PER", "B-X"]), st.integers(1, 3))
    )
)
def test_every_tagging_scheme(scheme: str, lengths: list[tuple[int, str, int]]) -> None:
    tags, entities = tags_of(lengths, scheme)
    assert list(formats.entities(tags)) == entities

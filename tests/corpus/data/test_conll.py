"""CoNLL column files: sentences, entities in every tagging scheme, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normlens.corpus import Entity, Record, open_data
from normlens.corpus.data import formats

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode())
    return path


IOB1 = """-DOCSTART- -X- O O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER

-DOCSTART- -X- O O

Seoul\xa0City NNP I-NP I-LOC
Korea NNP I-NP B-LOC
Korea NNP I-NP I-LOC
Cup NNP I-NP I-MISC
"""


@pytest.mark.parametrize("name", ["a.conll", "eng.testa", "eng.train", "valid.txt", "noend"])
def test_conll_columns(name: str, tmp_path: Path) -> None:
    assert list(open_data(write(tmp_path, name, IOB1))) == [
        Record(
            f"{name}:0",
            words=("U.N.", "official", "Ekeus"),
            entities=(Entity(0, 1, "ORG"), Entity(2, 3, "PER")),
        ),
        Record(
            f"{name}:1",
            words=("Seoul\xa0City", "Korea", "Korea", "Cup"),
            entities=(Entity(0, 1, "LOC"), Entity(1, 3, "LOC"), Entity(3, 4, "MISC")),
        ),
    ]


def test_prose_is_not_taken_for_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "Blood group O\nBlood group B-negative\nno more\n")
    assert [record.words for record in open_data(path)] == [None] * 3


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


def test_conll2003(real_data: Any) -> None:
    records = list(open_data(f"conll2003:{real_data('conll2003/eng.testa')}"))
    assert len(records) == 3250
    assert not any("-DOCSTART-" in (record.words or ()) for record in records)
    assert records[2].words[:6] == ("West", "Indian", "all-rounder", "Phil", "Simmons", "took")
    assert records[2].entities[:3] == (
        Entity(0, 2, "MISC"),
        Entity(3, 5, "PER"),
        Entity(12, 13, "ORG"),
    )
    counts = dict.fromkeys(("PER", "LOC", "ORG", "MISC"), 0)
    for record in records:
        for entity in record.entities:
            counts[entity.label] += 1
    # The shared task's own numbers (Tjong Kim Sang and De Meulder 2003, table 2).
    assert counts == {"PER": 1842, "LOC": 1837, "ORG": 1341, "MISC": 922}

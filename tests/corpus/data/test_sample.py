"""The embedded sample: large, varied and annotated as it promises."""

from __future__ import annotations

from typing import Any

from normlens.corpus import encode_record, open_data
from normlens.corpus.data.readers import FOLDER, LABELS


def test_it_is_as_large_as_promised() -> None:
    records = list(open_data("sample"))
    lengths = [len(record.words or ()) for record in records]
    entities = [entity for record in records for entity in record.entities]
    assert len(records) >= 120
    assert len({record.words for record in records}) == len(records)
    assert min(lengths) >= 6
    assert max(lengths) <= 90
    assert sum(bool(record.entities) for record in records) >= 40
    assert len(entities) >= 80
    assert sum(entity.stop - entity.start > 1 for entity in entities) >= 60
    assert {entity.label for entity in entities} == set(LABELS)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 150_000


def test_words_are_split_as_promised() -> None:
    for record in open_data("sample"):
        assert record.words is not None
        assert record.words[-1] == "."
        for word in record.words:
            assert word.isalnum() or len(word) == 1 or "-" in word or word == "'s"


def test_entities_are_names() -> None:
    for record in open_data("sample"):
        for entity in record.entities:
            names = (record.words or ())[entity.start : entity.stop]
            assert names[0][0].isupper()
            assert names[-1][0].isupper()


def test_a_capital_inside_a_sentence_is_a_name_or_a_day() -> None:
    allowed = {"Thursday", "Sunday", "Tuesday", "Friday", "Monday", "October", "X-rays"}
    allowed |= {"F", "P", "W"}  # letters of the alphabet
    for record in open_data("sample"):
        words = record.words or ()
        inside = {i for entity in record.entities for i in range(entity.start, entity.stop)}
        for index, word in enumerate(words):
            begins = index == 0 or words[index - 1] == "."
            assert not word[0].isupper() or begins or index in inside or word in allowed, word


def test_a_wordpiece_tokenizer_splits_many_words(wordpiece: Any) -> None:
    split = 0
    for record in open_data("sample"):
        encoded = encode_record(record, wordpiece, max_length=512)
        split += sum(token.startswith("##") for token in encoded.tokens)
        assert wordpiece.unk_token not in encoded.tokens
        assert set(encoded.words) >= set(range(len(record.words or ())))
    assert split > 300

"""Words and entities of tokens, for every type of tokenizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from run_examples import tiny_tokenizer

from normlens.corpus import Entity, Record, encode_record, open_data
from normlens.corpus.data.spans import encode_apart
from normlens.errors import InputError

hypothesis = pytest.importorskip("hypothesis")
HealthCheck, given, settings = hypothesis.HealthCheck, hypothesis.given, hypothesis.settings
st = hypothesis.strategies

KINDS = ("wordpiece", "byte-bpe", "byte-bpe-prefix", "unigram", "sentencepiece-bpe")
WORDS = ("Gustav", "Kirchhoff", "visited", "New", "York", ",", "unmistakably", "pleased", ".")
RECORD = Record(id="x:0", words=WORDS, entities=(Entity(0, 2, "PER"), Entity(3, 5, "LOC")))


def surface(tokenizer: Any, encoded: Any, positions: list[int]) -> str:
    """What these tokens spell, in small letters and without spaces."""
    text = tokenizer.decode([encoded.ids[position] for position in positions])
    return "".join(text.replace("▁", "").lower().replace("##", "").split())


def of(values: list[int | None], wanted: int) -> list[int]:
    return [position for position, value in enumerate(values) if value == wanted]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_each_word_and_entity_spell_it(kind: str, trained: Any) -> None:
    tokenizer = trained(kind)
    for record in [*open_data("sample", limit=12), RECORD]:
        words = list(record.words or ())
        encoded = encode_record(record, tokenizer, max_length=None)
        assert encoded.ids == tokenizer(" ".join(words))["input_ids"]
        assert encoded.special == [True] + [False] * (len(encoded) - 2) + [True]
        assert (encoded.tokens[0], encoded.words[0], encoded.words[-1]) == ("[CLS]", None, None)
        assert encoded.word_labels == words
        assert encoded.entity_labels == [entity.label for entity in record.entities]
        parts = [(encoded.words, index, [word]) for index, word in enumerate(words)]
        parts += [
            (encoded.entities, index, words[entity.start : entity.stop])
            for index, entity in enumerate(record.entities)
        ]
        for owners, index, spelled in parts:
            found = surface(tokenizer, encoded, of(owners, index))
            assert "[unk]" in found or found == "".join(spelled).lower()
    assert len(of(encoded.words, 6)) > 1  # the vocabulary is too small for "unmistakably"


words = st.lists(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6).filter(
        lambda word: word.strip() and "[" not in word
    ),
    min_size=1,
    max_size=8,
)


@given(words=words)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_words_come_in_order_and_byte_level_ones_are_whole(words: list[str], trained: Any) -> None:
    record = Record(id="x:0", words=tuple(words))
    for kind in KINDS:
        encoded = encode_record(record, trained(kind), max_length=None)
        seen = [word for word in encoded.words if word is not None]
        assert seen == sorted(seen)
        assert len(encoded.words) == len(encoded)
    tokenizer = trained("byte-bpe")
    encoded = encode_record(record, tokenizer, max_length=None)
    found = [
        tokenizer.backend_tokenizer.decode([encoded.ids[p] for p in of(encoded.words, index)])
        for index in range(len(words))
    ]
    # Only the space that joins two words is no part of either.
    assert "".join(found) == " ".join(words)
    for index, (word, text) in enumerate(zip(words, found, strict=True)):
        # A token that starts in one word may reach into white space that follows.
        assert text.removeprefix(" " if index else "").rstrip() == word.rstrip() or any(
            character.isspace() for character in word
        )


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_keeps_the_beginning_and_the_frame(kind: str, trained: Any) -> None:
    tokenizer = trained(kind)
    whole = encode_record(RECORD, tokenizer, max_length=None)
    inside = of(whole.entities, 1)[0] + 1  # cut after the first token of "New York"
    cut = encode_record(RECORD, tokenizer, max_length=inside + 1)
    assert len(cut) == inside + 1
    assert cut.tokens[-1] == "[SEP]"
    assert cut.ids[:-1] == whole.ids[:inside]
    assert cut.entities[:-1] == whole.entities[:inside]
    assert cut.entities[-2] == 1
    assert cut.entities[-1] is None
    assert len(cut.word_labels) == 1 + max(w for w in cut.words if w is not None)


IT_WORKS = Record(id="p:0", tokens=("it", "works", "."))
HALF = "a \ud83d"  # of a character, as JSON may have it
REFUSED = [
    (RECORD, {"max_length": 5, "truncate": False}),
    (RECORD, {"max_length": 2}),
    (IT_WORKS, {"max_length": 2, "truncate": False}),
    (Record(id="p:7", tokens=("it", "Ġworks")), {"max_length": None}),
    (Record(id="x:0", text=HALF), {"max_length": None}),
    (Record(id="x:0", words=("a", HALF)), {"max_length": None}),
    (Record(id="x:0", unreadable="line 3"), {"max_length": None}),
]


@pytest.mark.parametrize(("record", "options"), REFUSED)
def test_what_cannot_be_encoded_is_an_error_that_names_it(
    record: Record, options: dict[str, Any], wordpiece: Any
) -> None:
    with pytest.raises(InputError) as caught:
        encode_record(record, wordpiece, **options)
    assert str(caught.value).startswith(f"{record.id}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        encode_record(record, None, **options)


def test_a_text_has_the_tokenizers_words(wordpiece: Any) -> None:
    record = Record(id="x:0", text="Unmistakably good.")
    encoded = encode_record(record, wordpiece, max_length=None)
    assert encoded.tokens == ["[CLS]", "un", "##mist", "##aka", "##bly", "good", ".", "[SEP]"]
    assert encoded.words == [None, 0, 0, 0, 0, 1, 2, None]
    assert encoded.entities == [None] * 8
    assert encoded.masked == [False] * 8


def test_a_pair_is_cut_to_the_limit(wordpiece: Any) -> None:
    record = Record(id="x:0", text=("one two three four five", "six seven eight nine ten"))
    encoded = encode_record(record, wordpiece, max_length=9)
    assert " ".join(encoded.tokens) == "[CLS] one two three [SEP] six seven eight [SEP]"
    assert encoded.type_ids == [0] * 5 + [1] * 4
    assert encoded.words == [None, 0, 1, 2, None, 3, 4, 5, None]


# Vocabulary tokens ------------------------------------------------------------------------------

TOKENS = ["[CLS]", "photo", "##sy", "##nt", "##hesis", "[UNK]", ".", "[SEP]"]
TOKENS += ["it", "works", "[SEP]"]


def test_tokens_stay_as_they_are(wordpiece: Any) -> None:
    encoded = encode_record(Record(id="p:0", tokens=tuple(TOKENS)), wordpiece, max_length=None)
    assert encoded.tokens == TOKENS
    assert encoded.ids == wordpiece.convert_tokens_to_ids(TOKENS)
    assert encoded.words == [None, 0, 0, 0, 0, 1, 2, None, 3, 4, None]
    assert encoded.word_labels == ["photosynthesis", "[UNK]", ".", "it", "works"]
    assert [i for i, special in enumerate(encoded.special) if special] == [0, 7, 10]
    assert encoded.type_ids == [0] * 8 + [1] * 3


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (10, "[CLS] photo ##sy ##nt ##hesis [UNK] . [SEP] it [SEP]"),
        (9, "[CLS] photo ##sy ##nt ##hesis [UNK] . [SEP]"),
        (4, "[CLS] photo ##sy [SEP]"),
    ],
)
def test_tokens_are_cut_before_a_last_separator(length: int, expected: str, wordpiece: Any) -> None:
    encoded = encode_record(Record(id="p:0", tokens=tuple(TOKENS)), wordpiece, max_length=length)
    assert encoded.tokens == expected.split()
    assert len(encoded.type_ids) == len(encoded.words) == len(encoded)


def test_tokens_without_a_frame_are_cut_at_the_limit(wordpiece: Any) -> None:
    assert encode_record(IT_WORKS, wordpiece, max_length=2).tokens == ["it", "works"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_a_text_give_the_same_words_again(kind: str, trained: Any) -> None:
    tokenizer = trained(kind)
    whole = encode_record(replace(RECORD, words=WORDS[:5], entities=()), tokenizer, max_length=None)
    again = encode_record(Record(id="x:0", tokens=tuple(whole.tokens)), tokenizer, max_length=None)
    assert again.ids == whole.ids
    assert again.words == whole.words
    assert again.special == whole.special


# Real data --------------------------------------------------------------------------------------


def test_conll_entities_are_found_in_subwords(real_data: Any, wordpiece: Any) -> None:
    for record in open_data(real_data("conll2003/eng.testa"), limit=200):
        encoded = encode_record(record, wordpiece, max_length=512)
        for index, entity in enumerate(record.entities):
            tokens = [encoded.tokens[position] for position in of(encoded.entities, index)]
            spelled = "".join(token.removeprefix("##") for token in tokens)
            words = (record.words or ())[entity.start : entity.stop]
            assert spelled == "".join(words).lower()


def test_wikitext_pairs_fit(real_data: Any, wordpiece: Any) -> None:
    path = real_data("wikitext2/wiki.valid.raw")
    lengths = []
    for record in open_data(f"wikitext:{path}", limit=50):
        encoded = encode_record(record, wordpiece, max_length=128)
        lengths.append(len(encoded))
        assert sum(encoded.special) == 3
        assert {0, 1} == set(encoded.type_ids)
    assert max(lengths) == 128


# Two paragraphs of one document -----------------------------------------------------------------

PARAGRAPHS = Record("x:0", text=("Gustav visited", "New York . " * 9), between="\n= = B = =\n")


@pytest.mark.parametrize("length", [None, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_a_separating_tokenizer_and_one_passage_of_a_causal_model(
    kind: str, length: int | None, trained: Any
) -> None:
    """The passage is cut at its end; a pair of two documents stays one."""
    tokenizer = trained(kind)
    pair = replace(PARAGRAPHS, between=None)
    encoded = encode_record(PARAGRAPHS, tokenizer, max_length=length)
    assert encoded == encode_record(pair, tokenizer, max_length=length)
    assert encoded == encode_record(pair, tokenizer, max_length=length, causal=True)
    assert encoded.tokens.count("[SEP]") == (3 if kind == "byte-bpe-prefix" else 2)
    causal = encode_record(PARAGRAPHS, tokenizer, max_length=length, causal=True)
    passage = "Gustav visited\n= = B = =\n" + "New York . " * 9
    assert causal == encode_record(Record("x:0", text=passage), tokenizer, max_length=length)
    assert causal.text == passage


def test_a_tokenizer_without_a_separator_splices_nothing() -> None:
    tokenizer = tiny_tokenizer()  # its pairs are the first text and, right behind it, the second
    record = Record("x:0", text=("ab", "cd"), between="\n")
    encoded = encode_record(record, tokenizer, max_length=16)
    assert encoded.tokens == ["[CLS]", "a", "##b", "c", "##d", "[SEP]"]
    assert encoded.text == "ab\ncd"


def test_a_pair_of_words_is_read_as_its_texts() -> None:
    tokenizer = tiny_tokenizer()
    pair = Record("x", words=("ab", "c"), second_words=("d",))
    for encode in (encode_record, encode_apart):
        found, expected = (
            encode(one, tokenizer, max_length=None)
            for one in (pair, Record("x", text=("ab c", "d")))
        )
        assert found == expected

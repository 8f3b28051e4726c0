"""Token ids of records, the word and the entity that each token belongs to, and masking."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.records import Record, located
from normlens.errors import InputError
from normlens.inputs.text import Encoded, Reader, Text, tokenise

# Token ids of records, with the word and the entity that each token belongs to.


@dataclass(frozen=True)
class EncodedRecord(Encoded):
    """One record as the model reads it; every list of tokens' properties is in token order."""

    id: str = ""
    #: index of the entity that each token belongs to; None outside entities
    entities: list[int | None] = field(default_factory=list)
    entity_labels: list[str] = field(default_factory=list)
    #: tokens that the mask token stands for; they keep their word and their entity
    masked: list[bool] = field(default_factory=list)
    #: further columns of the record's row
    extra: Mapping[str, str] = field(default_factory=dict)
    #: the second text of a pair, where a measure takes the two apart
    second: EncodedRecord | None = None


def encode_record(
    record: Record,
    tokenizer: Any,
    *,
    max_length: int | None,
    truncate: bool = True,
    causal: bool = False,
) -> EncodedRecord:
    """Tokenise a record to at most `max_length` tokens, special tokens included.

    An entity that the end cuts keeps the tokens that remain. Two texts that follow each other in
    one document are the segments of a model that was trained with two; a causal model, and one
    whose tokenizer puts nothing between them, reads them as one passage, cut at its end.
    """
    if tokenizer is None:
        raise InputError("there is no tokenizer; load the model with one")
    with located(record.id):
        if record.unreadable is not None:
            raise InputError(record.unreadable)
        if record.tokens is not None:
            encoded = _from_tokens(list(record.tokens), tokenizer, max_length, truncate)
        elif record.passage is not None and (causal or not _separates(tokenizer)):
            encoded = _from_text(record.passage, tokenizer, max_length, truncate)
        elif record.texts is not None:
            encoded = _from_text(record.texts, tokenizer, max_length, truncate)
        else:
            assert record.words is not None  # a record has one of the three
            encoded = _from_words(record.words, tokenizer, max_length, truncate)
    return EncodedRecord(
        **{item.name: getattr(encoded, item.name) for item in fields(encoded)},
        id=record.id,
        entities=_entities(record, encoded.words or [None] * len(encoded)),
        entity_labels=[entity.label for entity in record.entities],
        masked=[False] * len(encoded),
        extra=record.extra,
    )


def encode_apart(
    record: Record,
    tokenizer: Any,
    *,
    max_length: int | None,
    truncate: bool = True,
    causal: bool = False,
) -> EncodedRecord:
    """Tokenise the two texts of a pair each for itself: the first, with the other as `second`."""
    texts = record.texts
    if record.unreadable is None and not isinstance(texts, tuple):
        raise InputError("it is one text where a pair is needed; give a pair of texts")
    first, second = (
        encode_record(
            replace(record, text=text, words=None, second_words=None),
            tokenizer,
            max_length=max_length,
            truncate=truncate,
            causal=causal,
        )
        for text in (texts if isinstance(texts, tuple) else (None, None))
    )
    return replace(first, second=second)


def _entities(record: Record, words: list[int | None]) -> list[int | None]:
    of_word = {
        word: index
        for index, entity in enumerate(record.entities)
        for word in range(entity.start, entity.stop)
    }
    return [None if word is None else of_word.get(word) for word in words]


def _separates(tokenizer: Any) -> bool:
    """Whether a tokenizer marks where the first text of a pair ends, as with [SEP]."""
    alone, pair = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
    return bool(pair > alone)


def _from_text(text: Text, tokenizer: Any, max_length: int | None, truncate: bool) -> Encoded:
    pair = not isinstance(text, str)
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length is not None and max_length <= special + pair:
        raise InputError(
            f"max_length {max_length} leaves no room beside {special} special tokens; "
            f"give at least {special + pair + 1}"
        )
    return Reader(tokenizer, limit=max_length).read(text, truncate)


# Words ------------------------------------------------------------------------------------------


def _from_words(
    words: tuple[str, ...], tokenizer: Any, max_length: int | None, truncate: bool
) -> Encoded:
    """Tokenise the words joined by spaces, and map tokens to words by character offsets.

    That serves every tokenizer; split words (`is_split_into_words`) would need another byte-level
    tokenizer than the model's own.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"finding words needs a fast tokenizer, and this is a {type(tokenizer).__name__}"
        )
    text = " ".join(words)
    encoded = _from_text(text, tokenizer, max_length, truncate)
    cut = {"truncation": True, "max_length": max_length} if truncate and max_length else {}
    offsets = tokenise(tokenizer, text, return_offsets_mapping=True, **cut)["offset_mapping"]
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    of_token = [
        None if special else _word_at(start, starts, words)
        for (start, _), special in zip(offsets, encoded.special, strict=True)
    ]
    seen = max((word for word in of_token if word is not None), default=-1) + 1
    return replace(encoded, words=of_token, word_labels=list(words[:seen]))


def _word_at(position: int, starts: list[int], words: tuple[str, ...]) -> int:
    """Find the word that a token beginning at `position` belongs to.

    A token may begin with the space before its word, or (a lone Ġ or ▁) be nothing else.
    """
    word = bisect_right(starts, position) - 1
    in_the_space_after = position >= starts[word] + len(words[word])
    return min(word + in_the_space_after, len(words) - 1)


# Tokens -----------------------------------------------------------------------------------------


def _from_tokens(
    tokens: list[str], tokenizer: Any, max_length: int | None, truncate: bool
) -> Encoded:
    """Take vocabulary tokens as they are, special tokens among them."""
    ids = tokenizer.convert_tokens_to_ids(tokens)
    unknown = tokenizer.unk_token_id
    for token, token_id in zip(tokens, ids, strict=True):
        if token_id is None or (token_id == unknown and token != tokenizer.unk_token):
            raise InputError(
                f"the token {token!r} is not in the tokenizer's vocabulary; use the model that "
                "the tokens were made for, or give words or a text"
            )
    frame = special_ids(tokenizer)
    special = [token_id in frame for token_id in ids]
    if max_length is not None and len(ids) > max_length:
        if not truncate:
            raise InputError(
                f"the record has {len(ids)} tokens and the model takes at most {max_length}; "
                "shorten it, or accept its beginning with truncate=True (--truncate)"
            )
        keep = _beginning(ids, special, max_length)
        ids = [ids[i] for i in keep]
        tokens = [tokens[i] for i in keep]
        special = [special[i] for i in keep]
    words, labels = _marked_words(tokens, special, _marker(tokenizer))
    return Encoded(
        ids=ids,
        tokens=tokens,
        special=special,
        type_ids=_segments(ids, tokenizer),
        words=words,
        word_labels=labels,
    )


def special_ids(tokenizer: Any) -> set[int]:
    """List tokens that frame a sequence; unknown and mask tokens stand for tokens of the text."""
    names = ("cls", "sep", "bos", "eos", "pad")
    frame = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    others = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
    return {token for token in frame | others if token is not None}


def _beginning(ids: list[int], special: list[bool], length: int) -> list[int]:
    """Keep the first tokens' positions, and that of a special token at the end ([SEP])."""
    if not special[-1]:
        return list(range(length))
    keep = list(range(length - 1))
    while keep and ids[keep[-1]] == ids[-1]:  # the cut just after another [SEP]
        keep.pop()
    return [*keep, len(ids) - 1]


def _marker(tokenizer: Any) -> str | None:
    """Find the mark of a word's beginning (Ġ or ▁); None where ## marks that it goes on."""
    probe = "".join(tokenizer.tokenize("a a"))
    return next((marker for marker in ("Ġ", "▁") if marker in probe), None)


def _marked_words(
    tokens: list[str], special: list[bool], marker: str | None
) -> tuple[list[int | None], list[str]]:
    """Find the word of each token, and the words themselves."""
    words: list[int | None] = []
    labels: list[str] = []
    for position, (token, is_special) in enumerate(zip(tokens, special, strict=True)):
        if is_special:
            words.append(None)
            continue
        piece = token.lstrip("Ġ▁")
        goes_on = token.startswith("##") if marker is None else not token.startswith(marker)
        if not goes_on or position == 0 or special[position - 1]:
            labels.append(piece)
        else:
            labels[-1] += piece.removeprefix("##")
        words.append(len(labels) - 1)
    return words, labels


def _segments(ids: list[int], tokenizer: Any) -> list[int] | None:
    """Give token types: tokens after the first [SEP] belong to the second text."""
    if "token_type_ids" not in tokenizer.model_input_names:
        return None
    separator = tokenizer.sep_token_id
    first = ids.index(separator) if separator in ids else len(ids)
    return [int(position > first) for position in range(len(ids))]


# Masking some of a sequence's tokens, the same ones in every run.


#: Kobayashi et al. 2020–2024: BERT's own share, 80 % of 15 %.
SHARE = 0.12


def mask_tokens(
    encoded: EncodedRecord, tokenizer: Any, share: float = SHARE, seed: int = 0
) -> EncodedRecord:
    """Replace a share of the ordinary tokens, at least one, by the mask token.

    Which ones depends on the seed, the record's id and its number of ordinary tokens alone.
    """
    mask_id = getattr(tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(
            f"{type(tokenizer).__name__} has no mask token, as in causal models; turn masking off"
        )
    if not 0 <= share <= 1:
        raise InputError(f"the share of masked tokens is between 0 and 1, not {share}")
    # A text may spell out a special token, which its tokenizer does not flag as one.
    never = special_ids(tokenizer) | {mask_id}
    ordinary = [
        position
        for position, (token, special) in enumerate(zip(encoded.ids, encoded.special, strict=True))
        if not special and token not in never
    ]
    count = min(len(ordinary), max(1, round(share * len(ordinary)))) if share else 0
    chosen = {ordinary[i] for i in _order(seed, encoded.id, len(ordinary))[:count]}
    ids = [mask_id if i in chosen else token for i, token in enumerate(encoded.ids)]
    return replace(
        encoded,
        ids=ids,
        tokens=[tokenizer.mask_token if i in chosen else t for i, t in enumerate(encoded.tokens)],
        masked=[token == mask_id for token in ids],
    )


def _order(seed: int, record: str, count: int) -> NDArray[np.intp]:
    """Draw a permutation of `count` positions.

    NumPy promises the raw stream of a bit generator for good, but not what `permutation` makes
    of it; so raw numbers are drawn and sorted.
    """
    digest = hashlib.sha256(f"{seed}\n{count}\n{record}".encode()).digest()
    drawn = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(count)
    return np.argsort(np.asarray(drawn, dtype=np.uint64), kind="stable")

"""Texts and token ids as encoded sequences, and the words that tokens belong to."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.gpu.matmul import sent
from normlens.results.routing import PatchGrid
from normlens.trace.locking import alone_with

# Words: which word of the text each token belongs to.


def words_of(batch: Any, pair: tuple[str, ...]) -> tuple[list[int | None], list[str]]:
    """The index of each token's word (None for a special token), and the words as text.

    The tokenizer's pre-tokenisation says what a word is. Some tokenizers (SentencePiece without
    one) call the whole text one word; there white space separates words.
    """
    word_ids, offsets = batch.word_ids(), batch["offset_mapping"]
    segments = batch.sequence_ids()
    starts = [_unsplit_words(part, k, word_ids, segments) for k, part in enumerate(pair)]
    keys: list[Any] = []
    for position, segment in enumerate(segments):
        if segment is None or word_ids[position] is None:
            keys.append(None)
            continue
        begins = starts[segment]
        if begins is None:
            keys.append((segment, word_ids[position]))
            continue
        start, stop = offsets[position]
        token = pair[segment][start:stop]
        first = start + len(token) - len(token.lstrip())
        keys.append((segment, bisect_right(begins, first) - 1))
    order = {
        key: index for index, key in enumerate(dict.fromkeys(k for k in keys if k is not None))
    }
    spans: dict[Any, tuple[int, int]] = {}
    for key, (start, stop) in zip(keys, offsets, strict=True):
        if key is not None:
            low, high = spans.get(key, (start, stop))
            spans[key] = (min(low, start), max(high, stop))
    labels = [pair[key[0]][slice(*spans[key])].strip() for key in order]
    return [None if key is None else order[key] for key in keys], labels


def _unsplit_words(
    text: str, segment: int, word_ids: Sequence[int | None], segments: Sequence[int | None]
) -> list[int] | None:
    """Where the words of a text begin, if its tokenizer calls all of it one word; else None."""
    begins = [match.start() for match in re.finditer(r"\S+", text)]
    words = {word for word, part in zip(word_ids, segments, strict=True) if part == segment}
    return begins if len(words) == 1 and len(begins) > 1 else None


# Encoded sequences: from texts or token ids to the inputs of a model.


Text: TypeAlias = str | tuple[str, str]
#: Several texts or pairs of texts: a list, a column of a table, an array, a generator.
Texts: TypeAlias = Iterable[str] | Iterable[tuple[str, str]] | Iterable[str | tuple[str, str]]
#: Token ids of one sequence or of a batch: lists, a tensor or an array.
Ids: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | NDArray[np.integer]
#: A Hugging Face tokenizer, or anything that is called like one.
Tokenizer: TypeAlias = Callable[..., object]


@dataclass(frozen=True)
class Encoded:
    """One tokenised sequence, without padding."""

    ids: list[int]
    tokens: list[str]
    special: list[bool]
    type_ids: list[int] | None = None
    #: index of the word that each token belongs to; None for a special token
    words: list[int | None] | None = None
    word_labels: list[str] = field(default_factory=list)
    text: Text | None = None
    end: int | None = None  # the token behind the last, where a model is only asked to predict it
    #: what a model that sees or hears takes instead of ids: (channels, height, width) or (samples,)
    signal: torch.Tensor | None = field(default=None, compare=False)
    grid: PatchGrid | None = None  # where a picture's patches are
    #: ids of the padding that was given before and behind it, and left out
    padding: tuple[list[int], list[int]] = field(default=([], []), compare=False)

    def __len__(self) -> int:
        return len(self.tokens)


def encode_texts(
    texts: Sequence[Text],
    tokenizer: Any,
    limit: int | None,
    truncate: bool,
    vocabulary: int | None = None,
    padded: bool = False,
) -> list[Encoded]:
    """Tokenise texts or pairs of texts as the model expects them, with special tokens.

    With `padded`, padding up to the limit is a part of the text, which the model reads.
    """
    if tokenizer is None:
        raise InputError(
            "this lens has no tokenizer; pass one to load(model, tokenizer) (--tokenizer), or pass "
            "input_ids=…"
        )
    encoded = [_encode_text(text, tokenizer, limit, truncate, padded) for text in texts]
    for sequence in encoded:
        check_ids(sequence.ids, vocabulary, limit)
    return encoded


def _encode_text(
    text: Text, tokenizer: Any, limit: int | None, truncate: bool, padded: bool
) -> Encoded:
    pair = tuple(text) if isinstance(text, (tuple, list)) else (text,)
    if not 1 <= len(pair) <= 2 or not all(isinstance(part, str) for part in pair):
        shown = " ".join(repr(text).split())  # arrays and tables are written in several lines
        raise InputError(f"expected a text or a pair of texts, got {shown[:120]}")
    if any(not part.strip() for part in pair):
        raise InputError("the text is empty; give at least one word")
    options: dict[str, Any] = {"return_special_tokens_mask": True}
    if truncate and limit is not None:
        options |= {"truncation": True, "max_length": limit}
    if padded and limit is not None:
        options |= {"padding": "max_length", "max_length": limit}
    if tokenizer.is_fast:
        options["return_offsets_mapping"] = True
    batch = tokenise(tokenizer, *pair, **options)
    ids = list(batch["input_ids"])
    if not ids:
        raise InputError(f"the tokenizer makes no token of {text!r}; give at least one word")
    if limit is not None and len(ids) > limit:
        raise InputError(
            f"the text has {len(ids)} tokens and the model takes at most {limit}; shorten it, or "
            "accept its beginning with truncate=True (--truncate)"
        )
    words, labels = words_of(batch, pair) if tokenizer.is_fast else (None, [])
    return Encoded(
        ids=ids,
        tokens=[str(token) for token in tokenizer.convert_ids_to_tokens(ids)],
        special=[bool(flag) for flag in batch["special_tokens_mask"]],
        type_ids=list(batch["token_type_ids"]) if "token_type_ids" in batch else None,
        words=words,
        word_labels=labels,
        text=text if isinstance(text, str) else (pair[0], pair[1]),
    )


def tokenise(tokenizer: Any, *texts: str, **options: Any) -> Any:
    """Call the tokenizer on a text or a pair of texts, one thread at a time.

    A fast tokenizer stores the truncation of its last call.
    """
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:  # half a character, which JSON and shells can give
        raise InputError("the text is not valid Unicode; encode it as UTF-8") from error
    # With `verbose` the tokenizer prints a warning about a long text.
    return alone_with([tokenizer], lambda: tokenizer(*texts, verbose=False, **options))


def encode_ids(
    input_ids: Any,
    attention_mask: Any,
    token_type_ids: Any,
    tokenizer: Any,
    vocabulary: int | None,
    limit: int | None,
) -> tuple[list[Encoded], bool]:
    """Sequences of given token ids without their padding, and whether the ids were a batch."""
    rows, is_batch = _rows(input_ids, "input_ids")
    masks = [[1] * len(row) for row in rows]
    if attention_mask is not None:
        masks = _rows(attention_mask, "attention_mask")[0]
    kinds: list[Any] = [None] * len(rows)
    if token_type_ids is not None:
        kinds = _rows(token_type_ids, "token_type_ids")[0]
    if not rows or len(rows) != len(masks) or len(rows) != len(kinds):
        raise InputError("input_ids, attention_mask and token_type_ids must have the same shape")
    encoded = []
    for row, mask, kind in zip(rows, masks, kinds, strict=True):
        if len(row) != len(mask) or (kind is not None and len(row) != len(kind)):
            raise InputError(
                "input_ids, attention_mask and token_type_ids must have the same shape"
            )
        tokens = _tokens_of(mask)
        ids = row[tokens]
        if not ids:
            raise InputError("input_ids has an empty sequence; give at least one token")
        check_ids(ids, vocabulary, limit)
        types = None if kind is None else kind[tokens]
        special_ids = set(getattr(tokenizer, "all_special_ids", ()))
        encoded.append(
            Encoded(
                ids=ids,
                tokens=[str(i) for i in ids]
                if tokenizer is None
                else [str(token) for token in tokenizer.convert_ids_to_tokens(ids)],
                special=[i in special_ids for i in ids],
                type_ids=types,
                padding=(row[: tokens.start], row[tokens.stop :]),
            )
        )
    return encoded, is_batch


def _tokens_of(mask: list[int]) -> slice:
    """The positions of the tokens: one run of ones, with padding before or behind it."""
    other = next((value for value in mask if value not in (0, 1)), None)
    if other is not None:
        raise InputError(f"attention_mask holds {other}; it says 1 for a token and 0 for padding")
    if 1 not in mask:
        return slice(0)
    start, stop = mask.index(1), len(mask) - mask[::-1].index(1)
    if 0 in mask[start:stop]:
        raise InputError(
            f"attention_mask has a 0 at position {start + mask[start:stop].index(0)}, between "
            "tokens; NormLens analyses whole sequences, so mask padding at the ends only, and "
            "leave tokens out of input_ids to analyse the text without them"
        )
    return slice(start, stop)


def check_token_types(encoded: Sequence[Encoded], count: int, name: str) -> None:
    """Raise for token types beyond the model's `count`; type 0 is always allowed."""
    allowed = max(1, count)
    for kind in (kind for sequence in encoded for kind in sequence.type_ids or ()):
        if not 0 <= kind < allowed:
            has = f"knows types 0 to {count - 1}" if count > 1 else "has no token types"
            raise InputError(
                f"token_type_ids holds {kind}, and {name} {has}; leave token_type_ids out"
                + (", or give types that it knows" if count > 1 else "")
            )


def check_ids(ids: list[int], vocabulary: int | None, limit: int | None) -> None:
    """Raise for token ids that a model does not have, or for more of them than it takes."""
    if vocabulary is not None:
        wrong = next((i for i in ids if not 0 <= i < vocabulary), None)
        if wrong is not None:
            raise InputError(
                f"token id {wrong} is out of vocabulary; this model's ids are 0 to "
                f"{vocabulary - 1} (a tokenizer must be the model's own)"
            )
    if limit is not None and len(ids) > limit:
        raise InputError(f"input_ids has {len(ids)} tokens and the model takes at most {limit}")


def _rows(values: Any, what: str) -> tuple[list[list[int]], bool]:
    """Rows of integers from a tensor, an array or lists, and whether there is a batch axis."""
    listed = _plain(values)
    batched = isinstance(listed, list) and bool(listed) and isinstance(_plain(listed[0]), list)
    rows = [_plain(row) for row in listed] if batched else [listed]
    if not all(
        isinstance(row, list) and all(isinstance(value, int) for value in row) for row in rows
    ):
        raise InputError(f"{what} must be integers, one row per sequence, got {values!r}")
    return rows, batched


def _plain(values: Any) -> Any:
    """Lists and numbers from tensors, arrays and tuples."""
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        return [value.tolist() if hasattr(value, "tolist") else value for value in values]
    return values


def pad(batch: Sequence[Encoded], pad_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Model inputs for several sequences, padded on the right.

    Padding goes to the right, whatever the tokenizer prefers: there it changes neither positions
    nor causal attention. Token types are given for all sequences or for none, because GPT-2 does
    not treat missing types as zeros.
    """
    width = max(map(len, batch))

    def table(rows: list[list[int]], fill: int) -> torch.Tensor:
        return sent(torch.tensor([row + [fill] * (width - len(row)) for row in rows]), device)

    inputs = {
        "input_ids": table([sequence.ids for sequence in batch], pad_id),
        "attention_mask": table([[1] * len(sequence) for sequence in batch], 0),
    }
    kinds = [sequence.type_ids for sequence in batch if sequence.type_ids is not None]
    if kinds:
        if len(kinds) < len(batch):
            raise InputError("some sequences have token types and others none; give them to all")
        inputs["token_type_ids"] = table(kinds, 0)
    return inputs


# Two sequences for an encoder–decoder: a source and the target that the decoder reads.


@dataclass(frozen=True)
class Pair:
    """A source and a target, both tokenised and without padding."""

    source: Encoded
    target: Encoded  # what the decoder reads, its start token first
    generated: str | None = None  # how the model generated the target itself; None: it was given
    features: torch.Tensor | None = None  # what an encoder hears, (mel bins, frames)

    def __len__(self) -> int:
        """The longer of the two, which decides how much memory a pair may take."""
        return max(len(self.source), len(self.target))


#: What a lens analyses: a sequence, or the two of an encoder–decoder.
Item: TypeAlias = Encoded | Pair


def sequences_of(item: Item) -> tuple[Encoded, ...]:
    """The sequence that each stack of the model reads, the encoder's first."""
    return (item.source, item.target) if isinstance(item, Pair) else (item,)


def texts_among(items: Sequence[Item]) -> list[Encoded]:
    """Those that are one sequence."""
    return [item for item in items if isinstance(item, Encoded)]


def pairs_among(items: Sequence[Item]) -> list[Pair]:
    """Those that are two."""
    return [item for item in items if isinstance(item, Pair)]


def texts_of(pair: Pair) -> Text | None:
    """Both texts, if both are known."""
    source, target = pair.source.text, pair.target.text
    return (source, target) if isinstance(source, str) and isinstance(target, str) else None

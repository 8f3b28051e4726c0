"""What a lens is given, a text or token ids, as sequences that its model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.text import Encoded, Ids, Text, Texts, check_token_types, encode_ids, encode_texts

if TYPE_CHECKING:
    from normlens.lens import Lens


def encode_input(
    lens: Lens,
    text: Text | Texts | None,
    input_ids: Ids | None,
    attention_mask: Ids | None,
    token_type_ids: Ids | None,
    *,
    truncate: bool,
) -> tuple[list[Encoded], bool]:
    """The sequences, and whether they were given as a list."""
    if (text is None) == (input_ids is None):
        raise InputError("pass either a text (or a list of texts) or input_ids=…, one of the two")
    vocabulary = getattr(lens.adapter.config, "vocab_size", None)
    if text is None:
        encoded, many = encode_ids(
            input_ids,
            attention_mask,
            token_type_ids,
            lens.tokenizer,
            vocabulary,
            lens.max_tokens,
        )
        check_token_types(encoded, lens.adapter.token_types(), lens.name)
        return encoded, many
    many = isinstance(text, list)
    texts = list(text) if isinstance(text, list) else [text]
    return encode_texts(texts, lens.tokenizer, lens.max_tokens, truncate, vocabulary), many

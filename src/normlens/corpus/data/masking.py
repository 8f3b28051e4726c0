"""Masking some of a sequence's tokens, the same ones in every run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.spans import EncodedRecord, special_ids
from normlens.errors import InputError

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

"""Questions: what a user asks about texts, judged before the model runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.explain.words import Target, column_of
from normlens.heads import ANY, CAUSAL, FIRST, LAST, MASKED, TOKENS, Head
from normlens.text import Encoded

#: Explain each next token of a text in turn.
ALL = "all"


@dataclass(frozen=True)
class Question:
    """One number of one sequence; a target of None is what the model says."""

    sequence: int  # which of the sequences
    position: int | None  # None: every position, as the head pools them
    target: int | None = None
    contrast: int | None = None
    direction: Tensor | None = None  # (d,)
    layer: int | None = None


def place_of(
    position: int | None, head: Head, sequence: Encoded, tokenizer: Any, pad_id: int | None
) -> int | None:
    """The position that a head reads; None where it reads them all."""
    n = len(sequence)
    if head.reads != ANY:
        if position is not None:
            raise InputError(
                f"the {head.task} reads the whole input, so it has no position; leave it out"
            )
        if head.reads == FIRST:
            return 0
        return last_token(sequence.ids, pad_id) if head.reads == LAST else None
    if position is not None:
        return checked_position(position, n)
    if head.task == CAUSAL:
        return n - 1
    if head.task == MASKED:
        return _mask(sequence, tokenizer)
    what = "token of the text" if head.task == TOKENS else "vector"
    raise InputError(f"say which {what} is meant: position=0 to {n - 1} (--position)")


def last_token(ids: Sequence[int], pad_id: int | None) -> int:
    """The token that a decoder's classifier reads: the last one that is not padding, by its id."""
    if pad_id is None:
        return len(ids) - 1
    return max((place for place, token in enumerate(ids) if token != pad_id), default=0)


def checked_position(position: Any, n: int) -> int:
    """A position from 0, negative ones from the end."""
    if isinstance(position, bool) or not hasattr(position, "__index__"):
        raise InputError(f"position is a whole number, not {position!r}")
    if not -n <= int(position) < n:
        raise InputError(f"position {position} is out of range; the text has tokens 0 to {n - 1}")
    return int(position) % n


def _mask(sequence: Encoded, tokenizer: Any) -> int:
    mask = getattr(tokenizer, "mask_token_id", None)
    places = [place for place, token in enumerate(sequence.ids) if token == mask]
    if mask is None:
        raise InputError("the tokenizer has no mask token; say which position is to be predicted")
    name = tokenizer.mask_token
    if not places:
        raise InputError(
            f"the text has no {name}, so there is nothing to predict; put one into it, or say "
            "which position is meant (position=…, --position)"
        )
    if len(places) > 1:
        raise InputError(
            f"the text has {len(places)} {name} (at positions {', '.join(map(str, places))}); say "
            "which one is meant (position=…, --position)"
        )
    return places[0]


def direction_of(direction: Any, d: int) -> Tensor:
    """A direction as a vector of d finite numbers."""
    try:
        vector = torch.as_tensor(direction, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"direction is a vector of {d} numbers, not {direction!r}") from error
    if vector.shape != (d,):
        shape = "×".join(map(str, vector.shape)) or "one number"
        raise InputError(f"direction is a vector of {d} numbers, this one has the shape {shape}")
    if not math.isfinite(float(vector.abs().max())):
        raise InputError("direction holds numbers that are not finite")
    return vector


def score_question(
    index: int,
    sequence: Encoded,
    head: Head,
    tokenizer: Any,
    pad_id: int | None,
    target: Target | None,
    contrast: Target | None,
    position: int | None,
    first_piece: bool,
) -> Question:
    """A question about a head's score, or about the difference of two."""
    place = place_of(position, head, sequence, tokenizer, pad_id)
    columns = [
        None
        if word is None
        else column_of(word, head, tokenizer, sequence, place, first_piece, what)
        for what, word in (("target", target), ("contrast", contrast))
    ]
    if columns[0] is not None and columns[0] == columns[1]:
        raise InputError("target and contrast are the same, so there is no difference to explain")
    return Question(index, place, columns[0], columns[1])

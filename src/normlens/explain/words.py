"""From what a user calls a target, a word or a label, to a column of a head's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.errors import InputError
from normlens.heads import CAUSAL, MASKED, OF_TOKENS, Head
from normlens.results.tokens import readable_tokens
from normlens.text import Encoded, tokenise

Target = int | str


def column_of(
    target: Target,
    head: Head,
    tokenizer: Any,
    sequence: Encoded,
    position: int | None,
    first_piece: bool,
    what: str = "target",
) -> int:
    """The column of the head's output that `target` means at one position of a sequence."""
    assert head.output is not None
    count = head.output.weight.shape[1]
    if not isinstance(target, str):
        return _index(target, count, head, what)
    if head.task not in OF_TOKENS:
        return _label(target, count, head, what)
    if tokenizer is None:
        raise InputError(
            f"{what} {target!r} is a word and this lens has no tokenizer; give the token's id"
        )
    pieces = _pieces(target, head, tokenizer, sequence, position)
    return one_token(target, pieces, tokenizer, count, first_piece, what)


def one_token(
    target: str, pieces: list[int], tokenizer: Any, count: int, first_piece: bool, what: str
) -> int:
    """The token that a word's `pieces` are, or an error where the model cannot say it at once."""
    if not pieces:
        raise InputError(f"the tokenizer makes no token of {what} {target!r}; give another word")
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in pieces:
        raise InputError(
            f"{what} {target!r} is not in the vocabulary; give another word, or a token's id"
        )
    if len(pieces) > 1 and not first_piece:
        shown = " + ".join(readable(tokenizer, pieces))
        raise InputError(
            f"{what} {target!r} is {len(pieces)} tokens ({shown}) and a model predicts one at a "
            f"time; take the first with first_piece=True (--first-piece), or give another word"
        )
    if pieces[0] >= count:
        raise InputError(f"{what} {target!r} has id {pieces[0]} and the model predicts {count} ids")
    return pieces[0]


def label_of(column: int, head: Head, tokenizer: Any) -> str:
    """What people call a column of the head's output."""
    if head.task not in OF_TOKENS:
        return head.labels.get(column, str(column))
    if tokenizer is None:
        return str(column)
    return readable(tokenizer, [column])[0]


def readable(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them."""
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
    special = set(getattr(tokenizer, "all_special_ids", ()))
    return readable_tokens(tokens, [i in special for i in ids])


def _index(target: Any, count: int, head: Head, what: str) -> int:
    if isinstance(target, bool) or not hasattr(target, "__index__"):
        raise InputError(f"{what} is a word, a label or a number, not {target!r}")
    index = int(target)
    if not 0 <= index < count:
        named = "token ids" if head.task in OF_TOKENS else "classes"
        raise InputError(
            f"{what} {index} is out of range; the model's {named} are 0 to {count - 1}"
        )
    return index


def _label(target: str, count: int, head: Head, what: str) -> int:
    by_name = {name.casefold(): index for index, name in head.labels.items()}
    wanted = target.strip().casefold()
    if wanted in by_name:
        return by_name[wanted]
    if wanted.isdecimal() and int(wanted) < count:
        return int(wanted)
    names = ", ".join(head.labels.get(index, str(index)) for index in range(min(count, 40)))
    raise InputError(f"unknown {what} {target!r}; this model's labels are: {names}")


def _pieces(
    word: str, head: Head, tokenizer: Any, sequence: Encoded, position: int | None
) -> list[int]:
    """The tokens of a word where it would stand in the text."""
    text = sequence.text
    if isinstance(text, str):
        if head.task == CAUSAL and position == len(sequence) - 1:
            pieces = _behind(text, word, tokenizer, sequence)
            if pieces:
                return pieces
        mask = getattr(tokenizer, "mask_token", None)
        if head.task == MASKED and mask and text.count(mask) == 1:
            pieces = _instead(text.replace(mask, word), tokenizer, sequence, position)
            if pieces:
                return pieces
    return _ids(tokenizer, word, False)


def _behind(text: str, word: str, tokenizer: Any, sequence: Encoded) -> list[int]:
    """The tokens that `word` adds to the text, if the text's own stay as they are."""
    longer = _ids(tokenizer, text + word, True)
    same = longer[: len(sequence.ids)] == sequence.ids
    return longer[len(sequence.ids) :] if same else []


def _instead(text: str, tokenizer: Any, sequence: Encoded, position: int | None) -> list[int]:
    """The tokens that stand where the mask stood, if all others stay as they are."""
    filled = _ids(tokenizer, text, True)
    before = sequence.ids[:position]
    behind = sequence.ids[len(before) + 1 :]
    stop = len(filled) - len(behind)
    same = filled[: len(before)] == before and filled[stop:] == behind
    return filled[len(before) : stop] if same else []


def _ids(tokenizer: Any, text: str, special: bool) -> list[int]:
    return list(tokenise(tokenizer, text, add_special_tokens=special)["input_ids"])

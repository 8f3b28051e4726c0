"""Questions about a text: what a target means, where it is read, and along which direction."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError, parse_json, reason_of, system_reason
from normlens.frozen.activations import activation
from normlens.frozen.network import FrozenReadout
from normlens.frozen.rules import PLAIN_RULES
from normlens.inputs.text import Encoded, tokenise
from normlens.layers import ANY, CAUSAL, FIRST, LAST, MASKED, OF_TOKENS, TOKENS, Head, Linear
from normlens.results.axes import readable_tokens

# From what a user calls a target, a word or a label, to a column of a head's output.


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


# Questions: what a user asks about texts, judged before the model runs.


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


# Readings: which number is explained, as a linear function of the vectors behind a layer.


@dataclass(frozen=True)
class Reading:
    """One number: a score of the head, the difference of two, or a vector's share of another.

    `columns` are the head's scores with their signs; `direction` (d,) is read instead at `position`
    behind layer `layer`, or behind the model's last step.
    """

    position: int | None = None  # None: every position, as the head pools them
    columns: tuple[tuple[int, float], ...] = ()
    direction: Tensor | None = None
    layer: int | None = None


@dataclass(frozen=True)
class Start:
    """Where the way back begins: the gradient at one layer's output, and the biases behind it."""

    layer: int  # the gradient stands behind this layer
    gradient: Tensor  # (n, d)
    unowned: dict[str, float]  # what no token owns behind it, by component
    value: float  # the score by the algebra
    columns: tuple[float, ...]  # the head's scores that it consists of, by the algebra


def start(reading: Reading, head: Head | None, last: Tensor, rule: str, count: int) -> Start:
    """The beginning of one reading's way back from the vectors `last` (n, d) of one sequence.

    `last` is behind layer `reading.layer`, or behind the last of `count` layers.
    """
    if reading.direction is not None and reading.layer is not None:
        assert reading.position is not None
        gradient = torch.zeros_like(last)
        gradient[reading.position] = reading.direction.to(last)
        value = float(last[reading.position].double() @ reading.direction.to(last).double())
        return Start(reading.layer, gradient, {}, value, ())
    assert head is not None
    pools = head.pools(reading.position, len(last))
    bodies = [FrozenReadout.at(head.body, last[pool], rule) for pool in pools]  # (tokens, d)
    pooled, pooled_bias = (
        torch.cat([vectors.mean(0) for vectors in each])
        for each in ([body.output for body in bodies], [body.bias for body in bodies])
    )
    steps = FrozenReadout.at(head.steps, pooled, rule, pooled_bias)
    unowned: dict[str, float] = {}
    columns: tuple[float, ...] = ()
    if reading.direction is not None:
        weight = reading.direction.to(last)
        value = float(steps.output.double() @ weight.double())
    else:
        assert head.output is not None
        weight, bias, columns = _columns(head.output, head.soft_cap, reading.columns, steps, rule)
        unowned["OUT"] = bias
        signs = [sign for _, sign in reading.columns]
        value = sum(sign * score for sign, score in zip(signs, columns, strict=True))
    g, of_steps = steps.score(weight)
    gradient, of_bodies = torch.zeros_like(last), []
    for pool, body, share in zip(pools, bodies, g.chunk(len(pools)), strict=True):
        spread = (share / len(body.output)).expand_as(body.output)
        of_pool, of_body = body.score(spread)
        gradient[pool] += of_pool
        of_bodies += of_body
    names = _step_names(head)
    in_body = names[: len(head.body)] * len(pools)
    for name, of_step in zip(
        [*in_body, *names[len(head.body) :]], [*of_bodies, *of_steps], strict=True
    ):
        if of_step is not None:
            unowned[name] = unowned.get(name, 0.0) + float(of_step.double().sum())
    return Start(count - 1, gradient, unowned, value, columns)


def _columns(
    output: Linear,
    cap: float | None,
    columns: tuple[tuple[int, float], ...],
    steps: FrozenReadout,
    rule: str,
) -> tuple[Tensor, float, tuple[float, ...]]:
    """The weight (d,) and bias of signed scores, and the scores themselves."""
    y = steps.output
    chosen = torch.tensor([column for column, _ in columns], device=y.device)
    scale = output.scale[chosen].to(y) if isinstance(output.scale, Tensor) else output.scale
    weights = output.weight[:, chosen].to(y) * scale  # (d, c)
    bias = torch.zeros(len(columns)) if output.bias is None else output.bias[chosen]
    biases = bias.to(y) * scale
    signs = torch.tensor([sign for _, sign in columns]).to(y)
    scores = y @ weights + biases
    slopes = torch.ones_like(scores)
    capped = scores
    if cap is not None:
        # c · tanh(z/c): the rule's slope of tanh at z/c.
        of_bias = steps.bias @ weights + biases
        tanh = PLAIN_RULES[rule](activation("tanh"), scores / cap, lambda: of_bias / cap)
        (slopes,), capped = tanh.slopes, tanh.hidden * cap
    remainder = capped - slopes * (scores - biases)
    weight = weights @ (slopes * signs)
    return weight, float((remainder * signs).double().sum()), tuple(capped.double().tolist())


def _step_names(head: Head) -> list[str]:
    """The names of the head's steps, numbered where one comes several times."""
    symbols = [step.symbol for step in (*head.body, *head.steps)]
    return [
        symbol + (str(symbols[: place + 1].count(symbol)) if symbols.count(symbol) > 1 else "")
        for place, symbol in enumerate(symbols)
    ]


# Directions from files: vectors that a score is read along.


FORMATS = (".npy", ".json", ".txt")


def read_direction(path: Path) -> NDArray[np.float64]:
    """A vector from a NumPy file, a JSON list, or numbers that spaces and lines separate."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--direction takes a {', '.join(FORMATS)} file, not {str(path)!r}")
    try:
        return np.asarray(_values(path), dtype=np.float64)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {system_reason(error)}") from error
    except (ValueError, TypeError, EOFError, MemoryError, json.JSONDecodeError) as error:
        raise InputError(
            f"{str(path)!r} holds no vector of numbers ({reason_of(error)})"
        ) from error


def _values(path: Path) -> Any:
    if path.suffix.lower() == ".npy":
        return np.load(path, allow_pickle=False)
    text = path.read_text("utf-8")
    return parse_json(text) if path.suffix.lower() == ".json" else text.split()

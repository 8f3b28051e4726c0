"""Questions about a text: targets, contrasts, positions and directions, checked before the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens.errors import InputError, check_choice, require
from normlens.inputs.encode import answered, reader_of
from normlens.inputs.text import TARGET, Encoded, Reader, tokenise
from normlens.layers import ANY, CAUSAL, FIRST, LAST, MASKED, OF_TOKENS, TOKENS, Dense, Head
from normlens.models.base import read_head
from normlens.options import ANSWER_SCORES, LOG_PROBABILITY, PARTS, ExplainOptions, is_whole
from normlens.results.axes import SPACE, readable_tokens

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Explain each next token of a text in turn.
ALL = "all"

Target = int | str


@dataclass(frozen=True)
class Question:
    """One number of one sequence; a target of None is what the model says.

    It is a score of the head, or the difference of two, or a vector's share of `direction` at
    `position` behind layer `layer` or the model's last step.
    """

    sequence: int  # which of the sequences
    position: int | None  # None: every position, as the head pools them
    target: int | None = None
    contrast: int | None = None
    direction: Tensor | None = None  # (d,)
    layer: int | None = None
    #: tokens that are explained together; the last is predicted at `position`
    answer: tuple[int, ...] = ()
    score: str = LOG_PROBABILITY  # of an answer
    label: str | None = None  # what people call the answer
    #: words as they were given, their columns, and other spellings with theirs
    spellings: tuple[tuple[str, int, str, int], ...] = ()

    @property
    def positions(self) -> slice:
        """Where an answer is predicted."""
        assert self.position is not None
        return slice(self.position + 1 - len(self.answer), self.position + 1)

    @property
    def columns(self) -> list[tuple[int, float]]:
        """The head's scores that the number is made of, with their signs."""
        signed = (self.target, 1.0), (self.contrast, -1.0)
        return [(column, sign) for column, sign in signed if column is not None]


@dataclass(frozen=True)
class AnswerOptions:
    """What `Lens.explain` may be asked about answers of several tokens.

    - `score` is "log-probability" (of answers of several tokens) or "logit" (of single tokens).
    - `by` explains each "sentence", "paragraph" or "token" of an answer, or all of it ("document").
    - `generate` lets the model answer with so many tokens at most; `generation` are options of its
      method ``generate``, which by default takes the likeliest token.
    """

    score: str | None = None
    by: str | None = None
    generate: int | None = None
    generation: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        for value, choices, name in ((self.score, ANSWER_SCORES, "score"), (self.by, PARTS, "by")):
            if value is not None:
                check_choice(value, choices, name)
        if self.generation is not None and self.generate is None:
            raise InputError("generation=… are options of an answer to generate; add generate=N")

    @property
    def given(self) -> bool:
        """Whether a question must be about an answer."""
        return (self.by or self.generate) is not None or self.score == LOG_PROBABILITY


class QuestionReader:
    """Reads what a call of `Lens.explain` asks of each text.

    Its `items` are the texts, and behind them those that an answer follows.
    """

    def __init__(
        self,
        lens: Lens,
        items: Sequence[Encoded],
        options: ExplainOptions,
        direction: Any,
        layer: Any,
        answers: AnswerOptions | None = None,
    ):
        self.lens, self.options, self.layer = lens, options, None
        self.items, self.answers = [*items], answers
        self.direction: Tensor | None = None
        if direction is None:
            self.head = read_head(lens.adapter)
            return
        end, width = tuple(lens.adapter.end()), lens.layers[-1].d_model
        for step in end:
            if isinstance(step, Dense):
                width = step.linear.weight.shape[1]
        if layer is not None:
            among = f"the model has layers 0 to {lens.n_layers - 1}"
            self.layer = checked_index(layer, lens.n_layers, "layer", among)
            end, width = (), lens.layers[self.layer].d_model
        self.direction = direction_of(direction, width)
        self.head = Head("direction", ANY, end)

    def read(
        self, index: int, target: Any, contrast: Any, position: Any
    ) -> Question | list[Question]:
        """What is asked about an item of this index; a list if each token is asked for in turn.

        Of an encoder–decoder, the token behind position p is token p of the target.
        """
        item = self.items[index]
        if self.answers is not None:
            whole = self._answered(self.answers, item, target, contrast, position)
            if whole is not None:
                self.items.append(whole)
                return self.about_answer(len(self.items) - 1, self.answers)
        following, two = [*item.ids[1:], item.end], item.source is not None
        if position == ALL and self.direction is None:
            name, others = ("token", "contrast") if two else ("position", "target and contrast")
            if not two and self.head.task != CAUSAL:
                raise InputError(
                    f"position='all' explains next tokens; this model is a {self.head.task}"
                )
            if target is not None or contrast is not None:
                raise InputError(f"{name}='all' explains each token in turn, so leave {others} out")
            # What is behind the last position is part of the target only if it is known.
            count = len(item) - (item.end is None)
            if count == 0:
                raise InputError(
                    f"{name}='all' explains the tokens behind the first one, and there is none; "
                    "give a longer text"
                )
            return [self._question(index, item, following[k], None, k) for k in range(count)]
        if two:
            place = self._token_place(item, position)
            return self._question(index, item, following[place], contrast, place)
        if isinstance(position, str):
            raise InputError(
                f"position is a number or {ALL!r}, not {position!r}"
                if self.direction is None
                else "a direction is read at one position, a number; give several in a list"
            )
        if self.direction is not None and position is None and self.lens.causal:
            position = len(item) - 1
        read = place_of(self.lens, self.head, item, position)
        if self.direction is not None:
            return Question(index, read, direction=self.direction, layer=self.layer)
        return self._question(index, item, target, contrast, read)

    def _answered(
        self, asked: AnswerOptions, item: Encoded, target: Any, contrast: Any, position: Any
    ) -> Encoded | None:
        """The text with the answer that is asked about; None if that is no answer but a token."""
        lens, end = self.lens, len(item) - 1
        takes = self.direction is None and self.head.task == CAUSAL and item.source is None
        if not takes or position == ALL:
            if asked.given:
                raise InputError(
                    "score, by and generate are about the answer of a causal language model to a "
                    "text; leave them out"
                )
            return None
        if asked.generate is not None:
            if any(each is not None for each in (target, contrast, position)):
                raise InputError(
                    "generate=N lets the model answer at the end of the text; leave target, "
                    "contrast and position out"
                )
            return answered(lens, item, asked.generate, asked.generation or {})
        if target is None:
            if asked.given:
                raise InputError(
                    "say which answer is explained: target=…, or generate=N to let the model answer"
                )
            return None
        if not isinstance(target, str):
            column = column_of(target, self.head, lens.tokenizer, item, end, False)
            if not asked.given:
                return None
            if lens.tokenizer is None:
                raise InputError("an answer needs a tokenizer; pass one to load(model, tokenizer)")
            whole = reader_of(lens).followed_by(item, [column])
        elif lens.tokenizer is None:
            return None
        else:
            pieces = _pieces(target, self.head, lens.tokenizer, item, end)
            several = len(pieces) > 1 and not self.options.first_piece
            unknown = getattr(lens.tokenizer, "unk_token_id", None) in pieces
            if unknown or not pieces or not (several or asked.given):
                return None
            whole = reader_of(lens).answered(item, target)
        if contrast is not None:
            raise InputError(
                "a contrast is one token in place of another, and an answer may be several; leave "
                "it out, or take the first token with first_piece=True (--first-piece)"
            )
        if position is None or checked_index(position, end + 1, "position", "") == end:
            return whole
        if asked.given:
            raise InputError("an answer follows the text; leave position out")
        return None

    def about_answer(self, index: int, asked: AnswerOptions) -> Question | list[Question]:
        """What is asked about the answer at the end of an item; a list for each of its parts."""
        item = self.items[index]
        assert item.answer is not None
        first, ids = item.answer.first, item.ids[item.answer.first :]
        parts = [(item.answer.text, range(len(ids)))]
        if asked.by is not None:
            parts = item.answer.parts(asked.by)
        score = asked.score or LOG_PROBABILITY
        questions = questions_of_parts(index, first - 1, tuple(ids), parts, score)
        return questions if asked.by is not None else questions[0]

    def _question(
        self, index: int, item: Encoded, target: Any, contrast: Any, place: int | None
    ) -> Question:
        lens, first_piece = self.lens, self.options.first_piece
        columns = [
            None
            if word is None
            else column_of(word, self.head, lens.tokenizer, item, place, first_piece, what)
            for what, word in (("target", target), ("contrast", contrast))
        ]
        if columns[0] is not None and columns[0] == columns[1]:
            raise InputError(
                f"{'target' if item.source is None else 'token'} and contrast are the same, so "
                "there is no difference to explain"
            )
        spellings = [
            (word, column, *other)
            for word, column in zip((target, contrast), columns, strict=True)
            if isinstance(word, str) and column is not None
            for other in _other_spellings(word, column, self.head, lens.tokenizer, item, place)
        ]
        return Question(index, place, columns[0], columns[1], spellings=tuple(spellings))

    def _token_place(self, item: Encoded, token: Any) -> int:
        """The position that predicts the token of the target that `token` names."""
        count, special = len(item), item.special
        if token is None:  # the last one of the text, or what the model says where there is none
            ordinary = [k for k in range(1, count) if not (special and special[k])]
            return ordinary[-1] - 1 if ordinary else count - 1
        if isinstance(token, str):
            return self._word_place(item, token)
        among = f"the target's tokens are 0 to {count - 1} ({self._shown(item)})"
        return checked_index(token, count, "token", among, f"a place, a word or {ALL!r}")

    def _word_place(self, item: Encoded, word: str) -> int:
        wanted = word.strip()
        pieces: dict[Any, list[int]] = {}  # places of the tokens of each word of that name
        for k in range(1, len(item)):
            of_word = None if item.words is None else item.words[k]
            if of_word is not None and item.word_labels[of_word] == wanted:
                pieces.setdefault(of_word, []).append(k)
        if not pieces:
            shown = readable(self.lens.tokenizer, item.ids)
            names = (wanted, SPACE + wanted)
            pieces = {k: [k] for k in range(1, len(item)) if shown[k] in names}
        if not pieces:
            raise InputError(
                f"the target has no token {word!r}; its tokens are {self._shown(item)}. Ask why it "
                "is not there with contrast=…"
            )
        if len(pieces) > 1:
            places = " or ".join(str(places[0] - 1) for places in pieces.values())
            raise InputError(
                f"{word!r} stands {len(pieces)} times in the target; say which one is meant by its "
                f"place: token={places}"
            )
        (places_of_word,) = pieces.values()
        if len(places_of_word) > 1 and not self.options.first_piece:
            ids = [item.ids[k] for k in places_of_word]
            parts = " + ".join(readable(self.lens.tokenizer, ids))
            raise InputError(
                f"{word!r} is {len(places_of_word)} tokens of the target ({parts}) and a model "
                f"predicts one at a time; name one by its place (token={places_of_word[0] - 1} to "
                f"{places_of_word[-1] - 1}), or take the first with first_piece=True "
                "(--first-piece)"
            )
        return places_of_word[0] - 1

    def _shown(self, item: Encoded) -> str:
        """The target's tokens in words, without the one that starts it."""
        end = [] if item.end is None else [item.end]
        return " ".join(readable(self.lens.tokenizer, [*item.ids[1:], *end]))


def questions_of_parts(
    index: int, first: int, ids: tuple[int, ...], parts: Sequence[tuple[str, range]], score: str
) -> list[Question]:
    """What is asked about parts of an answer, whose first token is predicted at `first`."""
    return [
        Question(
            index,
            first + places.stop - 1,
            answer=ids[places.start : places.stop],
            score=score,
            label=text if len(places) > 1 else None,
        )
        for text, places in parts
    ]


# Where a score is read, and the column of the head's output that a word or a label means.


def checked_index(
    value: Any, count: int, what: str, among: str, kind: str = "a whole number"
) -> int:
    """An index from 0; a negative one counts from the end."""
    require(is_whole(value), f"{what} is {kind}, not {value!r}")
    require(-count <= int(value) < count, f"{what} {value} is out of range; {among}")
    return int(value) % count


def place_of(lens: Lens, head: Head, item: Encoded, position: Any = None) -> int | None:
    """The position that a head reads; None where it reads them all."""
    n = len(item)
    if head.reads != ANY:
        if position is not None:
            raise InputError(
                f"the {head.task} reads the whole input, so it has no position; leave it out"
            )
        if head.reads != LAST:
            return 0 if head.reads == FIRST else None
        # A decoder's classifier reads the last token that is not padding, by its id.
        pad_id = getattr(lens.adapter.config, "pad_token_id", None)
        return max((k for k, token in enumerate(item.ids) if token != pad_id), default=0)
    if position is not None:
        return checked_index(position, n, "position", f"the text has tokens 0 to {n - 1}")
    if head.task == CAUSAL:
        return n - 1
    if head.task == MASKED:
        return _mask(item, lens.tokenizer)
    what = "token of the text" if head.task == TOKENS else "vector"
    raise InputError(f"say which {what} is meant: position=0 to {n - 1} (--position)")


def _mask(item: Encoded, tokenizer: Any) -> int:
    mask = getattr(tokenizer, "mask_token_id", None)
    if mask is None:
        raise InputError("the tokenizer has no mask token; say which position is to be predicted")
    places = [place for place, token in enumerate(item.ids) if token == mask]
    if len(places) != 1:
        where = f" (at positions {', '.join(map(str, places))})" if places else ""
        raise InputError(
            f"the text has {len(places) or 'no'} {tokenizer.mask_token}{where}; put exactly one "
            "into it, or say which position is meant (position=…, --position)"
        )
    return places[0]


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
        require(is_whole(target), f"{what} is a word, a label or a number, not {target!r}")
        if not 0 <= int(target) < count:
            named = "token ids" if head.task in OF_TOKENS else "classes"
            raise InputError(
                f"{what} {int(target)} is out of range; the model's {named} are 0 to {count - 1}"
            )
        return int(target)
    if head.task not in OF_TOKENS:
        return _label(target, count, head, what)
    if tokenizer is None:
        raise InputError(
            f"{what} {target!r} is a word and this lens has no tokenizer; give the token's id"
        )
    pieces = _pieces(target, head, tokenizer, sequence, position)
    if not pieces or getattr(tokenizer, "unk_token_id", None) in pieces:
        raise InputError(
            f"{what} {target!r} is not in the vocabulary; give another word, or a token's id"
        )
    if len(pieces) > 1 and not first_piece:
        shown = " + ".join(readable(tokenizer, pieces))
        raise InputError(
            f"{what} {target!r} is {len(pieces)} tokens ({shown}) and a model predicts one at a "
            f"time here; take the first with first_piece=True (--first-piece), or give another word"
        )
    if pieces[0] >= count:
        raise InputError(f"{what} {target!r} has id {pieces[0]} and the model predicts {count} ids")
    return pieces[0]


def _other_spellings(
    word: str, column: int, head: Head, tokenizer: Any, sequence: Encoded, position: int | None
) -> list[tuple[str, int]]:
    """The same word with or without a space before it and in other cases, as other tokens."""
    if head.task not in OF_TOKENS:
        return []
    bare = word.lstrip()
    cases = dict.fromkeys((bare, bare.lower(), bare[:1].upper() + bare[1:], bare.upper()))
    found: dict[int, str] = {}
    for spelling in (space + case for case in cases for space in (" ", "")):
        pieces = _pieces(spelling, head, tokenizer, sequence, position) if bare else []
        if len(pieces) == 1 and pieces[0] not in (column, getattr(tokenizer, "unk_token_id", None)):
            found.setdefault(pieces[0], spelling)
    return [(spelling, other) for other, spelling in found.items()]


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
    """The tokens of a word where it would stand in the text, if the text's own stay as they are."""
    if sequence.source is not None:
        return Reader(tokenizer, TARGET).plain_ids(word)
    text, mask = sequence.text, getattr(tokenizer, "mask_token", None)
    before, behind, longer = sequence.ids, list[int](), None
    if head.task == CAUSAL and position == len(sequence) - 1 and isinstance(text, str):
        longer = text + word
    elif head.task == MASKED and mask and isinstance(text, str) and text.count(mask) == 1:
        longer = text.replace(mask, word)
        assert position is not None
        before, behind = before[:position], before[position + 1 :]
    if longer is not None:
        ids = _ids(tokenizer, longer, sequence.contents is None)
        stop = len(ids) - len(behind)
        if stop > len(before) and ids[: len(before)] == before and ids[stop:] == behind:
            return ids[len(before) : stop]
    return _ids(tokenizer, word, False)


def _ids(tokenizer: Any, text: str, special: bool) -> list[int]:
    return list(tokenise(tokenizer, text, add_special_tokens=special)["input_ids"])


def label_of(column: int, head: Head, tokenizer: Any) -> str:
    """What people call a column of the head's output."""
    if head.task not in OF_TOKENS:
        return head.labels.get(column, str(column))
    return readable(tokenizer, [column])[0]


def readable(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as people read them; without a tokenizer their ids."""
    if tokenizer is None:
        return [str(token) for token in ids]
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
    special = set(getattr(tokenizer, "all_special_ids", ()))
    return readable_tokens(tokens, [i in special for i in ids])


# Directions: vectors that a score is read along.


def direction_of(direction: Any, d: int) -> Tensor:
    """A direction as a vector of d finite numbers."""
    try:
        vector = torch.as_tensor(direction, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"direction is a vector of {d} numbers, not {direction!r}") from error
    if vector.shape != (d,):
        shape = "×".join(map(str, vector.shape)) or "one number"
        raise InputError(f"direction is a vector of {d} numbers, this one has the shape {shape}")
    require(math.isfinite(float(vector.abs().max())), "direction holds numbers that are not finite")
    return vector

"""Turn a call of `Lens.explain` into questions, and their answers into explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.questions import (
    ALL,
    Question,
    Target,
    column_of,
    direction_of,
    one_token,
    place_of,
    readable,
)
from normlens.inputs.pairs import SideReader
from normlens.inputs.text import Encoded, Item, Pair
from normlens.layers import ANY, CAUSAL, Head
from normlens.models.base import read_head
from normlens.options import ExplainOptions
from normlens.pipeline.progress import Progress
from normlens.results.axes import SPACE
from normlens.results.explanation import Explanations

if TYPE_CHECKING:
    from normlens.lens import Lens


# One value for all questions of a call, or a list with one for each.


def is_list(value: Any) -> bool:
    """Whether several values are given, one for each question."""
    return isinstance(value, (list, tuple))


def question_count(texts: list[int], lists: Sequence[Any]) -> int:
    """How many questions a call asks; its lists must be equally long."""
    lengths = {*texts, *map(len, lists)}
    several = lengths - {1} or lengths
    if len(several) > 1:
        raise InputError(
            "texts, targets, contrasts, positions or tokens in lists must be equally long, not "
            f"{', '.join(map(str, sorted(several)))}"
        )
    if 0 in lengths and lists:
        raise InputError("a list of targets, contrasts, positions or tokens is empty")
    return next(iter(several), 1)


def spread(value: Any, count: int) -> list[Any]:
    """One value for each question."""
    if not is_list(value):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)


# From the words of a call of `Lens.explain` to questions and their answers.


#: One of a kind, or a list with one for each text.
Targets: TypeAlias = Target | Sequence[Target | None] | None
Positions: TypeAlias = int | str | Sequence[int | str | None] | None
#: Which token of the target is explained: its place from 0, a word, or "all".
Token: TypeAlias = int | str
Tokens: TypeAlias = Token | Sequence[Token | None] | None


def ask(
    lens: Lens,
    items: Sequence[Item],
    many: bool,
    options: ExplainOptions,
    progress: Progress | None = None,
    *,
    target: Targets = None,
    contrast: Targets = None,
    position: Positions | Tokens = None,
    direction: Any = None,
    layer: int | None = None,
) -> Any:
    """Answer what a call of `Lens.explain` asks; a list where any part of it was a list.

    Of an encoder–decoder, `position` says which token of the target is explained, and there is
    neither a `target` nor a `direction`.
    """
    reader = _reader(lens, options, target, contrast, direction, layer)
    lists = [value for value in (target, contrast, position) if is_list(value)]
    count = question_count([len(items)] if many else [], lists)
    parts = zip(
        spread(list(range(len(items))) if many else 0, count),
        spread(target, count),
        spread(contrast, count),
        spread(position, count),
        strict=True,
    )
    questions: list[Question] = []
    answers_of: list[slice | int] = []
    for index, wanted, against, place in parts:
        asked = reader.questions(index, items[index], wanted, against, place)
        if isinstance(asked, Question):
            answers_of.append(len(questions))
            questions.append(asked)
        else:
            answers_of.append(slice(len(questions), len(questions) + len(asked)))
            questions += asked
    explained = Explainer(lens, reader.head, options, progress).explain(items, questions)
    answers = [
        Explanations(explained[place]) if isinstance(place, slice) else explained[place]
        for place in answers_of
    ]
    return answers if many or lists else answers[0]


class _Reader(Protocol):
    """Judges questions of one kind before the model runs."""

    head: Head

    def questions(
        self, index: int, item: Any, target: Any, contrast: Any, position: Any
    ) -> Question | list[Question]:
        """What is asked about an item of this index; a list if each token is asked for in turn."""


def _reader(
    lens: Lens, options: ExplainOptions, target: Any, contrast: Any, direction: Any, layer: Any
) -> _Reader:
    if direction is not None:
        if target is not None or contrast is not None:
            raise InputError("give a target or a direction, not both")
        return _Directions(lens, direction, layer)
    if layer is not None:
        raise InputError("layer goes with direction=…; a target is read at the model's end")
    return (_TargetTokens if lens.two_stacks else _Scores)(lens, options)


class _Scores:
    """Questions about a score of the head, or about the difference of two."""

    def __init__(self, lens: Lens, options: ExplainOptions):
        self.lens, self.options, self.head = lens, options, read_head(lens.adapter)

    def questions(
        self, index: int, sequence: Encoded, target: Any, contrast: Any, position: Any
    ) -> Question | list[Question]:
        if position == ALL:
            return self._each_next(index, sequence, target, contrast)
        if isinstance(position, str):
            raise InputError(f"position is a number or {ALL!r}, not {position!r}")
        return self._question(index, sequence, target, contrast, position)

    def _question(
        self, index: int, sequence: Encoded, target: Any, contrast: Any, position: Any
    ) -> Question:
        tokenizer, first_piece = self.lens.tokenizer, self.options.first_piece
        pad_id = getattr(self.lens.adapter.config, "pad_token_id", None)
        place = place_of(position, self.head, sequence, tokenizer, pad_id)
        columns = [
            None
            if word is None
            else column_of(word, self.head, tokenizer, sequence, place, first_piece, what)
            for what, word in (("target", target), ("contrast", contrast))
        ]
        if columns[0] is not None and columns[0] == columns[1]:
            raise InputError(
                "target and contrast are the same, so there is no difference to explain"
            )
        return Question(index, place, columns[0], columns[1])

    def _each_next(
        self, index: int, sequence: Encoded, target: Any, contrast: Any
    ) -> list[Question]:
        """A question for each next token of a text."""
        if self.head.task != CAUSAL:
            raise InputError(
                f"position='all' explains next tokens; this model is a {self.head.task}"
            )
        if target is not None or contrast is not None:
            raise InputError(
                "position='all' explains each next token of the text, so leave target and contrast "
                "out"
            )
        if len(sequence) < 2:
            raise InputError("the text has one token, so it has no next one; give a longer text")
        return [
            self._question(index, sequence, sequence.ids[place + 1], None, place)
            for place in range(len(sequence) - 1)
        ]


class _Directions:
    """Questions about a vector's share of another, behind a layer or the model's last step."""

    def __init__(self, lens: Lens, direction: Any, layer: Any):
        self.lens = lens
        self.layer = None if layer is None else checked_layer(layer, lens.n_layers)
        width = _end_width(lens) if self.layer is None else lens.layers[self.layer].d_model
        self.direction = direction_of(direction, width)
        self.head = Head("direction", ANY, tuple(lens.adapter.end()))

    def questions(
        self, index: int, sequence: Encoded, target: Any, contrast: Any, position: Any
    ) -> Question:
        if isinstance(position, str):
            raise InputError(
                "a direction is read at one position, a number; give several in a list"
            )
        if position is None and self.lens.causal:
            position = len(sequence) - 1
        place = place_of(position, self.head, sequence, self.lens.tokenizer, None)
        return Question(index, place, direction=self.direction, layer=self.layer)


def _end_width(lens: Lens) -> int:
    """The width of the model's last vectors."""
    width = lens.layers[-1].d_model
    for step in lens.adapter.end():
        linear = getattr(step, "linear", None)
        width = width if linear is None else linear.weight.shape[1]
    return width


def checked_layer(layer: Any, count: int) -> int:
    """A layer from 0, negative ones from the end."""
    if isinstance(layer, bool) or not hasattr(layer, "__index__") or not -count <= layer < count:
        raise InputError(f"layer {layer!r} is out of range; the model has layers 0 to {count - 1}")
    return int(layer) % count


def predicted_places(pair: Pair) -> list[int]:
    """The decoder's positions at which a token of the target is predicted.

    The token behind position p is token p of the target. What is behind the last position is part
    of the target only if it is known.
    """
    target = pair.target
    return list(range(len(target) if target.end is not None else len(target) - 1))


class _TargetTokens:
    """Questions about the tokens of an encoder–decoder's target."""

    def __init__(self, lens: Lens, options: ExplainOptions):
        self.lens, self.options, self.head = lens, options, read_head(lens.adapter)
        self.reader = SideReader(lens.tokenizer, is_target=True)

    def questions(
        self, index: int, pair: Pair, target: Any, contrast: Any, position: Any
    ) -> Question | list[Question]:
        if position != ALL:
            return self._question(index, pair, self.place(pair, position), contrast)
        if contrast is not None:
            raise InputError("token='all' explains each token in turn, so leave contrast out")
        places = predicted_places(pair)
        if not places:
            raise InputError("the target has no token that could be explained; give a longer one")
        return [self._question(index, pair, place, None) for place in places]

    def _question(self, index: int, pair: Pair, place: int, contrast: Any) -> Question:
        """Why the token of the target behind position `place`, or why it and not `contrast`."""
        target = pair.target
        following = [*target.ids[1:], target.end]
        against = None if contrast is None else self._column(contrast, pair, place)
        if against is not None and against == following[place]:
            raise InputError(
                "token and contrast are the same, so there is no difference to explain"
            )
        return Question(index, place, following[place], against)

    def place(self, pair: Pair, token: Any) -> int:
        """The position that predicts what `token` names."""
        if token is None:
            return self._last(pair)
        if isinstance(token, str):
            return self._of_word(pair, token)
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InputError(f"token is a place, a word or {ALL!r}, not {token!r}")
        count = len(pair.target)
        if not -count <= int(token) < count:
            raise InputError(
                f"token {token} is out of range; the target's tokens are 0 to {count - 1} "
                f"({self._shown(pair)})"
            )
        return int(token) % count

    def _last(self, pair: Pair) -> int:
        """The last token of the text, or what the model says where there is no text yet."""
        special = pair.target.special
        ordinary = [k for k in range(1, len(pair.target)) if not (special and special[k])]
        return ordinary[-1] - 1 if ordinary else len(pair.target) - 1

    def _of_word(self, pair: Pair, word: str) -> int:
        target = pair.target
        wanted = word.strip()
        pieces: dict[Any, list[int]] = {}  # places of the tokens of each word of that name
        for k in range(1, len(target)):
            of_word = None if target.words is None else target.words[k]
            if of_word is not None and target.word_labels[of_word] == wanted:
                pieces.setdefault(of_word, []).append(k)
        if not pieces:
            shown = self._readable(target.ids)
            names = (wanted, SPACE + wanted)
            pieces = {k: [k] for k in range(1, len(target)) if shown[k] in names}
        if not pieces:
            raise InputError(
                f"the target has no token {word!r}; its tokens are {self._shown(pair)}. Ask why it "
                "is not there with contrast=…"
            )
        if len(pieces) > 1:
            places = ", ".join(str(places[0] - 1) for places in pieces.values())
            raise InputError(
                f"{word!r} stands {len(pieces)} times in the target; say which one is meant by its "
                f"place: token={places.replace(', ', ' or ')}"
            )
        (places_of_word,) = pieces.values()
        if len(places_of_word) > 1 and not self.options.first_piece:
            parts = " + ".join(self._readable([target.ids[k] for k in places_of_word]))
            raise InputError(
                f"{word!r} is {len(places_of_word)} tokens of the target ({parts}) and a model "
                f"predicts one at a time; name one by its place (token={places_of_word[0] - 1} to "
                f"{places_of_word[-1] - 1}), or take the first with first_piece=True "
                "(--first-piece)"
            )
        return places_of_word[0] - 1

    def _column(self, contrast: Target, pair: Pair, place: int) -> int:
        tokenizer, first_piece = self.lens.tokenizer, self.options.first_piece
        if not isinstance(contrast, str) or tokenizer is None:
            return column_of(
                contrast, self.head, tokenizer, pair.target, place, first_piece, "contrast"
            )
        assert self.head.output is not None
        count = self.head.output.weight.shape[1]
        pieces = self.reader.plain_ids(contrast)
        return one_token(contrast, pieces, tokenizer, count, first_piece, "contrast")

    def _readable(self, ids: Sequence[int]) -> list[str]:
        if self.lens.tokenizer is None:
            return [str(token) for token in ids]
        return readable(self.lens.tokenizer, ids)

    def _shown(self, pair: Pair) -> str:
        """The target's tokens in words, without the one that starts it."""
        end = [] if pair.target.end is None else [pair.target.end]
        return " ".join(self._readable([*pair.target.ids[1:], *end]))

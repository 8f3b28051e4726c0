"""Turn a call of `Lens.explain` into questions, and their answers into explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.questions import (
    ALL,
    Question,
    Target,
    checked_position,
    column_of,
    direction_of,
    one_token,
    place_of,
    readable,
    score_question,
)
from normlens.inputs.pairs import SideReader
from normlens.inputs.text import Encoded, Pair
from normlens.layers import ANY, CAUSAL, Head
from normlens.models.base import read_head
from normlens.options import ExplainOptions
from normlens.pipeline.progress import Progress
from normlens.results.axes import SPACE
from normlens.results.explanation import Explanation, Explanations

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
Targets = Target | Sequence[Target | None] | None
Positions = int | str | Sequence[int | str | None] | None


def ask(
    lens: Lens,
    encoded: Sequence[Encoded],
    many: bool,
    target: Targets,
    contrast: Targets,
    position: Positions,
    direction: Any,
    layer: int | None,
    options: ExplainOptions,
    progress: Progress | None = None,
) -> Any:
    """Answer what a call of `Lens.explain` asks; a list where any part of it was a list."""
    if direction is not None:
        return _ask_direction(
            lens, encoded, many, target, contrast, position, direction, layer, options, progress
        )
    if layer is not None:
        raise InputError("layer goes with direction=…; a target is read at the model's end")
    head = read_head(lens.adapter)
    lists = [value for value in (target, contrast, position) if is_list(value)]
    count = question_count([len(encoded)] if many else [], lists)
    sequences = spread(list(range(len(encoded))) if many else 0, count)
    parts = zip(
        sequences,
        spread(target, count),
        spread(contrast, count),
        spread(position, count),
        strict=True,
    )
    questions: list[Question] = []
    answers_of: list[slice | int] = []
    for index, wanted, against, place in parts:
        if place == ALL:
            asked = _each_next(lens, index, encoded[index], head, wanted, against, options)
            answers_of.append(slice(len(questions), len(questions) + len(asked)))
            questions += asked
            continue
        if isinstance(place, str):
            raise InputError(f"position is a number or {ALL!r}, not {place!r}")
        answers_of.append(len(questions))
        questions.append(
            _question(lens, index, encoded[index], head, wanted, against, place, options)
        )
    explained = Explainer(lens, head, options, progress).explain(encoded, questions)
    answers = [
        Explanations(explained[place]) if isinstance(place, slice) else explained[place]
        for place in answers_of
    ]
    return answers if many or lists else answers[0]


def _question(
    lens: Lens,
    index: int,
    sequence: Encoded,
    head: Head,
    target: Any,
    contrast: Any,
    position: Any,
    options: ExplainOptions,
) -> Question:
    pad_id = getattr(lens.adapter.config, "pad_token_id", None)
    return score_question(
        index,
        sequence,
        head,
        lens.tokenizer,
        pad_id,
        target,
        contrast,
        position,
        options.first_piece,
    )


def _each_next(
    lens: Lens,
    index: int,
    sequence: Encoded,
    head: Head,
    target: Any,
    contrast: Any,
    options: ExplainOptions,
) -> list[Question]:
    """A question for each next token of a text."""
    if head.task != CAUSAL:
        raise InputError(f"position='all' explains next tokens; this model is a {head.task}")
    if target is not None or contrast is not None:
        raise InputError(
            "position='all' explains each next token of the text, so leave target and contrast out"
        )
    if len(sequence) < 2:
        raise InputError("the text has one token, so it has no next one; give a longer text")
    return [
        _question(lens, index, sequence, head, sequence.ids[place + 1], None, place, options)
        for place in range(len(sequence) - 1)
    ]


def _ask_direction(
    lens: Lens,
    encoded: Sequence[Encoded],
    many: bool,
    target: Targets,
    contrast: Targets,
    position: Positions,
    direction: Any,
    layer: int | None,
    options: ExplainOptions,
    progress: Progress | None,
) -> list[Explanation] | Explanation:
    if target is not None or contrast is not None:
        raise InputError("give a target or a direction, not both")
    if layer is not None:
        checked = checked_layer(layer, lens.n_layers)
        d = lens.layers[checked].d_model
    else:
        checked = None
        d = _end_width(lens)
    vector = direction_of(direction, d)
    head = Head("direction", ANY, tuple(lens.adapter.end()))
    count = question_count([len(encoded)] if many else [], [position] if is_list(position) else [])
    sequences = spread(list(range(len(encoded))) if many else 0, count)
    questions = []
    for index, place in zip(sequences, spread(position, count), strict=True):
        sequence = encoded[index]
        if isinstance(place, str):
            raise InputError(
                "a direction is read at one position, a number; give several in a list"
            )
        if place is None:
            place = len(sequence) - 1 if lens.causal else None
        where = (
            place_of(place, head, sequence, lens.tokenizer, None)
            if place is None
            else checked_position(place, len(sequence))
        )
        questions.append(Question(index, where, direction=vector, layer=checked))
    answers = Explainer(lens, head, options, progress).explain(encoded, questions)
    return answers if many or is_list(position) else answers[0]


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


# From the words of a call of `Lens.explain` about an encoder–decoder to questions and answers.


#: Which token of the target is explained: its place from 0, a word, or "all".
Token: TypeAlias = int | str
Tokens: TypeAlias = Token | Sequence[Token | None] | None


def ask_pairs(
    lens: Lens,
    pairs: Sequence[Pair],
    many: bool,
    token: Tokens,
    contrast: Any,
    options: ExplainOptions,
    progress: Progress | None = None,
) -> Any:
    """Answer what a call asks about tokens of targets; a list where any part of it was a list."""
    head = read_head(lens.adapter)
    lists = [value for value in (token, contrast) if is_list(value)]
    count = question_count([len(pairs)] if many else [], lists)
    parts = zip(
        spread(list(range(len(pairs))) if many else 0, count),
        spread(token, count),
        spread(contrast, count),
        strict=True,
    )
    asking = _Asking(lens, head, options)
    questions: list[Question] = []
    answers_of: list[slice | int] = []
    for index, wanted, against in parts:
        pair = pairs[index]
        if wanted == ALL:
            if against is not None:
                raise InputError("token='all' explains each token in turn, so leave contrast out")
            places = predicted_places(pair)
            if not places:
                raise InputError(
                    "the target has no token that could be explained; give a longer one"
                )
            answers_of.append(slice(len(questions), len(questions) + len(places)))
            questions += [asking.question(index, pair, place, None) for place in places]
            continue
        answers_of.append(len(questions))
        questions.append(asking.question(index, pair, asking.place(pair, wanted), against))
    explained = Explainer(lens, head, options, progress).explain(pairs, questions)
    answers = [
        Explanations(explained[place]) if isinstance(place, slice) else explained[place]
        for place in answers_of
    ]
    return answers if many or lists else answers[0]


def predicted_places(pair: Pair) -> list[int]:
    """The decoder's positions at which a token of the target is predicted.

    The token behind position p is token p of the target. What is behind the last position is part
    of the target only if it is known.
    """
    target = pair.target
    return list(range(len(target) if target.end is not None else len(target) - 1))


class _Asking:
    """Judges questions before the model runs."""

    def __init__(self, lens: Lens, head: Head, options: ExplainOptions):
        self.lens, self.head, self.options = lens, head, options
        self.reader = SideReader(lens.tokenizer, is_target=True)

    def question(self, index: int, pair: Pair, place: int, contrast: Any) -> Question:
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

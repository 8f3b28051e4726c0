"""From the words of a call of `Lens.explain` about an encoder–decoder to questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from normlens.advancing import Progress
from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.questions import ALL, Question
from normlens.explain.spreading import is_list, question_count, spread
from normlens.explain.words import Target, column_of, one_token, readable
from normlens.explain_options import ExplainOptions
from normlens.heads import Head
from normlens.models.heads import read_head
from normlens.pairs import Pair
from normlens.results.explanations import Explanations
from normlens.results.tokens import SPACE
from normlens.text_sides import SideReader

if TYPE_CHECKING:
    from normlens.lens import Lens

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

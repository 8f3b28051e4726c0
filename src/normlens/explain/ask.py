"""From the words of a call of `Lens.explain` to questions and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.advancing import Progress
from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.questions import (
    ALL,
    Question,
    checked_position,
    direction_of,
    place_of,
    score_question,
)
from normlens.explain.spreading import is_list, question_count, spread
from normlens.explain.words import Target
from normlens.explain_options import ExplainOptions
from normlens.heads import ANY, CAUSAL, Head
from normlens.models.heads import read_head
from normlens.results.explanation import Explanation
from normlens.results.explanations import Explanations
from normlens.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens

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

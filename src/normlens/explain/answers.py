"""From the numbers of one score to the explanation that a user gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.analysing.packing import token_axis
from normlens.analysing.provenance import provenance
from normlens.analysing.verdicts import SCORE_TOLERANCE
from normlens.explain.packing import Packed, Said
from normlens.explain.questions import Question
from normlens.explain.words import label_of
from normlens.explain_options import ExplainOptions
from normlens.heads import Head
from normlens.models.two_stacks import TwoStacks
from normlens.pairs import Item, Pair, texts_of
from normlens.results.explanation import Explanation

if TYPE_CHECKING:
    from normlens.lens import Lens


def explanation(
    lens: Lens,
    head: Head,
    options: ExplainOptions,
    item: Item,
    question: Question,
    said: Said,
    packed: Packed,
) -> Explanation:
    """The answer to one question."""
    names = [label_of(column, head, lens.tokenizer) for column in said.columns]
    completeness = max(packed.errors)
    probabilities = said.probabilities or (None, None)

    def second(values: Sequence[Any]) -> Any:
        return values[1] if len(names) > 1 else None

    return Explanation(
        task="direction" if question.direction is not None else head.task,
        position=question.position,
        layer=question.layer,
        target=names[0] if names else None,
        target_id=said.columns[0] if names else None,
        contrast=second(names),
        contrast_id=second(said.columns),
        value=said.value,
        target_value=said.scores[0] if names else None,
        contrast_value=second(said.scores),
        probability=probabilities[0],
        contrast_probability=second(probabilities),
        nodes=packed.nodes,
        component_names=packed.component_names,
        components=packed.components,
        heads=packed.heads,
        biases=packed.bias,
        flows=packed.flows,
        head_flow=packed.head_flow,
        completeness=completeness,
        provenance=_provenance(lens, head, options, completeness, item),
        cross_heads=packed.cross_heads,
        **_labels(lens, item),
    )


def _labels(lens: Lens, item: Item) -> dict[str, Any]:
    """The tokens of a sequence, or of both of a pair, and which of them are whose."""
    if isinstance(item, Pair):
        assert isinstance(lens.adapter, TwoStacks)
        axis, text = token_axis(item.source).followed_by(token_axis(item.target)), texts_of(item)
        two: dict[str, Any] = {
            "encoder_tokens": len(item.source),
            "encoder_layers": len(lens.adapter.encoder_blocks()),
        }
    else:
        axis, text, two = token_axis(item), item.text, {"grid": item.grid}
    return {
        "raw_tokens": axis.raw_tokens,
        "token_ids": axis.token_ids,
        "special": axis.special,
        "token_words": axis.token_words,
        "word_labels": axis.word_labels,
        "text": text,
        **two,
    }


def _provenance(
    lens: Lens, head: Head, options: ExplainOptions, completeness: float, item: Item
) -> dict[str, Any]:
    said = provenance(lens, options.nonlinearity, completeness, SCORE_TOLERANCE[lens.dtype])
    said["head"] = type(lens.adapter.whole).__name__
    if isinstance(item, Pair):
        said["target"] = item.generated or "given"
    if head.note is not None:
        said["note"] = head.note
    return said

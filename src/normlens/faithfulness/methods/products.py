"""Products of layers' maps: rollout of any scope or of weights, GlobEnc, ALTI, value zeroing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.explain.rollouts import PREFIX, RolloutOptions, check_method
from normlens.explain.rollouts import Method as Rollout
from normlens.explain.rollouts import method as rollout
from normlens.faithfulness.costs import every_source, no_passes
from normlens.faithfulness.methods.base import Method, MethodOptions, Scores
from normlens.faithfulness.methods.places import row_read
from normlens.faithfulness.questions import Question
from normlens.results.maps import Maps
from normlens.scopes import resolve

if TYPE_CHECKING:
    from normlens.lens import Lens

_SCOPES = {"rollout-weights": "ATTN-W"}


def rows(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, product: Rollout
) -> list[Scores]:
    """The rows (j,) of the whole model's maps that the scores are read from."""
    chosen = RolloutOptions(batch_size=options.batch_size, memory_limit=options.memory_limit)
    maps = product(lens, [question.encoded for question in questions], chosen)
    assert isinstance(maps, list)
    return [row_read(lens, q, _last(one)) for q, one in zip(questions, maps, strict=True)]


def _last(maps: Maps) -> Scores:
    """The map of the whole model: the product up to the last layer."""
    (scope,) = maps.scopes
    last: Scores = maps[scope][-1]
    return last


def check_product(lens: Lens, *, name: str) -> None:
    """Refuse layers that cannot be multiplied, or that do not have what the method asks for."""
    check_method(lens, name)
    if name.startswith(PREFIX):
        scope = resolve(_SCOPES.get(name, name.removeprefix(PREFIX)), lens.scopes)
        lacking = [i for i, layer in enumerate(lens.layers) if scope not in layer.scopes]
        if lacking:
            raise InputError(
                f"{name} needs {scope} in every layer; layer {lacking[0]} of {lens.name} has none"
            )


def product_method(name: str) -> Method:
    """The method of a rollout's name."""
    # ALTI takes the part of every source as a vector; others get norms without that.
    frozen = every_source if name == "alti" else no_passes
    return Method(
        name, partial(rows, product=rollout(name)), partial(check_product, name=name), frozen
    )

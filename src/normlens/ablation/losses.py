"""Losses by name: which one a model has, chosen by its head.

| name | loss of a sequence | model |
|---|---|---|
| next-token | mean −log p(next token), special tokens included | causal language model |
| masked | mean −log p(token) at seeded masks, 12 % of the ordinary tokens | masked language model |
| classes | −log p(label) | sequence classifier |
| drift | 1 − cos(vector, vector of the intact model), the mean of a pair | any body |

Scores are those that the model computes, logarithms are taken in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens import layers
from normlens.ablation.loss_base import Loss
from normlens.ablation.loss_names import AUTO
from normlens.ablation.sentence_losses import ClassLoss, DriftLoss
from normlens.ablation.token_losses import MaskedLoss, NextTokenLoss
from normlens.errors import InputError, UnsupportedModelError
from normlens.models.base import NoHead, read_head

if TYPE_CHECKING:
    from normlens.lens import Lens

LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (NextTokenLoss, MaskedLoss, ClassLoss, DriftLoss)
}
_BY_TASK = {
    layers.CAUSAL: NextTokenLoss,
    layers.MASKED: MaskedLoss,
    layers.SEQUENCES: ClassLoss,
}


def choose_loss(lens: Lens, name: str = AUTO, *, seed: int = 0) -> Loss:
    """The loss of this name; "auto" is that of the model's head, or drift where it has none.

    A loss that the model does not have is refused in one line.
    """
    if any(layer.by_source for layer in lens.layers):
        raise UnsupportedModelError(
            f"ablations are not written for layers like those of {lens.name}, with several "
            "feed-forward blocks or a bottleneck"
        )
    if lens.two_stacks:
        raise UnsupportedModelError(
            f"{lens.name} is an encoder–decoder; ablations measure losses of models that read one "
            "sequence"
        )
    if name != AUTO and name not in LOSSES:
        raise InputError(f"unknown loss {name!r}; choose one of: {', '.join((AUTO, *LOSSES))}")
    kind = LOSSES[_loss_of(lens) if name == AUTO else name]
    return kind(lens, seed=seed)


def _loss_of(lens: Lens) -> str:
    try:
        task = read_head(lens.adapter).task
    except NoHead:
        return DriftLoss.name
    if task not in _BY_TASK:
        raise InputError(
            f"there is no loss for {lens.name}, a {task}; ask for the drift of its vectors "
            f"({DriftLoss.name})"
        )
    return _BY_TASK[task].name

"""What an ablation will do, settled before anything long starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from normlens.ablation.data import AblationData, open_ablation_data
from normlens.ablation.loss_base import Loss
from normlens.ablation.loss_names import CLASSES
from normlens.ablation.losses import choose_loss
from normlens.ablation.measure import AblationMeasure
from normlens.ablation.options import AblateOptions

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Prepared:
    """The loss of an ablation, its data, and its measure, which may wait for statistics."""

    loss: Loss
    data: AblationData
    measure: AblationMeasure
    gathers: bool  # whether the measure needs the statistics of a first pass


def prepare(lens: Lens, options: AblateOptions) -> Prepared:
    """Choose the loss, open the data, and refuse what the model or the data does not have."""
    loss = choose_loss(lens, options.loss, seed=options.seed)
    data = open_ablation_data(options, loss.name)
    column = data.extra[0] if data.extra else None
    measure = AblationMeasure(
        components=options.components,
        kinds=options.kinds,
        layers=options.layers,
        draws=options.draws,
        loss=loss.name,
        label=column if loss.name == CLASSES else None,
        score=None if loss.name == CLASSES else column,
        apart=data.apart,
        seed=options.seed,
    )
    gathers = any(ablation.needs_statistics for ablation in measure.planned(lens))
    return Prepared(loss, data, measure, gathers)

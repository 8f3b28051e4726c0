"""Attribution through all layers by a product of maps: what only approximates the frozen network.

>>> maps = normlens.rollouts.alti(lens, "She teaches soap opera history.")
>>> maps = normlens.rollouts.method("rollout-LN1")(lens, ["one text", "another"])

Every method takes a lens and a text (or a list, which gives a list) and returns `Maps` whose
sources are the model's input tokens: [layer, target, source], the last layer for the whole model.
"""

from normlens.analysis import rollout
from normlens.rollouts.alti_rollout import alti
from normlens.rollouts.globenc_rollout import globenc
from normlens.rollouts.layerwise import RolloutOptions
from normlens.rollouts.registry import METHODS, Method, method, rollout_of_scope, rollout_of_weights
from normlens.rollouts.value_zeroing_rollout import value_zeroing

__all__ = [
    "METHODS",
    "Method",
    "RolloutOptions",
    "alti",
    "globenc",
    "method",
    "rollout",
    "rollout_of_scope",
    "rollout_of_weights",
    "value_zeroing",
]

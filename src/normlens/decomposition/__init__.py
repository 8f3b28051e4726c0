"""The algebra of parts: from a layer's weights, input and attention to its norms."""

from normlens.decomposition.frozen import FrozenLayer, freeze
from normlens.decomposition.norm_maps import decompose_layer, layer_maps
from normlens.decomposition.results import LayerMaps
from normlens.decomposition.settings import Settings
from normlens.nonlinearities import RULES

__all__ = [
    "RULES",
    "FrozenLayer",
    "LayerMaps",
    "Settings",
    "decompose_layer",
    "freeze",
    "layer_maps",
]

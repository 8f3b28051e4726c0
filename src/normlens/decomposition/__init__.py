"""The algebra of parts: from a layer's weights, input and attention to its norms."""

from normlens.decomposition.layer import LayerMaps, decompose_layer
from normlens.decomposition.rules import RULES

__all__ = ["RULES", "LayerMaps", "decompose_layer"]

"""Pictures of maps, explanations and cosines: figures without global state or display.

Rows are targets i (outputs), columns are sources j (inputs). Layers count from 0, in
arguments and in pictures.
"""

from normlens.figures.canvas import require_matplotlib
from normlens.figures.colours import COLOUR_SCALES
from normlens.figures.explanations import (
    plot_citation,
    plot_components,
    plot_explanation,
    plot_flow,
    plot_shares,
)
from normlens.figures.heat_maps import plot_patches
from normlens.figures.matrices import (
    head_scope,
    plot_amplification,
    plot_cosine,
    plot_explanations,
    plot_heads,
    plot_layer,
    plot_overview,
    plot_similarity,
)

__all__ = [
    "COLOUR_SCALES",
    "head_scope",
    "plot_amplification",
    "plot_citation",
    "plot_components",
    "plot_cosine",
    "plot_explanation",
    "plot_explanations",
    "plot_flow",
    "plot_heads",
    "plot_layer",
    "plot_overview",
    "plot_patches",
    "plot_shares",
    "plot_similarity",
    "require_matplotlib",
]

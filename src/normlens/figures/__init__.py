"""Pictures of maps, explanations and cosines: figures without global state or display.

Rows are targets i (outputs), columns are sources j (inputs). Layers count from 0, in
arguments and in pictures.
"""

from normlens.figures.amplification_map import plot_amplification
from normlens.figures.canvas import require_matplotlib
from normlens.figures.colour_scales import COLOUR_SCALES
from normlens.figures.component_bars import plot_components
from normlens.figures.cosine_matrix import plot_cosine
from normlens.figures.explanation_strip import plot_explanation
from normlens.figures.flow_picture import plot_flow
from normlens.figures.head_grid import head_scope, plot_heads
from normlens.figures.layer_panels import plot_layer
from normlens.figures.next_token_matrix import plot_explanations
from normlens.figures.overview_grid import plot_overview
from normlens.figures.patch_panels import plot_patches
from normlens.figures.sequence_shares import plot_shares
from normlens.figures.similarity_lines import plot_similarity

__all__ = [
    "COLOUR_SCALES",
    "head_scope",
    "plot_amplification",
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

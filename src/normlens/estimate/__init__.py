"""The cost of an analysis before it runs: operations and memory from a model's sizes alone.

| module | holds |
|---|---|
| `sizes` | a model without weights, and the sizes that decide its layers' costs |
| `asked` | what a user asks, judged as the lens judges it |
| `request` | the analysis to estimate, and its device |
| `plans` | the plan of each layer's feed-forward stage |
| `attention_walk` | operations before the feed-forward block |
| `operations`, `memory` | the costs, item by item |
| `whole` | the estimate of a batch |

The formulas of the feed-forward stage are those of `decomposition.costs`, which plan the run, too.
"""

from normlens.estimate.asked import check_lengths, check_memory_limit, layers_and_scopes
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes, sizes_of, skeleton
from normlens.estimate.whole import Estimate, Stage, estimate

__all__ = [
    "Analysis",
    "Estimate",
    "LayerSizes",
    "ModelSizes",
    "Stage",
    "check_lengths",
    "check_memory_limit",
    "estimate",
    "layers_and_scopes",
    "sizes_of",
    "skeleton",
]

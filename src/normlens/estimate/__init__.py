"""What an analysis costs, before it runs: operations and memory from a model's sizes alone.

| module | holds |
|---|---|
| `sizes` | a model without weights, and what its layers' costs depend on |
| `request` | what is asked for, on which device |
| `plans` | the way that each layer's feed-forward stage will take |
| `operations`, `memory` | what that costs, item by item |
| `whole` | the estimate of a batch |

The formulas of the feed-forward stage are those of `decomposition.costs`, by which it is run.
"""

from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes, sizes_of, skeleton
from normlens.estimate.whole import Estimate, estimate

__all__ = [
    "Analysis",
    "Estimate",
    "LayerSizes",
    "ModelSizes",
    "estimate",
    "sizes_of",
    "skeleton",
]

"""Names of precisions that a user can choose; this module does not need torch."""

from __future__ import annotations

AUTO = "auto"
#: Precisions of a model's weights, by torch's names.
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Precisions of feed-forward products, for the fused kernels; tiles are as exact as the weights.
PRECISIONS = (AUTO, "float32", "tf32", "bfloat16")

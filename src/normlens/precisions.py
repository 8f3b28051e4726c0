"""Names of precisions that may be asked for; nothing here needs torch."""

from __future__ import annotations

AUTO = "auto"
#: Of a model's weights, by torch's own names.
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Of feed-forward products. It binds the fused kernels; tiles are never less exact than weights.
PRECISIONS = (AUTO, "float32", "tf32", "bfloat16")

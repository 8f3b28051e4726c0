"""Names of precisions that a user can choose; this module does not need torch."""

from __future__ import annotations

AUTO = "auto"
#: The precision in which a checkpoint was saved.
CHECKPOINT = "checkpoint"
#: Precisions of a model's weights, by torch's names.
DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Precisions of feed-forward products, for the fused kernels; tiles are as exact as the weights.
PRECISIONS = (AUTO, "float32", "tf32", "bfloat16")
#: Precisions of the maps that a call returns; "auto" is the algebra's, float32 for most models.
MAP_DTYPES = (AUTO, "float32", "float16")
#: What completeness is about in half precision; in float32 it is about 1e-06.
HALF = {"float16": 1e-3, "bfloat16": 1e-2}


def cost_in_words(dtype: str) -> str:
    """What half precision costs in completeness, to stand behind it; "" for others."""
    return f" in {dtype}, about 1e-06 in float32" if dtype in HALF else ""


def expected_in_words(dtype: str) -> str:
    """What completeness to expect of a model in half precision; "" for others."""
    return f", completeness about {HALF[dtype]:.0e}{cost_in_words(dtype)}" if dtype in HALF else ""

"""What a model family is written with: classes to derive from, `register`, and modules as maps."""

from __future__ import annotations

from normlens.models.adapter import Adapter, Change, Decoder
from normlens.models.modules import (
    columns,
    head_columns,
    interleaved_values,
    layer_norm,
    linear,
    rms_norm,
    scaled,
    sublayers,
)
from normlens.models.registry import (
    adapt,
    adapter_class,
    bring_installed_families,
    register,
    supported_families,
    tiny_settings,
)

__all__ = [
    "Adapter",
    "Change",
    "Decoder",
    "adapt",
    "adapter_class",
    "bring_installed_families",
    "columns",
    "head_columns",
    "interleaved_values",
    "layer_norm",
    "linear",
    "register",
    "rms_norm",
    "scaled",
    "sublayers",
    "supported_families",
    "tiny_settings",
]

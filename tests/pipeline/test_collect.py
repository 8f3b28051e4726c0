"""Results of layers as they come in."""

from __future__ import annotations

import torch

from normlens.frozen.norm_maps import LayerMaps
from normlens.layers import Layer
from normlens.models import adapt
from normlens.options import Request, Settings
from normlens.pipeline.collect import Collected
from normlens.pipeline.layer_results import Columns
from normlens.trace.checks import Checks


def test_the_kernels_precision_is_kept_where_some_layers_have_none(tiny):
    """Experts run in PyTorch, whose float32 is not what the other layers' errors are judged by."""
    adapter = adapt(tiny("deepseek_v3", torch.float32))
    layers: list[Layer] = [adapter.layer(block) for block in adapter.blocks()]
    collected = Collected(
        Columns([3]), Request([], [0, 1], Settings("ig")), Checks(adapter, torch.float32, [3])
    )
    kernel = LayerMaps(precision="tf32", kernel_error=torch.tensor(5e-4))
    collected.add(kernel, 0, layers[0])
    collected.add(LayerMaps(precision="float32"), 1, layers[1])
    assert collected.precision == "tf32"

"""Results of layers as they come in."""

from __future__ import annotations

import torch

import normlens
from normlens.frozen.norm_maps import LayerMaps
from normlens.options import AnalysisOptions
from normlens.pipeline.call import Stack
from normlens.pipeline.collector import Collector


def test_the_kernels_precision_is_kept_where_some_layers_have_none(tiny):
    """Experts run in PyTorch, whose float32 is not what the other layers' errors are judged by."""
    lens = normlens.load(tiny("deepseek_v3", torch.float32))
    stack = Stack(lens.layers, [0, 1], [], AnalysisOptions())
    collector = Collector(lens, stack, lens.encode(input_ids=[1, 2, 3]))
    kernel = LayerMaps(precision="tf32", kernel_error=torch.tensor(5e-4))
    collector.add(kernel, 0, lens.layers[0])
    collector.add(LayerMaps(precision="float32"), 1, lens.layers[1])
    assert collector.computed.precision == "tf32"

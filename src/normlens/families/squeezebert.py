"""SqueezeBERT: BERT's block whose linear maps are convolutions of single tokens, in groups.

Inside its encoder vectors are (b, d, i), and the encoder calls its layers' `forward`, which no hook
sees. While the model is read, stand-ins around its convolutions and norms turn vectors there and
back, so that every module takes and gives (b, i, d) and hooks see all of them; what is computed is
the same to the last bit.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.families.bert import Bert
from normlens.gpu.matmul import formed, lazy_tensor
from normlens.layers import Attention, FeedForward, Linear
from normlens.models.base import register
from normlens.models.reading import UnreadableModule, read_tensor, without_idle_adapters
from normlens.models.tiny import ENCODER
from normlens.trace.locking import Change

Function = Callable[..., Any]


@register(
    "squeezebert",
    tiny=dict(
        ENCODER,
        embedding_size=16,
        q_groups=4,
        k_groups=4,
        v_groups=4,
        post_attention_groups=1,
        intermediate_groups=4,
        output_groups=4,
    ),
)
class SqueezeBert(Bert):
    causal = False
    layers_path = "encoder.layers"
    norms = "post_attention.layernorm", "output.layernorm"

    def attention(self, block: Any) -> Attention:
        attention, output = block.attention, block.post_attention.conv1d
        heads = attention.num_attention_heads
        return Attention(
            value=convolution(attention.value),
            output=convolution(output),
            heads=heads,
            groups=heads,
            weights=attention.softmax,  # the attention itself returns its scores
            module=output,
        )

    def feed_forward(self, block: Any) -> FeedForward:
        return FeedForward(
            up=convolution(block.intermediate.conv1d),
            down=convolution(block.output.conv1d),
            activation=self.activation,
            module=block.output.conv1d,
        )

    def forward_patches(self) -> dict[tuple[nn.Module, str], Change]:
        encoder: Any = self.model.encoder
        blocks: Sequence[Any] = self.blocks()
        for block in blocks:
            self._check_hooks(block.attention.query, block.attention.key)
        called = SimpleNamespace(layers=[_Called(block) for block in blocks])
        changes: dict[tuple[nn.Module, str], Change] = {
            (encoder, "forward"): lambda _: partial(type(encoder).forward, called)
        }
        for block in blocks:
            attention, first, second = block.attention, block.post_attention, block.output
            changes |= {
                (module, "forward"): _turned_there_and_back
                for module in (
                    *(attention.query, attention.key, attention.value),
                    *(first.conv1d, first.layernorm),
                    *(block.intermediate.conv1d, second.conv1d, second.layernorm),
                )
            }
            changes[attention, "transpose_for_scores"] = _turned
            changes[attention, "transpose_key_for_scores"] = _turned
            changes[attention, "transpose_output"] = _turned_back
            changes[block, "forward"] = _in_a_tuple
        return changes

    def _check_hooks(self, *modules: nn.Module) -> None:
        """Refuse hooks that could change α with vectors in the other layout, which shows nowhere.

        What a hook changes elsewhere in a layer is no sum of its components, and refused for that.
        """
        for module in modules:
            if module._forward_hooks or module._forward_pre_hooks:
                raise UnsupportedModelError(
                    f"{self.name_of(module)} has a hook, which would see vectors as (b, i, d), not "
                    "as (b, d, i), while the model is read; take it off"
                )


class _Called:
    """A layer as the encoder takes it, whose `forward` calls the module, which hooks see."""

    def __init__(self, block: nn.Module):
        self.block = block

    def forward(self, vectors: Tensor, *args: Any) -> dict[str, Any]:
        output, *scores = self.block(vectors.mT, *args)
        names = ("feature_map", "attention_score")
        return dict(zip(names, (output.mT, *scores), strict=False))


def _turned(real: Function) -> Function:
    return lambda vectors: real(vectors.mT)


def _turned_back(real: Function) -> Function:
    return lambda vectors: real(vectors).mT


def _turned_there_and_back(real: Function) -> Function:
    return lambda vectors: real(vectors.mT).mT


def _in_a_tuple(real: Function) -> Function:
    return lambda *args: tuple(real(*args).values())


def convolution(module: Any) -> Linear:
    """A convolution of single tokens; in groups, its matrix is block-diagonal."""
    base = without_idle_adapters(module)
    weight = read_tensor(base, "weight")  # (out, in / groups, 1)
    if weight is None or weight.dim() != 3 or weight.shape[-1] != 1:
        raise UnreadableModule(
            base, "is no convolution of single tokens", "write an adapter for it"
        )
    matrix = weight.squeeze(-1).T
    if base.groups > 1:
        shape = base.in_channels, base.out_channels
        matrix = lazy_tensor(shape, weight.dtype, partial(_block_diagonal, weight, base.groups))
    return Linear(matrix, read_tensor(base, "bias"), module)


def _block_diagonal(weight: Tensor, groups: int) -> Tensor:
    with torch.no_grad():
        blocks = formed(weight).detach().squeeze(-1).unflatten(0, (groups, -1))
        return torch.block_diag(*blocks.mT)  # each (in, out) of its group

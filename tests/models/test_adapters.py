"""Models that no adapter knows, and adapters that users write."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import transformers
from one_case import in_one_case
from packaging.version import Version
from reference import largest_error, reference
from torch import nn

import normlens
from normlens.errors import CompletenessError, InputError, UnsupportedModelError
from normlens.layers import Attention, Branch, FeedForward, Linear, Residual
from normlens.models import adapter_class, base, refusals
from normlens.models.base import layer_norm, linear, tiny_settings
from normlens.models.tiny import tiny_config, tiny_families

IDS = [3, 9, 1, 14, 5]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))
    monkeypatch.setattr(base, "_TINY", dict(base._TINY))


# Models that are not supported --------------------------------------------------------------------


def tiny_transformer(model_type: str, **settings) -> nn.Module:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.for_model(model_type, **settings))


def test_an_unknown_model_type_is_named_with_what_to_do():
    model = tiny_transformer("xlnet", vocab_size=64, d_model=16, n_layer=1, n_head=2, d_inner=24)
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(model)
    message = str(raised.value)
    assert "'xlnet'" in message
    assert "`normlens models` lists the types that are" in message
    assert "normlens.Adapter" in message
    assert '@normlens.register("xlnet")' in message
    assert "\n" not in message


@in_one_case("model_type", sorted(refusals.REASONS))
def test_a_type_that_cannot_be_supported_says_why(model_type):
    with pytest.raises(UnsupportedModelError) as raised:
        adapter_class(SimpleNamespace(model_type=model_type))
    message = str(raised.value)
    assert message.startswith(f"model type {model_type!r} is not supported: ")
    assert refusals.REASONS[model_type] in message
    assert "\n" not in message
    assert model_type not in base.supported_families()


def test_types_that_cannot_be_supported_are_those_of_transformers():
    """A name that is spelt otherwise there would never be met."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if Version(transformers.__version__) < Version("5.22"):
        pytest.skip("some came with later releases")
    assert set(refusals.REASONS) <= set(CONFIG_MAPPING_NAMES)


# An adapter of one's own --------------------------------------------------------------------------


class ToyAttention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        weights = scores.softmax(-1)
        return self.output((weights @ v).transpose(1, 2).flatten(-2)), weights


class ToyBlock(nn.Module):
    def __init__(self, d: int, heads: int, m: int):
        super().__init__()
        self.attention = ToyAttention(d, heads)
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, m), nn.Linear(m, d)

    def forward(self, x, mask):
        y = self.norm(x + self.attention(x, mask)[0])
        return y + self.down(F.silu(self.up(y)))


class Toy(nn.Module):
    """A model that is not of transformers: post-LN attention, no norm behind the feed-forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(model_type="toy", vocab_size=20, pad_token_id=0)
        self.embedding = nn.Embedding(20, 12)
        self.blocks = nn.ModuleList(ToyBlock(12, 3, 18) for _ in range(2))

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x, attention_mask)
        return x


class ToyAdapter(normlens.Adapter):
    def blocks(self):
        return list(self.model.blocks)

    def steps(self, block):
        return [
            Branch(),
            Attention(
                value=linear(block.attention.value),
                output=linear(block.attention.output),
                heads=3,
                groups=3,
                weights=block.attention,
                module=block.attention.output,
            ),
            Residual(),
            layer_norm(block.norm),
            Branch(),
            FeedForward(
                up=linear(block.up), down=linear(block.down), activation="silu", module=block.down
            ),
            Residual(),
        ]


def test_a_registered_adapter_works():
    assert normlens.register("toy")(ToyAdapter) is ToyAdapter
    model = Toy().double()
    lens = normlens.load(model)
    maps = lens.maps(input_ids=IDS)
    assert lens.component_sequence == "ATTN RES LN FF RES"
    assert maps.scopes[-1] == "ATTNRESLNFFRES-N"
    assert maps.completeness < 1e-12

    mask = torch.ones(1, len(IDS))
    with torch.no_grad():
        x = model.embedding(torch.tensor([IDS]))
        for position, block in enumerate(model.blocks):
            alpha = block.attention(x, mask)[1]
            expected = reference(lens.adapter.layer(block), x[0], alpha[0])
            for scope in maps.scopes:
                assert largest_error(maps[scope][position], expected.maps[scope]) < 1e-9
            x = block(x, mask)


class WrongValue(ToyAdapter):
    """Takes the keys for the values."""

    def steps(self, block):
        steps = super().steps(block)
        right = steps[1]
        steps[1] = Attention(
            linear(block.attention.key), right.output, 3, 3, right.weights, right.module
        )
        return steps


class WrongNorm(ToyAdapter):
    """Takes the norm for one that does not centre."""

    def steps(self, block):
        steps = super().steps(block)
        right = steps[3]
        steps[3] = type(right)(right.gamma, right.beta, right.eps, False, right.module)
        return steps


class WrongFeedForward(ToyAdapter):
    """Forgets a bias of the second layer's feed-forward block."""

    def steps(self, block):
        steps = super().steps(block)
        if block is self.model.blocks[1]:
            right = steps[5]
            down = Linear(right.down.weight)
            steps[5] = FeedForward(right.up, down, right.activation, module=right.module)
        return steps


class WrongResidual(ToyAdapter):
    """Takes the second residual connection from the layer's input."""

    def steps(self, block):
        steps = super().steps(block)
        return [steps[0], *steps[:4], *steps[5:]]


@in_one_case(
    ("adapter", "layer", "component", "scope"),
    [
        (WrongValue, 0, "ATTN", "ATTN-N"),
        (WrongNorm, 0, "LN", "ATTNRESLN-N"),
        (WrongFeedForward, 1, "FF", "ATTNRESLNFF-N"),
        (WrongResidual, 0, "RES", "ATTNRESLNFFRES-N"),
    ],
)
def test_a_wrong_adapter_is_told_where(adapter, layer, component, scope):
    normlens.register("toy")(adapter)
    lens = normlens.load(Toy())
    with pytest.raises(CompletenessError) as raised:
        lens.maps(input_ids=IDS)
    message = str(raised.value)
    assert f"layer {layer} at its {component} (scope {scope})" in message
    assert "relative error" in message
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lens.model.modules())


class TooManyBlocks(ToyAdapter):
    def blocks(self):
        return [*self.model.blocks, self.model.blocks[0]]


def test_an_adapter_that_miscounts_blocks():
    normlens.register("toy")(TooManyBlocks)
    with pytest.raises(UnsupportedModelError, match="ran 2 blocks where its adapter lists 3"):
        normlens.load(Toy()).maps(input_ids=IDS)


class NoWeights(ToyAdapter):
    def steps(self, block):
        steps = super().steps(block)
        right = steps[1]
        steps[1] = Attention(right.value, right.output, 3, 3, block.attention.query, right.module)
        return steps


def test_an_adapter_whose_weights_are_none():
    normlens.register("toy")(NoWeights)
    with pytest.raises(UnsupportedModelError, match="layer 0 returned no attention weights"):
        normlens.load(Toy()).maps(input_ids=IDS)


def test_register_takes_names():
    with pytest.raises(InputError, match="register"):
        normlens.register()
    with pytest.raises(InputError, match="register"):
        normlens.register(ToyAdapter)


def test_a_tiny_configuration_belongs_to_its_model_type():
    """Whoever registers another adapter for it may do without."""
    before = tiny_config("bert").to_dict()
    normlens.register("bert", "toy")(ToyAdapter)
    assert tiny_config("bert").to_dict() == before
    assert "toy" not in tiny_families()
    with pytest.raises(InputError, match=r"'toy' has no tiny configuration.*choose one of: albert"):
        tiny_config("toy")
    normlens.register("bert", tiny={**tiny_settings("bert"), "hidden_size": 8})(ToyAdapter)
    assert tiny_config("bert").hidden_size == 8
    assert tiny_config("roberta").hidden_size == 16

"""Models whose layers lie on several devices: each layer is analysed where its weights are.

A machine without several GPUs can try two things. Fake tensors say they are on two devices and
refuse to be mixed, but have no numbers. With accelerate's hooks, memory and disk are two places,
with numbers. Where there is a GPU, it and the CPU are two devices in earnest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import largest_error
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import AutoModelForCausalLM

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models import reading
from normlens.models.reading import execution_places
from normlens.models.tiny import tiny_config, tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline import call as calls
from normlens.pipeline.call import Call, stacks_of
from normlens.trace import checks
from normlens.trace.checks import Checks
from normlens.trace.run import LayerTrace

IDS = [3, 9, 27, 14, 5, 33, 8]
FAMILIES = ["bert", "gpt2", "llama", "gpt_neox", "mixtral", "t5", "bart"]


def moved(value: Any, device: torch.device) -> Any:
    """Tensors on another device, wherever they are in a call's arguments."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(moved(each, device) for each in value)
    if isinstance(value, dict):
        return {name: moved(each, device) for name, each in value.items()}
    return value


def runs_on(module: nn.Module, device: torch.device) -> None:
    """Have a module bring its arguments to its device, inside of its call as accelerate does."""
    forward = module.forward

    def brought(*args: Any, **kwargs: Any) -> Any:
        return forward(*moved(args, device), **moved(kwargs, device))

    module.forward = brought  # type: ignore[method-assign]
    module._hf_hook = None  # type: ignore[assignment] # accelerate's, which changes no number


def spread(model: nn.Module, first: torch.device, second: torch.device) -> list[torch.device]:
    """Put the later half of the blocks, and what follows them, on another device."""
    blocks = list(normlens.load(model).adapter.blocks())
    half = len(blocks) // 2
    places = [first if index < half else second for index in range(len(blocks))]
    for block, place in zip(blocks, places, strict=True):
        to_device(block, place)
        runs_on(block, place)
    within = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) not in within and not any(id(child) in within for child in module.modules()):
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if own:
                to_device(module, first)
                runs_on(module, first)
    return places


def to_device(module: nn.Module, device: torch.device) -> None:
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    there = tensor.detach().to(device)
                    is_parameter = store is part._parameters
                    store[name] = nn.Parameter(there, False) if is_parameter else there


def ids_of(lens: normlens.Lens) -> dict[str, Any]:
    return {"input_ids": IDS, **({"decoder_input_ids": [2, 5, 7]} if lens.two_stacks else {})}


# Without numbers --------------------------------------------------------------------------------

#: All fake tensors are without numbers, whichever device they say they are on.
FIRST, SECOND = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Tensors that know their device and refuse to be mixed with those of another."""
    # A parameter that is fake has the type of fake tensors.
    monkeypatch.setattr(reading, "nn", SimpleNamespace(**{**vars(nn), "Parameter": FakeTensor}))
    # What stands in for a second device must not look like weights that were never loaded.
    monkeypatch.setattr(checks, "execution_places", forward_patches)
    forget_tensors()
    with FakeTensorMode() as mode:
        yield mode
    forget_tensors()


def forget_tensors() -> None:
    """Empty every cache of the package: fake tensors are no good for anything else."""
    for name, module in list(sys.modules.items()):
        for value in vars(module).values() if name.startswith("normlens") else ():
            if hasattr(value, "cache_clear") and not isinstance(value, type):
                value.cache_clear()


def forward_patches(module: nn.Module) -> set[torch.device]:
    """The devices of a module, where SECOND is called a GPU."""
    return {torch.device("cuda:1") if p == SECOND else p for p in execution_places(module)}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mixtral"])
@pytest.mark.parametrize("map_dtype", ["auto", "float16"])
def test_no_two_devices_are_mixed(
    family: str, map_dtype: str, fake: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    places = spread(model, FIRST, SECOND)
    assert set(places) == {FIRST, SECOND} == execution_places(model)
    lens = normlens.load(model)
    assert lens.device == FIRST
    seen: list[torch.device] = []
    add, decompose = Checks.add, calls.layer_maps

    def watched(self: Checks, traced: LayerTrace) -> None:
        seen.append(traced.x.device)
        add(self, traced)
        weights = {linear.weight.device for linear in traced.layer.linear_maps}
        vectors = [*traced.alphas, *traced.real.values(), *traced.sources.values(), traced.output]
        assert {vector.device for vector in vectors} == weights == {traced.x.device}

    def decomposed(frozen: Any, *rest: Any, **options: Any) -> Any:
        result = decompose(frozen, *rest, **options)
        assert {norms.device for norms in result.norms.values()} == {frozen.x.device}
        return result

    monkeypatch.setattr(Checks, "add", watched)
    monkeypatch.setattr(calls, "layer_maps", decomposed)
    # The integral of a gate looks at its numbers first, as the choice of experts does.
    rule = "gradient" if family == "llama" else "ig"
    options = AnalysisOptions(heads=True, map_dtype=map_dtype, nonlinearity=rule)
    call = Call(lens, options, stacks_of(lens, options, True, not lens.two_stacks))
    if lens.two_stacks:
        items: Any = lens.encode_pairs(**ids_of(lens))
    else:
        items = lens.encode(input_ids=IDS)
    collectors = call._launch(items)
    assert seen == places
    for collector in collectors:
        gathered = [each for pieces in collector._pending._waiting.values() for each in pieces]
        assert FIRST in {each.device for each in gathered}
        collector._pending.stack_pending()  # nothing is left that could not be joined


def test_a_layer_on_two_devices_is_refused(fake: FakeTensorMode) -> None:
    model = tiny_model("llama")
    spread(model, FIRST, SECOND)
    to_device(model.layers[1].mlp, FIRST)
    with pytest.raises(UnsupportedModelError, match=r"layer 1 of LlamaModel .* cpu, cuda:1; a"):
        normlens.load(model).maps(input_ids=IDS)


@pytest.mark.parametrize("analysis", ["explain", "maps from the input"])
def test_what_needs_one_device_says_so(analysis: str, fake: FakeTensorMode) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama")).eval()
    spread(model, FIRST, SECOND)
    lens = normlens.load(model)

    def run() -> object:
        if analysis == "explain":
            return lens.explain(input_ids=IDS)
        return lens.maps(input_ids=IDS, origin="input")

    with pytest.raises(UnsupportedModelError, match="only maps of single layers"):
        run()


# On a GPU and the CPU ---------------------------------------------------------------------------


@pytest.mark.gpu
@in_one_case("first", ["cuda", "cpu"])
@in_one_case("family", FAMILIES)
def test_layers_on_a_gpu_and_on_the_cpu(family: str, first: str, tmp_path: Path) -> None:
    """Two devices in earnest: half of the layers on each."""
    places = [torch.device("cuda:0"), torch.device("cpu")]
    expected_lens = normlens.load(tiny_model(family), device="cpu")
    ids = ids_of(expected_lens)
    expected = expected_lens.maps(**ids, heads=True)
    model = tiny_model(family)
    spread(model, *(places if first == "cuda" else places[::-1]))
    lens = normlens.load(model)
    for asked in ({}, {"out": tmp_path / "maps.safetensors"}):
        maps = lens.maps(**ids, heads=True, **asked)
        both = [(maps, expected)]
        if expected.encoder is not None:
            assert maps.encoder is not None
            both.append((maps.encoder, expected.encoder))
        for found, wanted in both:
            for group in ("arrays", "mixing", "heads"):
                for name, array in wanted.groups[group].items():
                    assert largest_error(found.groups[group][name], array) < 1e-4, name
    if expected.encoder is None:
        assert set(maps.provenance["device"].split(", ")) == {"cuda:0", "cpu"}
    assert np.isfinite(maps.completeness)

"""The cost model of encoder–decoders against what tiny ones really multiply and hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from estimate_counting import LIMIT, MEMORY_FACTOR, OPERATIONS_FACTOR, PeakMemory, within
from torch.utils.flop_counter import FlopCounterMode

import normlens
from normlens.errors import InputError
from normlens.frozen import tiles
from normlens.models.tiny import tiny_config, tiny_encoder_decoders, tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline import batches
from normlens.plan import costs
from normlens.plan.estimate import (
    Analysis,
    automatic_batch,
    check_lengths,
    estimate,
    layers_and_scopes,
    sizes_of,
    skeleton,
)
from normlens.plan.method import KernelPlan, Plan

WIDE: dict[str, dict[str, int]] = {
    "bart": dict(d_model=64, encoder_ffn_dim=256, decoder_ffn_dim=192, max_position_embeddings=300),
    "mt5": dict(d_model=64, d_kv=16, d_ff=192),
}
#: Sources and targets: each longer than the other, and lengths at which matrices are cheaper.
LENGTHS = [(24, 9), (9, 24), (160, 120)]


@pytest.fixture(scope="module", params=list(WIDE))
def lens(request: pytest.FixtureRequest) -> normlens.Lens:
    return normlens.load(tiny_model(request.param, **WIDE[request.param]))


def ids(n: int) -> list[int]:
    return torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(n)).tolist()


def analysis_of(
    lens: normlens.Lens, n: int, m: int, scopes: Any = None, layers: Any = None, **options: Any
) -> Analysis:
    """What `lens.maps` would be asked."""
    asked = layers_and_scopes(lens, AnalysisOptions(scopes=scopes, layers=layers))
    return Analysis(tokens=n, target_tokens=m, **asked, memory_limit=LIMIT, **options)


@pytest.mark.parametrize(
    ("n", "m", "scopes"),
    [*((n, m, None) for n, m in LENGTHS), (24, 9, ["ATTN-N", "ATTNRES-N", "CROSS-N"]),
     (24, 9, ["FF"])],
)  # fmt: skip
def test_operations_and_memory_are_those_of_the_run(
    lens: normlens.Lens, n: int, m: int, scopes: Any
) -> None:
    given: Any = {"input_ids": ids(n), "decoder_input_ids": ids(m), "memory_limit": LIMIT}
    with FlopCounterMode(display=False) as counted:
        lens.maps(**given, scopes=scopes)
    with PeakMemory(lens.model) as held:
        fresh = normlens.load(lens.model)  # one that keeps nothing from the call before
        maps = fresh.maps(**given, scopes=scopes)
    # Results leave torch as NumPy arrays.
    arrays = [*maps.arrays.values(), *maps.encoder.arrays.values()]
    peak = held.peak + sum(array.nbytes for array in arrays)

    result = estimate(sizes_of(lens), analysis_of(lens, n, m, scopes))
    operations = counted.get_total_flops()
    assert within(result.total_operations, operations, OPERATIONS_FACTOR), operations
    assert within(result.working_memory, peak, MEMORY_FACTOR), peak


def test_a_batch_costs_as_much_as_its_pairs(lens: normlens.Lens) -> None:
    given: Any = {"input_ids": [ids(20)] * 3, "decoder_input_ids": [ids(12)] * 3}
    with FlopCounterMode(display=False) as counted:
        lens.maps(**given, batch_size=3, memory_limit=LIMIT)
    result = estimate(sizes_of(lens), analysis_of(lens, 20, 12, batch=3))
    assert within(result.total_operations, counted.get_total_flops(), OPERATIONS_FACTOR)


@pytest.mark.parametrize(("n", "m"), [(24, 9), (160, 120)])
def test_tiles_are_those_of_the_run(
    lens: normlens.Lens, n: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = []
    walk = tiles.scope_norms  # every tile goes through it once

    def counting(*args: Any, **options: Any) -> Any:
        walked.append(args)
        return walk(*args, **options)

    monkeypatch.setattr(tiles, "scope_norms", counting)
    lens.maps(input_ids=ids(n), decoder_input_ids=ids(m), scopes="FF", memory_limit=LIMIT)
    analysis = analysis_of(lens, n, m, "FF")
    sizes = sizes_of(lens)
    stages = estimate(sizes, analysis).stages
    assert [stage.name for stage in stages] == [
        "encoder", "decoder, sources of the decoder", "decoder, sources of the encoder",
    ]  # fmt: skip
    layers = [sizes.layers[index].stack for index in analysis.layers]
    counts = {stage.name: layers.count(stage.name.split(",")[0]) for stage in stages}
    assert len(walked) == sum(stage.tiles * counts[stage.name] for stage in stages)


def test_either_length_costs(lens: normlens.Lens) -> None:
    sizes = sizes_of(lens)
    both, longer_source, longer_target = (
        estimate(sizes, analysis_of(lens, n, m)) for n, m in [(20, 20), (40, 20), (20, 40)]
    )
    for longer in (longer_source, longer_target):
        assert longer.total_operations > both.total_operations
        assert longer.peak_memory > both.peak_memory
        assert longer.published > both.published


def test_layers_count_in_each_stack(lens: normlens.Lens) -> None:
    sizes = sizes_of(lens)
    one = estimate(sizes, analysis_of(lens, 20, 12, layers=[0]))
    whole = estimate(sizes, analysis_of(lens, 20, 12))
    assert one.operations["forward pass"] == whole.operations["forward pass"]
    assert one.operations["feed-forward pairs"] < whole.operations["feed-forward pairs"]


def test_on_a_gpu_kernels_do_both_groups(
    lens: normlens.Lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sequence in squares as long as the targets: 20 sources of 8 targets are three."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sizes = sizes_of(lens)
    stages = estimate(sizes, analysis_of(lens, 20, 8, device="cuda")).stages
    assert all(isinstance(stage.plan, KernelPlan) for stage in stages)
    pairs = [
        estimate(sizes, analysis_of(lens, n, 8, layers=[1, 2], device="cuda", scopes=["CROSS-N"]))
        for n in (17, 20, 24, 25)
    ]
    parts = [each.operations["attention parts"] for each in pairs]
    assert parts[1] - parts[0] < parts[3] - parts[2]  # one more square
    exact = replace(sizes, itemsize=8, compute_itemsize=8)
    plans = [
        stage.plan for stage in estimate(exact, analysis_of(lens, 20, 8, device="cuda")).stages
    ]
    assert all(isinstance(plan, Plan) for plan in plans)


def test_the_automatic_batch_is_that_of_the_lens(
    lens: normlens.Lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder's layer has the weights of two attentions."""
    asked: list[tuple[Any, ...]] = []

    def record(n: int, heads: int, d: int, itemsize: int) -> int:
        asked.append((n, heads, d, itemsize))
        return 1

    monkeypatch.setattr(costs, "sequence_memory", record)
    batches.affordable(lens, 50)
    automatic_batch(sizes_of(lens), 50, torch.device("cpu"))
    assert asked[0] == asked[1]


@pytest.mark.parametrize("family", tiny_encoder_decoders())
def test_every_encoder_decoder_has_an_estimate(family: str) -> None:
    lens = skeleton(tiny_config(family))
    result = estimate(sizes_of(lens), analysis_of(lens, 9, 6))
    assert {stage.name.split(",")[0] for stage in result.stages} == {"encoder", "decoder"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_tokens": None}, "target_tokens are what the decoder"),
        ({"target_tokens": 0}, "at least one token"),
        ({"tokens": 0}, "at least one token"),
        ({"rule": "shapley"}, "one attention only"),
    ],
)
def test_wrong_estimates(change: dict[str, Any], message: str, lens: normlens.Lens) -> None:
    with pytest.raises(InputError, match=message):
        estimate(sizes_of(lens), replace(analysis_of(lens, 9, 6), **change))


def test_what_hears_has_as_many_frames_as_ever() -> None:
    lens = skeleton(tiny_config("whisper"))
    check_lengths(lens, 9, 6)
    with pytest.raises(InputError, match="always has 9 frames"):
        check_lengths(lens, 8, 6)


def test_a_target_is_for_two_stacks() -> None:
    lens = skeleton(tiny_config("bert"))
    analysis = Analysis(9, (0,), ("ATTN-N",), target_tokens=6)
    with pytest.raises(InputError, match="and for no other"):
        estimate(sizes_of(lens), analysis)

"""The cost model of encoder–decoders against what tiny ones really multiply and hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from estimate_counting import LIMIT, MEMORY_FACTOR, OPERATIONS_FACTOR, PeakMemory, within
from one_case import in_one_case
from torch.utils.flop_counter import FlopCounterMode

import normlens
from normlens.errors import InputError
from normlens.models.tiny import tiny_config, tiny_encoder_decoders, tiny_model
from normlens.options import AnalysisOptions
from normlens.plan.estimate import Estimate, skeleton

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


def estimate(
    lens: normlens.Lens, n: int, m: int, scopes: Any = None, layers: Any = None, **options: Any
) -> Estimate:
    """What `lens.maps` would take."""
    asked = AnalysisOptions(scopes=scopes, layers=layers, memory_limit=LIMIT)
    return Estimate(lens, n, asked, m, **options)


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

    result = estimate(lens, n, m, scopes)
    operations = counted.get_total_flops()
    assert within(result.total_operations, operations, OPERATIONS_FACTOR), operations
    assert within(result.peak_memory - result.weights, peak, MEMORY_FACTOR), peak


@in_one_case("family", tiny_encoder_decoders())
def test_every_encoder_decoder_has_an_estimate(family: str) -> None:
    lens = skeleton(tiny_config(family))
    result = estimate(lens, 9, 6)
    assert {stage.name.split(",")[0] for stage in result.stages} == {"encoder", "decoder"}


def test_a_target_is_for_two_stacks(lens: normlens.Lens) -> None:
    with pytest.raises(InputError):
        estimate(skeleton(tiny_config("bert")), 9, 6).check()
    with pytest.raises(InputError):
        Estimate(lens, 9, AnalysisOptions()).check()

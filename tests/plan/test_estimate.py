"""The cost model against what tiny models really multiply and hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from estimate_counting import LIMIT, MEMORY_FACTOR, OPERATIONS_FACTOR, PeakMemory, within
from one_case import in_one_case
from torch.utils.flop_counter import FlopCounterMode

import normlens
from normlens.frozen import norm_maps, tiles
from normlens.layers import Reach
from normlens.models.tiny import tiny_config, tiny_families, tiny_model
from normlens.options import AnalysisOptions
from normlens.plan.costs import player_memory
from normlens.plan.estimate import Estimate, skeleton

WIDE: dict[str, dict[str, int]] = {
    "bert": dict(hidden_size=64, intermediate_size=256, max_position_embeddings=300),
    "llama": dict(hidden_size=64, intermediate_size=192, head_dim=16, max_position_embeddings=300),
    "gpt2": dict(n_embd=64, n_positions=300),
    "gpt_neox": dict(hidden_size=64, intermediate_size=256, max_position_embeddings=300),
    "gemma2": dict(hidden_size=64, intermediate_size=192, head_dim=16, max_position_embeddings=300),
}


def estimate(
    lens: normlens.Lens,
    n: int,
    scopes: Sequence[str],
    batch: int = 1,
    device: str = "cpu",
    **options: Any,
) -> Estimate:
    asked = AnalysisOptions(**{"scopes": list(scopes), "memory_limit": LIMIT, **options})
    return Estimate(lens, n, asked, batch=batch, device=device)


def working_memory(result: Estimate) -> int:
    """The memory of the analysis beside a loaded model."""
    return result.peak_memory - result.weights


RUNS = [
    *((family, n, "all") for family in WIDE for n in (16, 160)),
    *((family, 160, which) for family in ("bert", "llama") for which in ("first", "last")),
]


@pytest.mark.parametrize(("family", "n", "which"), RUNS)
def test_operations_and_memory_are_those_of_the_run(family: str, n: int, which: str) -> None:
    model = tiny_model(family, **WIDE[family])
    ids = torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    lens = normlens.load(model)
    scopes = {"all": lens.scopes, "first": lens.scopes[:3], "last": lens.scopes[-1:]}[which]
    with FlopCounterMode(display=False) as counted:
        lens.maps(input_ids=ids, scopes=scopes, memory_limit=LIMIT)
    with PeakMemory(model) as held:
        fresh = normlens.load(model)  # one that keeps nothing from the call before
        maps = fresh.maps(input_ids=ids, scopes=scopes, memory_limit=LIMIT)
    # Results leave torch as NumPy arrays.
    peak = held.peak + sum(array.nbytes for array in maps.arrays.values())

    result = estimate(lens, n, scopes)
    operations = counted.get_total_flops()
    assert within(result.total_operations, operations, OPERATIONS_FACTOR), operations
    assert within(working_memory(result), peak, MEMORY_FACTOR), peak


def many_requests() -> list[tuple[str, int, int, str]]:
    """Families, lengths, memory limits and rules."""
    return [
        (family, n, limit, rule)
        for family in ("bert", "llama", "gpt2", "gemma2")
        for n in (1, 9, 60, 200)
        for limit in (LIMIT, 200_000)
        for rule in ("ig", "shapley")
    ]


@in_one_case(("family", "n", "limit", "rule"), many_requests())
def test_the_plan_is_that_of_the_lens(
    family: str, n: int, limit: int, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method, the tiles, the head products, and the targets that are sampled at once."""
    made: dict[str, list[Any]] = {
        "choose_plan": [],
        "sampled_targets": [],
        "uses_head_products": [],
    }

    def watch(place: Any, name: str, end: bool = False) -> None:
        original = getattr(place, name)

        def watched(*args: Any) -> Any:
            made[name].append(original(*args))
            if end:
                raise StopWatching
            return made[name][-1]

        monkeypatch.setattr(place, name, watched)

    watch(tiles, "choose_plan")
    watch(norm_maps, "sampled_targets", end=True)
    watch(tiles.Job, "uses_head_products")
    monkeypatch.setattr(tiles, "scope_norms", stop_watching)  # of the first tile
    monkeypatch.setattr("normlens.plan.costs.check_limit", lambda *_: None)
    lens = normlens.load(tiny_model(family, **WIDE[family]))
    options: Any = {"nonlinearity": rule, "samples": 2, "memory_limit": limit}
    with pytest.raises(StopWatching):
        lens.maps(input_ids=[5] * n, scopes=lens.scopes[-1:], **options)

    result = estimate(lens, n, lens.scopes[-1:], nonlinearity=rule, memory_limit=limit)
    (group,) = result.stages
    assert group.forms_head_products == any(made["uses_head_products"])
    if rule == "ig":
        assert [group.plan] == made["choose_plan"]
    else:
        targets = group.sampled_targets
        assert [targets] == made["sampled_targets"]
        players = player_memory(group.shape, group.at.scopes_behind)
        assert targets * players <= limit or targets == 1
        buffers = result.memory["tile buffers"]
        assert targets * players <= buffers <= 2 * targets * players


class StopWatching(Exception):
    pass


def stop_watching(*_: Any) -> None:
    raise StopWatching


# On a GPU ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that is asked for is not the one of this machine, whatever that has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_on_a_gpu_kernels_take_the_place_of_tiles(bert_base: normlens.Lens) -> None:
    here, there = (estimate(bert_base, 512, FF, device=device) for device in ("cpu", "cuda"))
    assert not here.stages[0].at.is_fused
    assert there.stages[0].at.is_fused
    assert there.stages[0].plan.method == "by source"
    assert "tile buffers" in here.memory
    assert "kernel buffers" in there.memory
    assert "tile buffers" not in there.memory
    # Three products for one in float32; one of short numbers in bfloat16.
    short = estimate(bert_base, 512, FF, device="cuda", precision="bfloat16")
    pairs = [result.operations["feed-forward pairs"] for result in (there, short)]
    assert pairs[0] == 3 * pairs[1]
    assert short.memory["kernel buffers"] < there.memory["kernel buffers"]


# Pieces ------------------------------------------------------------------------------------------

REACHES = [Reach(), Reach(None, 0), Reach(2, 0), Reach(3, 3), Reach(0, 0)]


@in_one_case("reach", REACHES)
@in_one_case("n", [1, 2, 7, 20])
def test_allowed_pairs(reach: Reach, n: int) -> None:
    assert reach.pairs(n) == int(reach.mask(n).sum())


@pytest.fixture(scope="module")
def bert_base() -> normlens.Lens:
    """The paper's model, without its weights."""
    config = tiny_config(
        "bert",
        vocab_size=30522,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
    )
    lens = skeleton(config)
    assert all(parameter.is_meta for parameter in lens.model.parameters())
    return lens


FF = ("ATTNRESLN-N", "ATTNRESLNFF-N")


@in_one_case("model_type", tiny_families())
def test_every_family_has_an_estimate(model_type: str) -> None:
    lens = skeleton(tiny_config(model_type))
    result = estimate(lens, 24, lens.scopes)
    assert result.total_operations > 0
    assert result.peak_memory > 0
    parallel = "∥" in lens.component_sequence
    assert (not result.stages) == parallel

"""The fused kernel under Triton's interpreter, in sizes that a CPU can bear."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
import torch
from fused_examples import GATED_RELU, LAYERS, TOLERANCE, entry_error, force_method, force_storing
from layer_problems import decompose_layer
from reference import largest_error, mixing_of, pair_references, reference

import normlens
from normlens.frozen import norm_maps
from normlens.frozen.stage import kernel_slots, sampled_error, tail_of
from normlens.frozen.tiles import ORDINARY, Job, feed_forward_norms
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import KERNEL_TOLERANCE

pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")

from normlens.gpu import operands as source_rows
from normlens.gpu.feed_forward import fused_norms
from normlens.gpu.operands import ScaledWeights
from normlens.gpu.sizes import TargetTiling, Tiling

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="the GPU runs the kernel itself here"
    ),
    pytest.mark.filterwarnings("ignore"),  # NumPy's, about what the interpreter does
    pytest.mark.slow,
]
#: The interpreter rounds bfloat16 towards zero, which doubles the error of the bypassed parts.
INTERPRETED = {"float32": 5e-5, "tf32": 3e-3, "bfloat16": 2e-2}
TINY = Tiling(targets=16, dims=16, neurons=16, warps=1, stages=1)
TINY_TARGETS = TargetTiling(16, 16, 16, 16, 1, 1)


@pytest.fixture
def fused(monkeypatch):
    """Every layer that the kernels know goes through them."""
    monkeypatch.setattr(norm_maps, "has_kernels", lambda weight: weight.dtype == torch.float32)
    monkeypatch.setattr(Tiling, "choose", classmethod(lambda cls, *_: TINY))
    monkeypatch.setattr(TargetTiling, "choose", classmethod(lambda cls, *_: TINY_TARGETS))
    monkeypatch.setattr(source_rows, "SOURCE_BLOCK", 16)
    monkeypatch.setattr(source_rows, "COLUMNS", 16)


@pytest.fixture
def forced(monkeypatch, fused):
    return lambda method: force_method(method, monkeypatch)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_and_precision_gives_the_reference(
    name, precision, problem, fused, monkeypatch
):
    force_storing(False, monkeypatch)
    given = problem(n=3, d=20, m=24, heads=4, dtype=torch.float32, **LAYERS[name])
    found = given.solve(precision=precision)
    assert found.precision == precision
    expected = reference(given.layer, given.x[0], given.alpha[0])
    for scope, norms in found.norms.items():
        assert entry_error(norms[0], expected.maps[scope]) <= INTERPRETED[precision], scope
        torch.testing.assert_close(
            mixing_of(found, scope)[0].double(), expected.mixing[scope], atol=1e-5, rtol=0
        )
    assert found.kernel_errors["sum"] <= KERNEL_TOLERANCE[precision]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*LAYERS, "gated-relu"])
@pytest.mark.parametrize("method", ["by pair", "matrices"])
def test_other_methods_give_the_reference(method, name, precision, problem, forced):
    forced(method)
    options = LAYERS.get(name, GATED_RELU)
    given = problem(n=3, d=20, m=24, heads=4, dtype=torch.float32, **options)
    found = given.solve(precision=precision)
    assert found.kernel_errors["sum"] <= KERNEL_TOLERANCE[precision]
    expected = reference(given.layer, given.x[0], given.alpha[0])
    for scope, norms in found.norms.items():
        error = entry_error(norms[0], expected.maps[scope])
        assert error <= INTERPRETED[precision], f"{scope}: {error:.1e}"


@pytest.mark.parametrize(
    "method", [pytest.param("in one kernel", marks=pytest.mark.guard), "by pair", "matrices"]
)
def test_many_tiles_of_a_ragged_batch(method, problem, forced):
    """Sequences of 18 and 5 tokens, in tiles of 16 targets and blocks of 16 sources."""
    forced(method)
    given = problem("pre", n=18, d=20, m=24, batch=2, activation="relu", causal=True,
                    dtype=torch.float32)  # fmt: skip
    lengths, scopes = [18, 5], given.layer.scopes
    x, alpha = given.x.clone(), given.alpha.clone()
    x[1, 5:], alpha[1, :, :, 5:], alpha[1, :, 5:] = 1e6, 0, 1e6  # whatever the padding holds
    settings = AnalysisOptions(precision="float32", memory_limit=40_000)
    found = decompose_layer(given.layer, x, alpha, lengths, scopes, settings)
    for place, length in enumerate(lengths):
        some = slice(length)
        expected = reference(given.layer, x[place, some], alpha[place, :, some, some])
        for scope, norms in found.norms.items():
            error = entry_error(norms[place, some, some], expected.maps[scope])
            assert error <= INTERPRETED["float32"], f"{scope}: {error:.1e}"


@pytest.mark.parametrize("method", ["in one kernel", "by pair", "matrices"])
def test_nan_never_passes_for_a_number(method, problem, forced):
    forced(method)
    given = problem("post", n=3, dtype=torch.float32)
    x = given.x.clone()
    x[0, 1, 0] = torch.nan
    found = replace(given, x=x).solve(precision="float32")
    for scope, norms in found.norms.items():
        if scope.endswith("-N"):
            assert norms[0, :, 1].isnan().all(), scope  # the source itself
            assert norms[0, 1].isnan().all() or scope in ("ATTN-N", "ATTNRES-N"), scope
    assert found.kernel_errors["sum"] == torch.inf


def job_of(given, monkeypatch) -> Job:
    """The feed-forward stage of a problem, caught before it runs."""
    caught = []

    def catch(job, lengths, limit):
        caught.append(job)
        return feed_forward_norms(job, lengths, limit)

    with monkeypatch.context() as patched:
        patched.setattr(norm_maps, "has_kernels", lambda weight: False)
        patched.setattr(norm_maps, "feed_forward_norms", catch)
        given.solve()
    return caught[0]


@pytest.mark.parametrize("method", ["in one kernel", "by pair", "matrices"])
@pytest.mark.parametrize("order", ["pre", "both"])
def test_every_element_of_the_output_is_written(method, order, problem, forced, monkeypatch):
    given = problem(order, n=5, dtype=torch.float32, causal=True)
    job = job_of(given, monkeypatch)
    forced(method)
    job = replace(job, ordinary=torch.arange(3, 12))
    tail = tail_of(job)
    slots = kernel_slots(
        True, tail.norm and tail.norm.norm, tail.bypass is not None, tail.norm_first
    )
    poisoned = torch.full((1, slots["SLOTS"], 1, 5, 5), torch.nan)
    found = fused_norms(job, [4], "float32", sums=poisoned)
    assert not poisoned.isnan().any()
    expected = feed_forward_norms(job, [4])
    for scope, norms in expected.norms.items():
        assert entry_error(found.norms[scope], norms) <= INTERPRETED["float32"], scope
    assert ORDINARY in found.norms


def test_parts_that_do_not_add_up_are_noticed(problem, fused, monkeypatch):
    """As when operands were kept from weights that have been edited since."""
    given = problem("post", n=3, dtype=torch.float32)
    scaled = ScaledWeights.of_down
    monkeypatch.setattr(
        ScaledWeights, "of_down", lambda weight, precision: scaled(1.1 * weight, precision)
    )
    assert given.solve(precision="float32").kernel_errors["sum"] > KERNEL_TOLERANCE["bfloat16"]


@pytest.mark.parametrize("method", ["in one kernel", "by pair", "matrices"])
@pytest.mark.parametrize("order", ["post", "pre", "both"])
def test_errors_of_both_signs_are_noticed_by_a_sample(method, order, problem, forced, monkeypatch):
    """One source's parts 5 % too large and another's too small: their sum may hide it."""
    given = problem(order, n=6, dtype=torch.float32, causal=True)
    job = job_of(given, monkeypatch)
    forced(method)
    sound = fused_norms(job, [6], "float32")
    assert sampled_error(job, [6], sound.norms) < INTERPRETED["float32"]
    signs = 1 + 0.05 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    wrong = {scope: norms * signs for scope, norms in sound.norms.items()}
    assert 0.03 < sampled_error(job, [6], wrong) < 0.07
    wrong[job.scope] = torch.full_like(wrong[job.scope], torch.nan)
    assert sampled_error(job, [6], wrong) == torch.inf


LONGER_SOURCE, LONGER_TARGET = ([3, 9, 27], [2, 5]), ([3], [2, 5, 8])


@pytest.mark.parametrize(
    ("family", "method", "pair"),
    [
        ("bart", "in one kernel", LONGER_SOURCE),
        ("bart", "by pair", LONGER_SOURCE),
        ("bart", "matrices", LONGER_TARGET),
        ("t5", "matrices", LONGER_SOURCE),
        ("mt5", "in one kernel", LONGER_TARGET),
        ("mt5", "by pair", LONGER_TARGET),
    ],
)
def test_layers_that_read_another_sequence(family, method, pair, forced):
    """Both groups of sources go through the kernels, whichever sequence is longer."""
    forced(method)
    one = {"num_decoder_layers" if "t5" in family else "decoder_layers": 1}
    model = tiny_model(family, **one)
    lens = normlens.load(model, device="cpu")
    scopes = [scope for scope in lens.scopes if "CROSS" in scope]  # the decoder's alone
    found = lens.maps(input_ids=pair[0], decoder_input_ids=pair[1], scopes=scopes)
    assert found.provenance["precision"] == "float32"
    names = "input_ids", "decoder_input_ids"
    inputs = {name: torch.tensor([ids]) for name, ids in zip(names, pair, strict=True)}
    _, decoder = pair_references(copy.deepcopy(model).double(), inputs)
    for scope in scopes:
        assert largest_error(found[scope][0], decoder[0].maps[scope]) <= 1e-4, scope

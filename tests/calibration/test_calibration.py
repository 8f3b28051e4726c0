"""The cost model fitted to a GPU: what is measured, fitted, kept, and used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normlens
from normlens import cli, doctor
from normlens.calibration import record
from normlens.calibration.fit import FARTHEST, Measured, fitted
from normlens.calibration.jobs import RandomJob
from normlens.calibration.record import Calibration, Checked
from normlens.decomposition import engine
from normlens.decomposition.costs import calibrated
from normlens.decomposition.costs.calibrated import BlockShape, Calibrated
from normlens.decomposition.costs.kernels import Constants, KernelCosts, shipped
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.fused.precision import PRECISIONS
from normlens.decomposition.plan import choose_kernel_plan
from normlens.decomposition.tiles import feed_forward_norms
from normlens.models.tiny import tiny_model

GPU = "NVIDIA Test 9000"
CPU = torch.device("cpu")
SMALL = BlockShape(24, 40, 3, gated=False)
OTHERS = Constants(stored_byte=2500.0, cached_byte=90.0, gathered=1.1, launches=1e10)
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the GPU runs the kernels itself here"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(record.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(calibrated, "_IN_USE", {})
    record.stored.cache_clear()
    yield tmp_path / "cache"
    record.stored.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU by name."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: GPU)
    return torch.device("cuda:0")


def a_calibration(*errors: float) -> Calibration:
    shapes = (SMALL, BlockShape(48, 80, 4, gated=True))
    checked = tuple(
        Checked(*shape, "float32", error, 1e-3)
        for shape, error in zip(shapes, errors, strict=False)
    )
    return Calibration(GPU, record.versions(), "2026-11-16", OTHERS, checked)


# Fitting ----------------------------------------------------------------------------------------


def times(constants: Constants, noise: float = 0.0) -> list[Measured]:
    """What a GPU with these constants would be measured to take."""
    generator = np.random.default_rng(0)
    found = []
    for precision in (PRECISIONS["tf32"], PRECISIONS["float32"]):
        for n in (256, 1024):
            shape = Shape(n, n * n, 768, 3072, 12, 1)
            costs = KernelCosts(shape, precision, constants)
            for share in (None, 0.05, 0.3):
                cost = costs.matrices if share is None else costs.gather(share)
                error = 1 + noise * generator.standard_normal()
                found.append(Measured(shape, precision, share, error * cost / costs.by_source))
    return found


@pytest.mark.parametrize("constants", [OTHERS, shipped()])
def test_constants_come_back_from_their_times(constants: Constants) -> None:
    assert np.allclose(astuple(fitted(times(constants), shipped())), astuple(constants), rtol=1e-6)


def test_noise_leaves_the_choice_nearly_as_it_was() -> None:
    found = fitted(times(OTHERS, noise=0.02), shipped())
    for one in times(OTHERS):
        costs = KernelCosts(one.shape, one.precision, found)
        cost = costs.matrices if one.share is None else costs.gather(one.share)
        assert cost / costs.by_source == pytest.approx(one.relative, rel=0.1)


def test_wild_times_stay_within_bounds() -> None:
    wild = [replace(one, relative=1e9 * one.relative) for one in times(shipped())]
    found = np.array(astuple(fitted(wild, shipped()))) / astuple(shipped())
    assert (found <= FARTHEST * 1.001).all()
    assert (found >= 1 / FARTHEST * 0.999).all()


def test_what_was_not_measured_stays() -> None:
    matrices = [one for one in times(OTHERS) if one.share is None]
    found = fitted(matrices, shipped())
    assert (found.cached_byte, found.gathered) == (shipped().cached_byte, shipped().gathered)
    assert found.stored_byte == pytest.approx(OTHERS.stored_byte)


# Measuring --------------------------------------------------------------------------------------


def clock(run: Callable[[], object]) -> float:
    run()
    return 1.0


@interpreted
def test_every_method_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.calibration import measure
    from normlens.decomposition import head_products

    monkeypatch.setattr(head_products, "head_products_pay", lambda *_: True)
    monkeypatch.setattr(measure, "TIMED_PRECISIONS", ("tf32",))
    found = list(measure.measured(CPU, np.inf, clock, SMALL, tokens=(5,)))
    kinds = [(one.precision.name, one.share is None) for one in found]
    assert kinds == [("tf32", True), ("tf32", False), ("tf32", False)]
    assert all(one.shape.d == SMALL.d and one.shape.heads == SMALL.heads for one in found)
    shares = [one.share for one in found if one.share is not None]
    assert shares[0] < shares[1] < 0.5
    assert list(measure.measured(CPU, -np.inf, clock, SMALL)) == []


@interpreted
@pytest.mark.parametrize("shape", [SMALL, BlockShape(36, 52, 3, gated=True)])
def test_shapes_are_checked_against_float64(
    shape: BlockShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normlens.calibration import measure

    monkeypatch.setattr(measure, "CHECKED_TOKENS", 12)
    (found,) = measure.checked(CPU, np.inf, [shape], ["float32"])
    assert found.shape == shape
    assert 0 < found.error < 1e-4
    assert found.passed


@interpreted
def test_wrong_norms_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.calibration import measure

    right = measure.fused_norms

    def wrong(*given: Any) -> Any:
        found = right(*given)
        found.norms["RES"] *= 1.5
        return found

    monkeypatch.setattr(measure, "CHECKED_TOKENS", 12)
    monkeypatch.setattr(measure, "fused_norms", wrong)
    (found,) = measure.checked(CPU, np.inf, [SMALL], ["float32"])
    assert found.error > found.tolerance
    assert not found.passed
    monkeypatch.setattr(measure, "sampled_error", lambda *_: torch.tensor(torch.nan))
    (unknown,) = measure.checked(CPU, np.inf, [SMALL], ["float32"])
    assert not unknown.passed


def test_a_random_stage_has_the_same_numbers_in_every_type() -> None:
    job = RandomJob(BlockShape(12, 20, 3, gated=True), 5, share=0.5)
    wide, narrow = (feed_forward_norms(job.on(CPU, t), [5]) for t in (torch.float64, torch.float32))
    for scope, norms in wide.norms.items():
        assert torch.allclose(norms, narrow.norms[scope].double(), rtol=1e-5, atol=1e-6)
        assert norms.max() > 0.1


# Keeping ----------------------------------------------------------------------------------------


def test_a_calibration_comes_back(cache: Path) -> None:
    calibration = a_calibration(1e-6, 0.5)
    path = record.write(calibration)
    assert cache in path.parents
    assert record.stored(GPU) == calibration
    assert record.stored("another GPU") is None
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_an_error_that_is_no_number_comes_back_as_a_failure() -> None:
    record.write(a_calibration(float("inf"), float("nan")))
    found = record.stored(GPU)
    assert found is not None
    assert len(found.in_use.refused) == 2


def test_other_versions_have_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    record.write(a_calibration())
    monkeypatch.setattr(torch, "__version__", "99.0")
    record.stored.cache_clear()
    assert record.stored(GPU) is None


def damages() -> dict[str, Callable[[dict[str, Any]], object]]:
    return {
        "no JSON": lambda _: "{",
        "a list": lambda _: "[1]",
        "another format": lambda given: {**given, "format": "maps"},
        "another GPU": lambda given: {**given, "gpu": "other"},
        "no constants": lambda given: {k: v for k, v in given.items() if k != "constants"},
        "a constant below 0": lambda g: {**g, "constants": {**g["constants"], "gathered": -1}},
        "a constant as text": lambda g: {**g, "constants": {**g["constants"], "gathered": "1"}},
        "NaN": lambda g: {**g, "constants": {**g["constants"], "launches": float("nan")}},
        "a shape of nothing": lambda g: {**g, "checked": [{**g["checked"][0], "d": 0}]},
        "a shape without sizes": lambda g: {**g, "checked": [{}]},
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_calibration_is_ignored_with_a_line(damage: str, gpu: torch.device) -> None:
    path = record.write(a_calibration(1e-6))
    made = damages()[damage](json.loads(path.read_text()))
    path.write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.warns(RuntimeWarning, match=r"cannot be read .* is ignored; make it anew"):
        assert record.use_stored(gpu) is None
    assert calibrated.constants_for(gpu) is None


def test_a_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(normlens.errors.OutputError, match=r"cannot keep the calibration"):
        record.write(a_calibration())
    assert record.stored(GPU) is None


# Using ------------------------------------------------------------------------------------------


def test_constants_are_those_of_the_gpu(gpu: torch.device) -> None:
    assert calibrated.constants_for(gpu) is None
    record.write(a_calibration())
    assert record.use_stored(gpu) is not None
    assert calibrated.constants_for(gpu) == OTHERS
    assert calibrated.constants_for(CPU) is None
    assert record.use_stored(CPU) is None


def test_a_calibration_can_change_the_way() -> None:
    shape = Shape(4096, 4096**2, 768, 3072, 12, 1)
    plans = [
        choose_kernel_plan(
            KernelCosts(shape, PRECISIONS["tf32"], constants), silent=False, head_products=True
        ).method
        for constants in (None, replace(shipped(), stored_byte=0.0), OTHERS)
    ]
    assert plans[1] == "matrices"
    assert plans[2] == "by source"
    assert KernelCosts(shape, PRECISIONS["tf32"]).constants == shipped()


@interpreted
def test_a_stage_is_chosen_by_the_constants_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.calibration import measure
    from normlens.decomposition.fused import choice

    stage = measure._stage(RandomJob(SMALL, 9).on(CPU), 9, PRECISIONS["tf32"])
    assert choice.costs_of(stage).constants == shipped()
    monkeypatch.setattr(choice, "constants_for", lambda _: OTHERS)
    assert choice.costs_of(stage).constants == OTHERS


def test_a_refused_shape_takes_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "has_kernels", lambda _: True)
    job = RandomJob(SMALL, 5).on(CPU)
    assert engine.is_fused(job)
    refused = Calibrated(shipped(), frozenset([SMALL]))
    monkeypatch.setattr(calibrated, "calibrated_for", lambda _: refused)
    assert not engine.is_fused(job)
    assert engine.is_fused(RandomJob(SMALL._replace(gated=True), 5).on(CPU))


def test_maps_say_that_a_calibration_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.analysing import stack_run

    lens = normlens.load(tiny_model("bert"))
    assert "calibration" not in lens.maps(input_ids=[3, 9]).provenance
    monkeypatch.setattr(stack_run, "calibrated_for", lambda _: a_calibration(1.0).in_use)
    said = lens.maps(input_ids=[3, 9]).provenance["calibration"]
    assert said == f"{GPU}, 2026-11-16, 1 shapes refused"


# The doctor -------------------------------------------------------------------------------------


def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert cli.main(["doctor", "--calibrate"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "nothing to calibrate: this machine has no GPU" in shown.err


def test_the_command_shows_and_keeps_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("normlens.calibration.run.calibrate", lambda: a_calibration(1e-6, 0.5))
    assert cli.main(["doctor", "--calibrate"]) == 0
    out = capsys.readouterr().out
    assert "stored byte" in out
    assert "2.5e+03" in out
    assert "REFUSED" in out
    assert f"wrote {record.path_of(GPU)}" in out
    assert record.stored(GPU) == a_calibration(1e-6, 0.5)


def test_the_doctor_says_whether_one_is_in_use() -> None:
    assert record.state(GPU).startswith("none; the shipped constants hold")
    record.write(a_calibration(1e-6, 0.5))
    assert record.state(GPU) == f"in use: {GPU}, 2026-11-16, 1 shapes refused"
    assert doctor.state is record.state


@pytest.mark.gpu
def test_a_real_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--calibrate"]) == 0
    out = capsys.readouterr().out
    assert "REFUSED" not in out
    device = torch.device("cuda")
    found = record.use_stored(device)
    assert found is not None
    assert found.checked
    assert calibrated.calibrated_for(device) == found.in_use
    model = tiny_model("bert")
    maps = normlens.load(model, device="cuda").maps(input_ids=[3, 9, 27])
    assert maps.provenance["calibration"] == found.in_words
    calibrated.use(found.gpu, None)
    record.path_of(found.gpu).unlink()
    record.stored.cache_clear()
    plain = normlens.load(model, device="cuda").maps(input_ids=[3, 9, 27])
    assert "calibration" not in plain.provenance
    for scope in plain:
        assert np.allclose(maps[scope], plain[scope], rtol=1e-4, atol=1e-6)

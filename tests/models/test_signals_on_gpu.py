"""Pictures and sound on a CUDA device, without Pillow; run alone with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from one_case import in_one_case
from reference import assert_maps_match, largest_error, references
from signal_examples import call, example, noise, other_example

import normlens
from normlens.models.tiny import scramble, tiny_config, tiny_model, tiny_signal_families

pytestmark = pytest.mark.gpu

every_family = in_one_case("family", tiny_signal_families())


@every_family
def test_float32_on_cuda_is_close_to_the_float64_reference(family):
    model = tiny_model(family)
    double = copy.deepcopy(model).double()
    lens = normlens.load(model, device="cuda")
    for values in (example(family), other_example(family)):
        maps = lens.maps(values, precision="float32")
        assert maps.provenance["device"].startswith("cuda")
        assert_maps_match(maps, references(double, call(double, values)), 1e-4)
        assert maps.completeness <= 1e-4


@every_family
def test_batches_on_cuda_equal_one_by_one(family):
    lens = normlens.load(tiny_model(family), device="cuda")
    given = [example(family), other_example(family), example(family, seed=1)]
    for found, values in zip(lens.maps(given, precision="float32"), given, strict=True):
        alone = lens.maps(values, precision="float32")
        for scope in alone.scopes:
            assert largest_error(found[scope], alone[scope]) < 1e-5, scope


def test_explanations_on_cuda_equal_the_cpu():
    import transformers

    model = transformers.Dinov2ForImageClassification(tiny_config("dinov2", num_labels=3)).eval()
    scramble(model, 3)
    expected = normlens.load(copy.deepcopy(model)).explain(noise(3, 12, 12), target=2)
    why = normlens.load(model, device="cuda").explain(noise(3, 12, 12), target=2)
    np.testing.assert_allclose(why.contributions, expected.contributions, atol=1e-4)
    assert why.grid == expected.grid

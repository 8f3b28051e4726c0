"""Pictures and sound on a CUDA device, without Pillow; run alone with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import pytest
from one_case import in_one_case
from reference import assert_maps_match, largest_error, references
from signal_examples import call, example, other_example

import normlens
from normlens.models.tiny import tiny_model, tiny_signal_families

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

"""The interface against its own OpenAPI schema: generated requests, right and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from serving import ON_CPU, Site

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from normlens.serve.analyses import Limits, ServedModels  # noqa: E402

pytestmark = pytest.mark.slow
BOUNDED = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
OPERATIONS = [
    ("GET", "/api/models"),
    ("POST", "/api/analyses"),
    ("POST", "/api/explanations"),
    ("POST", "/api/cosines"),
    ("POST", "/api/citations"),
    ("GET", "/api/analyses/{id}"),
    ("DELETE", "/api/analyses/{id}"),
    ("GET", "/api/analyses/{id}/result"),
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
]


@pytest.fixture(scope="module")
def roomy(folder):
    """A page where the queue never fills, so that every right request is accepted."""
    limits = Limits(queue=100_000, kept=100_000, text_characters=200)
    with Site(ServedModels([folder], limits, loading=ON_CPU), limits) as site:
        yield site


@pytest.fixture(scope="module")
def interface(roomy):
    return schemathesis.openapi.from_url(f"{roomy.url}openapi.json")


def fuzz(operation: Any, mode: GenerationMode) -> None:
    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def request(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    request()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_right_requests_keep_to_the_schema(method, path, interface):
    fuzz(interface[path][method], GenerationMode.POSITIVE)


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "POST"])
def test_wrong_requests_keep_to_the_schema(path: str, interface: Any) -> None:
    # Only these operations can be asked in a wrong form: any id is a well-formed one.
    fuzz(interface[path]["POST"], GenerationMode.NEGATIVE)


def test_no_operation_is_left_out(interface):
    found = [result.ok() for result in interface.get_all_operations()]
    assert sorted((each.method.upper(), each.path) for each in found) == sorted(OPERATIONS)


def test_the_page_still_works_afterwards(roomy):
    assert roomy.wait(roomy.submit("the cat sat"))["state"] == "done"

"""What a worker takes, as it is typed."""

from __future__ import annotations

import pytest

from normlens.corpus.runs.options import Execution, named, parse_resources
from normlens.errors import InputError, OptionError


def test_amounts_by_name() -> None:
    assert parse_resources(None) == {}
    assert parse_resources("gpu=1, CPU=4,memory=16GB,big_node=0.01") == {
        "gpu": 1.0,
        "cpu": 4.0,
        "memory": float(16 << 30),
        "big_node": 0.01,
    }
    assert named(parse_resources("gpu=0.5,memory=1.5GB,A100=1")) == "gpu=0.5,memory=1.5GB,A100=1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is NAME=AMOUNT"),
        ("gpu", "is NAME=AMOUNT"),
        ("gpu=1,,cpu=2", "is NAME=AMOUNT"),
        ("=1", "is NAME=AMOUNT"),
        ("gpu=", "is NAME=AMOUNT"),
        ("gpu=1,GPU=2", "names 'gpu' twice"),
        ("gpu=one", "gpu=one is no number"),
        ("gpu=-1", "gpu=-1 is no number"),
        ("cpu=nan", "cpu=nan is no number"),
        ("gpu=1.5", "gpu=1.5 must be whole, or a fraction below 1"),
        ("memory=lots", "memory=lots is no size"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        Execution(engine="ray", resources=text)
    assert caught.value.as_typed.startswith("--resources")


def test_workers_are_a_number_or_auto() -> None:
    assert Execution(workers="auto").workers == "auto"
    with pytest.raises(OptionError, match="a number from 1 or 'auto', not 'many'"):
        Execution(workers="many")
    for wrong in ({"workers": 0}, {"attempts": 0}):
        with pytest.raises(OptionError, match="at least 1, not 0"):
            Execution(**wrong)


def test_what_is_rays_is_said_so() -> None:
    for given in ({"resources": "gpu=1"}, {"address": "auto"}):
        with pytest.raises(InputError, match="are Ray's; add --engine ray"):
            Execution(**given)

"""A cluster's nodes, versions and refusals; without Ray, which plays no part in them."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from normlens.corpus.engines.ray_engine import (
    Demand,
    check_room,
    check_versions,
    connect,
    versions_function,
)
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.options import Execution


def node(**resources: float) -> dict[str, Any]:
    return {"NodeID": "n", "Alive": True, "NodeManagerHostname": "h", "Resources": resources}


def demand(cluster: dict[str, float], device: str = "auto", **options: Any) -> Demand:
    return Demand.of(Execution(engine="ray", device=device, **options), cluster)


def test_a_worker_takes_a_gpu_where_there_are_some() -> None:
    gpus = {"CPU": 8.0, "GPU": 2.0}
    assert demand(gpus).options() == {"num_cpus": 0.0, "num_gpus": 1.0, "resources": {}}
    assert demand(gpus, device="cpu").options() == {}
    assert demand(gpus, resources="gpu=0").options() == {}
    assert demand({"CPU": 8.0}).options() == {}


def test_resources_are_options_of_actors() -> None:
    wanted = demand({"GPU": 2.0}, resources="gpu=0.5,cpu=4,memory=2GB,fast_disk=1")
    assert wanted.options() == {
        "num_cpus": 4.0,
        "num_gpus": 0.5,
        "memory": 2 << 30,
        "resources": {"fast_disk": 1.0},
    }


@pytest.mark.parametrize(
    ("resources", "has", "room"),
    [
        ("gpu=1", {"GPU": 8.0, "CPU": 1.0}, 8),
        ("gpu=0.5,cpu=4", {"GPU": 1.0, "CPU": 64.0}, 2),
        ("gpu=0.1", {"GPU": 1.0}, 10),
        ("cpu=4", {"CPU": 10.0}, 2),
        ("gpu=1,tpu=4", {"GPU": 1.0, "CPU": 8.0}, 0),
        ("memory=16GB", {"memory": float(40 << 30), "CPU": 1.0}, 2),
        (None, {"CPU": 16.0}, 4),
        (None, {"CPU": 1.0}, 1),
        (None, {"memory": 1e9}, 0),  # a head that takes no work
    ],
)
def test_room_of_a_node(resources: str | None, has: dict[str, float], room: int) -> None:
    assert demand({}, resources=resources).room(node(**has)) == room


def test_what_no_node_has_is_one_line() -> None:
    nodes = [node(CPU=4.0, **{"node:10.0.0.1": 1.0}), node(CPU=4.0, GPU=1.0)]
    check_room(demand({}, resources="gpu=1"), nodes)
    with pytest.raises(RunError, match=r"room for a worker \(gpu=2\); they have") as caught:
        check_room(demand({}, resources="gpu=2"), nodes)
    assert "they have cpu=4; cpu=4,gpu=1: change --resources" in str(caught.value)


# Versions -----------------------------------------------------------------------------------------


def test_the_same_versions_pass_whatever_they_were_built_for() -> None:
    here = versions_function()()
    assert here["normlens"]
    there = here | {"torch": f"{str(here['torch']).partition('+')[0]}+cu999"}
    check_versions("h", here, there)


@pytest.mark.parametrize("name", ["normlens", "torch", "transformers", "python"])
def test_another_version_is_one_line(name: str) -> None:
    here = versions_function()()
    with pytest.raises(RunError, match=f"the Ray node h has {name} 0.0.1, and this process has"):
        check_versions("h", here, here | {name: "0.0.1"})


@pytest.mark.parametrize("name", ["normlens", "torch", "transformers", "pyarrow"])
def test_a_missing_package_is_one_line(name: str) -> None:
    here = versions_function()()
    with pytest.raises(RunError, match=f"the Ray node h has no {name}; install there"):
        check_versions("h", here, here | {name: None})


def test_python_may_differ_in_its_last_number() -> None:
    here = versions_function()() | {"python": "3.11.9"}
    check_versions("h", here, here | {"python": "3.11.2"})


# Reaching it --------------------------------------------------------------------------------------


class Refused(Exception):
    """Of a cluster that wants a token."""


def fake_ray(error: Exception) -> Any:
    def init(**_: Any) -> None:
        raise error

    return SimpleNamespace(init=init, exceptions=SimpleNamespace(AuthenticationError=Refused))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Refused("no token"), "at 'auto' wants a token: set RAY_AUTH_MODE=token"),
        (
            ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379"),
            "does not let this process in; if it wants a token",
        ),
        (
            RuntimeError(
                "Version mismatch: The cluster was started with:\n Ray: 2.1\n Python: 3.9"
            ),
            r"has another Ray or Python than this process \(Version mismatch",
        ),
        (
            ConnectionError("Could not find any running Ray"),
            "cannot reach the Ray cluster at 'auto'",
        ),
    ],
)
def test_what_ray_refuses_is_one_line(error: Exception, message: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        connect(fake_ray(error), "auto")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", [None, "local"])
@pytest.mark.parametrize(
    "error",
    [
        Exception("The current node timed out during startup. This could happen because\n…"),
        TimeoutError("Timed out while waiting for the GCS"),
        AssertionError(),
    ],
    ids=repr,
)
def test_a_local_ray_that_does_not_start_is_one_line(address: str | None, error: Exception) -> None:
    message = r"^Ray could not be started on this machine: .*try again"
    with pytest.raises(RunError, match=message) as caught:
        connect(fake_ray(error), address)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_answers_is_refused_before_ray_tries(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    unused = fake_ray(AssertionError("Ray was asked"))
    with pytest.raises(RunError, match=r"cannot reach the Ray cluster at .*Connection refused"):
        connect(unused, f"{scheme}127.0.0.1:{port}")

"""Explanations and cosines over real HTTP, with the limits and errors that maps have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving import Site, StepwiseModels
from test_serve_api import detail

import normlens
from normlens.viewer.payload import encode_cosines, encode_explanations

KINDS = ("explanations", "cosines")


def asked(site: Site, kind: str, **request: Any) -> Any:
    if kind == "cosines":
        request = {"pair": "a mat"} | request
    return site.http.post(f"api/{kind}", json=site.request("the cat sat", **request))


def ended(site: Site, kind: str, **request: Any) -> dict[str, Any]:
    answer = asked(site, kind, **request)
    assert answer.status_code == 202, answer.text
    return site.wait(answer.json()["id"])


def result(site: Site, id: str) -> Any:
    return site.http.get(f"api/analyses/{id}/result")


def test_an_explanation_is_that_of_the_library(talking, speaker):
    words = {"target": "mat", "contrast": "cat", "position": -2}
    status = ended(talking, "explanations", **words)
    assert (status["state"], status["layers_done"], status["error"]) == ("done", 2, None)
    answer = result(talking, status["id"])
    assert answer.headers["content-type"] == "application/octet-stream"
    lens = normlens.load(speaker, device="cpu")
    why = lens.explain("the cat sat", **words)
    assert answer.content == encode_explanations(why)  # type: ignore[arg-type]


def test_a_cosine_is_that_of_the_library(talking, folder):
    status = ended(talking, "cosines", model=Path(folder).name)
    assert status["state"] == "done"
    pair = normlens.load(folder, device="cpu").cosine("the cat sat", "a mat")
    assert result(talking, status["id"]).content == encode_cosines(pair)


def test_a_model_without_a_head_says_what_it_can_do(talking, folder):
    status = ended(talking, "explanations", model=Path(folder).name)
    assert status["state"] == "failed"
    assert "has no head" in status["error"]
    assert "compare two texts (cosine)" in status["error"]
    refused = result(talking, status["id"])
    assert refused.status_code == 409
    assert "there is no result: " in detail(refused)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "cats"}, "'cats' is 2 tokens (cat + ##s)"),
        ({"target": 9_999_999}, "target 9999999 is out of range"),
        ({"position": 77}, "position 77 is out of range; the text has tokens 0 to"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_line(change, words, talking):
    status = ended(talking, "explanations", **change)
    assert status["state"] == "failed"
    assert words in status["error"]
    assert "\n" not in status["error"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"text": "a" * 10_001}, 422, "at most 10000 characters"),
        ({"rule": "magic"}, 422, "rule: input should be 'ig', 'ig-bias' or 'gradient'"),
        ({"direction": [1]}, 422, "direction: "),
    ],
)
def test_wrong_requests(kind, change, status, words, talking):
    answer = asked(talking, kind, **change)
    assert answer.status_code == status
    assert words in detail(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_seen_on_its_way_and_stops_behind_a_layer(kind, slow):
    models: StepwiseModels = slow.models  # type: ignore[assignment]
    id = asked(slow, kind).json()["id"]
    assert models.reached() == ("the cat sat", 0)
    models.go.release()
    assert models.reached() == ("the cat sat", 1)
    assert slow.status(id)["layers_done"] == 1
    assert slow.http.delete(f"api/analyses/{id}").json()["state"] == "cancelled"
    next_one = slow.submit("a mat")
    models.go.release()
    assert models.reached() == ("a mat", 0)  # the second layer is never reported
    assert result(slow, id).status_code == 410
    models.let_go()
    assert slow.wait(next_one)["state"] == "done"

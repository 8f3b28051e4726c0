"""The example that a page opens on, and heads on request."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import ON_CPU, Site

import normlens
from normlens.serve.analyses import TEXT, Description, Limits, ServedModels, example_of


@pytest.fixture(scope="module")
def opened(folder):
    with Site(ServedModels([folder], Limits(), loading=ON_CPU), example=True) as running:
        yield running


def model(name: str, head: str | None, two_stacks: bool) -> Description:
    return Description(
        name=name,
        family="family",
        layers=2,
        scopes=["ATTN-N"],
        causal=False,
        max_tokens=None,
        head=head,
        two_stacks=two_stacks,
    )


def item_of(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """The header's only item, and the arrays behind the header."""
    end = 12 + int.from_bytes(payload[8:12], "little")
    (item,) = json.loads(payload[12:end])["items"]
    return item, payload[end:]


def numbers(blob: dict[str, Any], arrays: bytes) -> np.ndarray:
    assert blob["coding"] == "f32"
    planes = zlib.decompress(arrays[blob["at"] : blob["at"] + blob["length"]], -15)
    bytes_ = np.frombuffer(planes, np.uint8).reshape(4, -1).T
    return np.ascontiguousarray(bytes_).view("<f4").ravel()


def test_the_example_is_of_the_first_model_that_needs_no_target_text():
    silent, speaking = model("silent", None, True), model("speaking", "T5", True)
    encoder = model("encoder", None, False)
    assert getattr(example_of([silent, encoder]), "model", None) == "encoder"
    assert getattr(example_of([silent, speaking, encoder]), "model", None) == "speaking"
    assert example_of([silent]) is None


def test_a_page_is_told_what_to_show_first(opened, site, folder):
    told = opened.http.get("api/models").json()["example"]
    assert told == {"model": Path(folder).name, "text": TEXT}
    assert site.http.get("api/models").json()["example"] is None


def test_the_example_is_analysed_before_anybody_asks(opened):
    id = opened.submit(TEXT)
    assert opened.wait(id)["state"] == "done"
    # Only now is the answer at hand for certain; the queue was empty before.
    assert opened.status(opened.submit(TEXT))["state"] == "done"
    assert [job.question.text for job in opened.jobs._jobs.values()] == [TEXT] * 3


def test_heads_are_there_when_they_are_asked_for(opened, folder):
    bare, whole = (opened.submit("the cat sat", heads=heads) for heads in (False, True))
    for id in (bare, whole):
        assert opened.wait(id)["state"] == "done"
    assert item_of(opened.maps(bare).content)[0]["heads"] == {}
    item, arrays = item_of(opened.maps(whole).content)
    maps = normlens.load(folder, device="cpu").maps("the cat sat", heads=True)
    assert set(item["heads"]) == set(maps.heads)
    for scope, expected in maps.heads.items():
        sent = [[numbers(head, arrays) for head in layer] for layer in item["heads"][scope]]
        np.testing.assert_allclose(np.reshape(sent, expected.shape), expected, rtol=1e-5)

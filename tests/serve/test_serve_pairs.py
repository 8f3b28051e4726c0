"""Encoder–decoders on the served page: over HTTP, and in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from pair_examples import fast_tokenizer, with_head
from serving import ON_CPU, Site, watched
from test_serve_api import header
from unlike_examples import _own_registry, unlike  # noqa: F401

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models.tiny import tiny_config
from normlens.serve.analyses import Limits, ServedModels
from normlens.viewer import encode
from normlens.viewer.payload import encode_explanations

SOURCE, TARGET = "the small house", "la maison"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A tiny BART that generates, with 24 positions."""
    folder = tmp_path_factory.mktemp("serve") / "translator"
    model = with_head("bart", encoder_layers=2, decoder_layers=2, max_position_embeddings=24)
    model.save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def translating(translator, folder):
    with Site(ServedModels([translator, folder], Limits(), loading=ON_CPU)) as running:
        yield running


@pytest.fixture(scope="module")
def lens(translator):
    return normlens.load(translator, device="cpu")


def ended(site: Site, kind: str = "analyses", text: str = SOURCE, **more: Any) -> dict[str, Any]:
    answer = site.http.post(f"api/{kind}", json=site.request(text, **more))
    assert answer.status_code == 202, answer.text
    return site.wait(answer.json()["id"])


def result(site: Site, status: dict[str, Any]) -> bytes:
    assert status["state"] == "done", status
    return bytes(site.http.get(f"api/analyses/{status['id']}/result").content)


def test_maps_of_a_source_and_a_target_are_those_of_the_library(translating, lens):
    models = translating.http.get("api/models").json()["models"]
    assert [model["two_stacks"] for model in models] == [True, False]
    assert (models[0]["layers"], models[0]["head"]) == (4, "BartForConditionalGeneration")
    status = ended(translating, target_text=TARGET)
    assert status["layers_done"] == 4
    assert result(translating, status) == encode([lens.maps(SOURCE, TARGET)])


def test_a_token_of_the_target_is_explained(translating, lens):
    asked = {"target_text": TARGET, "target": 1, "contrast": "the"}
    data = result(translating, ended(translating, "explanations", **asked))
    why: Any = lens.explain(SOURCE, target=TARGET, token=1, contrast="the")
    assert data == encode_explanations(why)
    (item,) = header(data)["items"]
    assert item["sequences"]["encoder_layers"] == 2


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("analyses", {"pair": "a"}, "takes a text and a target text, and no second text"),
        ("analyses", {"text": "the house " * 9, "target_text": TARGET}, "at most 24"),
        ("explanations", {"target_text": TARGET, "position": 1}, "no second text or position"),
        ("cosines", {"pair": "a"}, "choose Maps, or Explain"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(kind, change, words, translating):
    status = ended(translating, kind, **change)
    assert status["state"] == "failed"
    assert words in status["error"]
    assert "\n" not in status["error"]


def test_a_model_that_hears_is_refused_at_the_start(monkeypatch):
    config = tiny_config("whisper")
    monkeypatch.setattr("normlens.loading.load.load_config", lambda *_, **__: config)
    models = ServedModels(["ears"], Limits(), loading=ON_CPU)
    with pytest.raises(UnsupportedModelError):
        models.describe()


def test_layers_that_differ_are_refused_at_the_start(monkeypatch):
    monkeypatch.setattr("normlens.loading.load.load_config", lambda *_, **__: None)
    monkeypatch.setattr("normlens.plan.estimate.skeleton", lambda *_: normlens.load(unlike()))
    with pytest.raises(UnsupportedModelError):
        ServedModels(["unlike"], Limits(), loading=ON_CPU).describe()


def test_without_a_head_a_target_text_is_asked_for(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "headless"
    transformers.BartModel(tiny_config("bart")).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    with Site(ServedModels([str(folder)], Limits(), loading=ON_CPU)) as site:
        assert "no head that could generate a target" in ended(site)["error"]
        assert ended(site, target_text=TARGET)["state"] == "done"
        status = ended(site, "explanations", target_text=TARGET)
        assert "has no head, so it says nothing that could be explained" in status["error"]


def test_the_page_takes_a_source_and_a_target(translating, lens, folder, page):
    complaints = watched(page)
    page.goto(translating.url)
    page.wait_for_selector('[data-control="model"] option', state="attached")
    field = '[data-field="{}"]'
    assert page.is_visible(field.format("target-text"))
    assert page.is_hidden(field.format("pair"))
    page.fill(field.format("text"), SOURCE)
    page.fill(field.format("target-text"), TARGET)
    page.click('[data-action="analyse"]')
    page.wait_for_selector('.normlens[data-busy="false"][data-items="1"] [data-figure="map"]')
    maps: Any = lens.maps(SOURCE, TARGET)
    labels = ".column-labels text"
    assert page.locator(labels).all_text_contents() == maps.source_tokens
    assert page.locator('[data-figure="map"] .divider').count() == 1
    page.click('[data-control="stack"] [data-value="encoder"]')
    page.wait_for_selector('.normlens[data-busy="false"][data-stack="encoder"]')
    assert page.locator(labels).all_text_contents() == maps.encoder.tokens
    shared = page.url
    assert "target_text=la+maison" in shared
    assert "stack=encoder" in shared
    page.goto("about:blank")
    page.goto(shared)
    page.wait_for_selector('.normlens[data-busy="false"][data-stack="encoder"]')
    assert page.input_value(field.format("target-text")) == TARGET
    assert page.locator(labels).all_text_contents() == maps.encoder.tokens
    # Without a target the model generates one, and the page says so.
    page.fill(field.format("target-text"), "")
    page.click('[data-action="analyse"]')
    page.wait_for_selector('.normlens[data-busy="false"][data-items="2"]')
    assert "generated by the model" in page.inner_text(".trust")
    assert "generated by the model" in page.inner_text('[data-role="message"]')
    # A token of the target is explained; a cosine is not offered.
    page.click('[data-control="mode"] [data-value="explain"]')
    page.fill(field.format("target-text"), TARGET)
    page.fill(field.format("target"), "#1")
    assert page.is_hidden('[data-role="headless"]')
    assert page.is_hidden(field.format("position"))
    page.click('[data-action="analyse"]')
    page.wait_for_selector('.normlens[data-busy="false"][data-kind="explain"]')
    why: Any = lens.explain(SOURCE, target=TARGET, token=1)
    shown = page.locator(".token:not(.rest) .text").all_inner_texts()
    assert shown == why.axis.tokens[: why.seen]
    page.click('[data-control="mode"] [data-value="cosine"]')
    assert "of models of one stack" in page.inner_text('[data-role="headless"]')
    page.select_option('[data-control="model"]', Path(folder).name)
    assert page.is_hidden('[data-role="headless"]')
    assert complaints == []

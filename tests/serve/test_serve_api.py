"""What the page asks of its server, over real HTTP, with a tiny model."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ON_CPU, Site, StepwiseModels

import normlens
from normlens.loading import load as loading
from normlens.serve import analyses
from normlens.serve.analyses import Limits, ServedModels, example_of
from normlens.viewer import pages, payload
from normlens.viewer import payload as container

TEXT = "the cats sat on a mat"
TOKENS = ["[CLS]", "the", "cat", "##s", "sat", "on", "a", "mat", "[SEP]"]


def header(data: bytes) -> dict[str, Any]:
    """The JSON header of a payload."""
    assert data[:8] == container.MAGIC
    length = int.from_bytes(data[8:12], "little")
    return json.loads(data[12 : 12 + length])


def detail(answer: httpx.Response) -> str:
    """The one line of a refusal."""
    assert list(answer.json()) == ["detail"]
    line = answer.json()["detail"]
    assert isinstance(line, str)
    assert "\n" not in line
    assert line
    return line


# The page ----------------------------------------------------------------------------------------


def test_the_page_and_its_script(site):
    answer = site.http.get("")
    assert answer.text == pages.shell()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    script = site.http.get("static/viewer.js")
    assert script.text == pages.script()
    assert script.headers["content-type"].startswith("text/javascript")


def test_the_models(site, folder, decoder):
    answer = site.http.get("api/models").json()
    assert answer["limits"] == {"text_characters": 10_000, "tokens": 512}
    first, second = answer["models"]
    lens = normlens.load(folder)
    assert {key: value for key, value in first.items() if key != "loaded"} == {
        "name": Path(folder).name,
        "family": "bert",
        "layers": 2,
        "scopes": lens.scopes,
        "causal": False,
        "max_tokens": 48,
        "head": None,
        "two_stacks": False,
    }
    assert (second["name"], second["family"], second["causal"]) == ("decoder", "gpt2", True)


@pytest.mark.parametrize(
    "path",
    [
        "static/%2e%2e/page.py",
        "static/page.html",
        "api/analyses/..%2f..%2f..%2fetc%2fpasswd",
        "docs",
    ],
)
def test_nothing_else_is_served(path, site):
    with socket.create_connection(("127.0.0.1", httpx.URL(site.url).port)) as raw:
        raw.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer


# An analysis -------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_library(site, folder):
    id = site.submit(TEXT)
    assert site.wait(id) == {
        "id": id,
        "state": "done",
        "position": 0,
        "layers_done": 2,
        "layers": 2,
        "error": None,
    }
    answer = site.result(id)
    assert answer.headers["content-type"] == "application/octet-stream"
    expected = normlens.load(folder, device="cpu").maps(TEXT)
    assert answer.content == payload.encode([expected])
    (item,) = header(answer.content)["items"]
    assert item["tokens"] == TOKENS


def test_a_pair_a_rule_and_another_model(site, decoder):
    id = site.submit("the cat", pair="a mat", rule="gradient")
    assert site.wait(id)["state"] == "done"
    (item,) = header(site.result(id).content)["items"]
    assert item["tokens"] == ["[CLS]", "the", "cat", "[SEP]", "a", "mat", "[SEP]"]
    assert item["text"] == ["the cat", "a mat"]
    assert item["provenance"]["nonlinearity"] == "gradient"
    id = site.submit("the cat", model=Path(decoder).name, pair=None)
    assert site.wait(id)["state"] == "done"
    assert header(site.result(id).content)["items"][0]["model"] == "decoder"


def test_the_same_text_again_is_not_computed_again(site, monkeypatch):
    first = site.submit("the mat sat")
    assert site.wait(first)["state"] == "done"
    monkeypatch.setattr(ServedModels, "answer", None)
    second = site.submit("the mat sat")
    assert second != first
    assert site.status(second)["state"] == "done"
    assert site.result(second).content == site.result(first).content


def test_there_are_no_maps_before_the_end(stepwise):
    models: StepwiseModels = stepwise.models  # type: ignore[assignment]
    running = stepwise.submit("the cat")
    models.reached()
    queued = stepwise.submit("a mat")
    assert stepwise.status(queued)["position"] == 1
    for id, state in ((running, "running"), (queued, "queued")):
        answer = stepwise.result(id)
        assert answer.status_code == 409
        assert state in detail(answer)


def test_a_running_analysis_stops_behind_its_layer(stepwise):
    models: StepwiseModels = stepwise.models  # type: ignore[assignment]
    first, second = stepwise.submit("the cat"), stepwise.submit("a mat")
    assert models.reached() == ("the cat", 0)
    models.go.release()
    assert models.reached() == ("the cat", 1)
    answer = stepwise.http.delete(f"api/analyses/{first}")
    assert answer.status_code == 200
    assert answer.json()["state"] == "cancelled"
    models.go.release()
    assert models.reached() == ("a mat", 0)  # the second layer of the first is never reported
    gone = stepwise.result(first)
    assert (gone.status_code, "cancelled" in detail(gone)) == (410, True)
    models.let_go()
    assert stepwise.wait(second)["state"] == "done"
    assert stepwise.status(first)["state"] == "cancelled"


@pytest.mark.parametrize("id", ["unknown", "a" * 22, "%00", "ä"])
def test_an_unknown_analysis(id, site):
    for answer in (
        site.http.get(f"api/analyses/{id}"),
        site.http.delete(f"api/analyses/{id}"),
        site.result(id),
    ):
        assert answer.status_code == 404
        assert "ask for it again" in detail(answer)


def test_a_full_queue_is_429(stepwise):
    models: StepwiseModels = stepwise.models  # type: ignore[assignment]
    first = stepwise.submit("the cat")
    models.reached()
    rest = [stepwise.submit(text) for text in ("a mat", "the mat")]
    answer = stepwise.http.post("api/analyses", json=stepwise.request("a cat"))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert "2 analyses are waiting already" in detail(answer)
    models.let_go()
    assert [stepwise.wait(id)["state"] for id in (first, *rest)] == ["done"] * 3
    assert stepwise.wait(stepwise.submit("a cat"))["state"] == "done"


# What fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"text": ""}, 422, "text: the text is empty"),
        ({"text": "a" * 10_001}, 422, "at most 10000 characters"),
        ({"rule": "magic"}, 422, "'ig', 'ig-bias', 'gradient' or 'shapley'"),
        ({"model": "bert-base-uncased"}, 422, "model: input should be 'tiny' or 'decoder'"),
        ({"layers": "all"}, 422, "layers: "),
    ],
)
def test_wrong_requests(change, status, words, site):
    answer = site.http.post("api/analyses", json=site.request("the cat", **change))
    assert answer.status_code == status
    assert words in detail(answer)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"[" * 50_000, 400),
        (b'{"model": "\\ud800", "text": "\\ud800"}', 422),
    ],
)
def test_bodies_that_are_no_request(body, status, site):
    headers = {"Content-Type": "application/json"}
    answer = site.http.post("api/analyses", content=body, headers=headers)
    assert answer.status_code == status
    detail(answer)


def test_a_text_of_the_greatest_length_fits_however_it_is_written(site):
    text = "\U0001f600" * 10_000
    body = json.dumps(site.request(text, pair=text))  # twelve bytes for each character
    assert len(body) > 240_000
    headers = {"Content-Type": "application/json"}
    answer = site.http.post("api/analyses", content=body, headers=headers)
    assert answer.status_code == 202
    site.wait(answer.json()["id"])


def test_too_many_tokens(site):
    status = site.wait(site.submit("the cat " * 30))
    assert status["state"] == "failed"
    assert "62 tokens and" in status["error"]
    assert "at most 48; shorten it" in status["error"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "use a shorter text"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 TiB"), "not enough memory"),
        (ZeroDivisionError("secret"), "the analysis failed (ZeroDivisionError)"),
    ],
)
def test_a_failed_analysis_gives_its_reason(error, words, site, monkeypatch):
    def broken(*_: Any) -> bytes:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(site.models, "answer", broken)
        id = site.submit(f"on a mat {words}")
        status = site.wait(id)
    assert status["state"] == "failed"
    assert words in status["error"]
    assert "secret" not in status["error"]
    answer = site.result(id)
    assert answer.status_code == 409
    assert words in detail(answer)
    assert site.wait(site.submit(f"on a mat {words}"))["state"] == "done"  # and the next one works


# Models ------------------------------------------------------------------------------------------


def test_models_are_loaded_when_needed_and_only_so_many_stay(folder, decoder, monkeypatch):
    loaded = []
    load = loading.load

    def watched(source: str, **options: Any) -> Any:
        loaded.append(source)
        return load(source, **options)

    monkeypatch.setattr(loading, "load", watched)
    limits = Limits(models=1)
    with Site(ServedModels([folder, decoder, folder], limits, loading=ON_CPU), limits) as site:

        def in_memory() -> list[bool]:
            return [model["loaded"] for model in site.http.get("api/models").json()["models"]]

        assert (in_memory(), loaded) == ([False, False], [])
        for model, expected in (("tiny", [True, False]), ("decoder", [False, True])):
            for text in ("the cat", "a mat"):
                assert site.wait(site.submit(text, model=model))["state"] == "done"
            assert in_memory() == expected
        for model in (
            "minilm",
            "/etc",
            folder,
            str(Path(folder).parent),
            f"{folder}/",
            "../" + folder,
        ):
            answer = site.http.post("api/analyses", json=site.request("the cat", model=model))
            assert answer.status_code == 422
        assert loaded == [folder, decoder]


def test_a_model_that_is_gone_is_a_failed_analysis(tmp_path, folder):
    (tmp_path / "model").symlink_to(folder)
    name = str(tmp_path / "model")
    with Site(ServedModels([name], Limits(), loading=ON_CPU)) as site:
        (tmp_path / "model").unlink()
        status = site.wait(site.submit("the cat"))
        assert (status["state"], "does not exist" in status["error"]) == ("failed", True)


# OpenAPI -----------------------------------------------------------------------------------------


def test_the_schema_says_what_is_served(site):
    schema = site.http.get("openapi.json").json()
    assert sorted(schema["paths"]) == [
        "/api/analyses",
        "/api/analyses/{id}",
        "/api/analyses/{id}/result",
        "/api/citations",
        "/api/cosines",
        "/api/explanations",
        "/api/models",
    ]
    for kind, rules in (
        ("Analysis", ["ig", "ig-bias", "gradient", "shapley"]),
        ("Explanation", ["ig", "ig-bias", "gradient"]),
        ("Cosine", ["ig", "ig-bias", "gradient"]),
        ("Citation", ["ig", "ig-bias", "gradient"]),
    ):
        request = schema["components"]["schemas"][f"{kind}Request"]["properties"]
        assert request["model"]["enum"] == list(site.models.names)
        assert request["rule"]["enum"] == rules
        assert request["text"]["maxLength"] == 10_000


# The example that a page opens on ----------------------------------------------------------------


def test_the_example_is_of_the_first_model_that_needs_no_target_text(site):
    known = site.models.descriptions["tiny"]
    silent = known.model_copy(update={"name": "silent", "two_stacks": True, "head": None})
    speaking = silent.model_copy(update={"name": "speaking", "head": "T5"})
    for models, expected in (([silent, known], "tiny"), ([silent, speaking, known], "speaking")):
        assert getattr(example_of(models), "model", None) == expected
    assert example_of([silent]) is None
    assert site.http.get("api/models").json()["example"] is None


def test_the_example_is_analysed_before_anybody_asks(folder):
    with Site(ServedModels([folder], Limits(), loading=ON_CPU), example=True) as opened:
        told = opened.http.get("api/models").json()["example"]
        assert told == {"model": "tiny", "text": analyses.TEXT}
        assert opened.wait(opened.submit(analyses.TEXT))["state"] == "done"
        # Only now is the answer at hand for certain; the queue was empty before.
        assert opened.status(opened.submit(analyses.TEXT))["state"] == "done"
        assert len(opened.jobs._jobs) == 3


def test_heads_are_there_when_they_are_asked_for(site, folder):
    maps = normlens.load(folder, device="cpu").maps("the cat sat", heads=True)
    for heads, sent in ((False, {}), (True, maps.heads)):
        id = site.submit("the cat sat", heads=heads)
        assert site.wait(id)["state"] == "done"
        assert header(site.result(id).content)["items"][0]["heads"].keys() == sent.keys()

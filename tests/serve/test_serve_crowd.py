"""Many visitors at once, each with a text of their own."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import httpx
from serving import ON_CPU, PATIENCE, Site
from test_serve_api import header

from normlens.serve.analyses import Limits, ServedModels

VISITORS = 30
# Different texts, with different numbers of tokens.
TEXTS = [
    " ".join(words)
    for length in (2, 3)
    for words in product(("the", "cat", "sat", "mat", "a"), repeat=length)
][:VISITORS]


async def visit(http: httpx.AsyncClient, model: str, text: str) -> tuple[int, list[str]]:
    """How often a visitor was sent away, and the tokens of the answer."""
    refused = 0
    while True:
        asked = await http.post("api/analyses", json={"model": model, "text": text})
        if asked.status_code == 202:
            break
        assert asked.status_code == 429
        assert int(asked.headers["retry-after"]) >= 1
        refused += 1
        await asyncio.sleep(0.3)
    id = asked.json()["id"]
    while (status := (await http.get(f"api/analyses/{id}")).json())["state"] != "done":
        assert status["state"] in ("queued", "running"), status
        await asyncio.sleep(0.3)
    maps = await http.get(f"api/analyses/{id}/maps")
    assert maps.status_code == 200
    (item,) = header(maps.content)["items"]
    assert item["text"] == [text]
    return refused, item["tokens"]


def test_many_at_once_each_get_their_own_answer(folder):
    assert len(set(TEXTS)) == VISITORS
    limits = Limits(queue=5)

    async def crowd(url: str) -> list[tuple[int, list[str]]]:
        connections = httpx.Limits(max_connections=VISITORS)
        async with httpx.AsyncClient(
            base_url=url, timeout=PATIENCE, limits=connections, trust_env=False
        ) as http:
            visits = (visit(http, Path(folder).name, text) for text in TEXTS)
            return await asyncio.wait_for(asyncio.gather(*visits), 4 * PATIENCE)

    with Site(ServedModels([folder], limits, loading=ON_CPU), limits) as site:
        answers = asyncio.run(crowd(site.url))
        assert site.http.get("api/models").status_code == 200
    assert [tokens for _, tokens in answers] == [
        ["[CLS]", *text.split(), "[SEP]"] for text in TEXTS
    ]

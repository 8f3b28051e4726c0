"""Foreign hosts, foreign pages and bodies without end."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from serving import Site

from normlens.serve.analyses import Limits
from normlens.serve.app import HEADERS, Hosts

PATHS = ("", "cite", "static/viewer.js", "api/models", "api/analyses/x", "openapi.json", "nowhere")


def exchange(site: Site, data: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to raw bytes."""
    with socket.create_connection(("127.0.0.1", httpx.URL(site.url).port), 60) as raw:
        raw.sendall(data)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def with_port(site: Site, name: str) -> str:
    return f"{name}:{httpx.URL(site.url).port}"


# Headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", [None, "evil.example"])
def test_every_answer_is_guarded(path, host, site):
    headers = {} if host is None else {"Host": host}
    answer = site.http.get(path, headers=headers)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "server" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers


# Hosts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS[:4])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "localhost.evil.example",
        "127.0.0.2",
        "10.0.0.1",
        "[::]",
    ],
)
def test_foreign_hosts_are_refused(host, path, site):
    answer = site.http.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert "127.0.0.1 or localhost" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["", "a b", "localhost:port", "localhost@evil", "[::1", "ä", "/"])
def test_hosts_that_are_none(host, site):
    data = f"GET /api/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    status, _ = exchange(site, data.encode())
    assert status == 400


def test_no_host_and_two_hosts(site):
    assert exchange(site, b"GET /api/models HTTP/1.0\r\n\r\n")[0] == 400
    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert exchange(site, two)[0] == 400


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_own_names_are_known_at_any_port(name, site):
    for host in (name, with_port(site, name), f"{name}:9"):  # 9: the near end of a tunnel
        assert site.http.get("api/models", headers={"Host": host}).status_code == 200


def test_hosts_by_address():
    at_home = Hosts("127.0.0.1")
    assert at_home.allow("localhost")
    assert not at_home.allow("192.168.0.7")
    assert not at_home.allow(socket.gethostname().lower() + ".example")
    abroad = Hosts("192.168.0.7", ["Lab.Example"])
    assert all(map(abroad.allow, ("192.168.0.7", "localhost", "lab.example")))
    assert not abroad.allow("192.168.0.8")
    everywhere = Hosts("0.0.0.0")
    assert all(map(everywhere.allow, ("192.168.0.7", "[fe80::1]", socket.gethostname().lower())))
    assert not everywhere.allow("evil.example")
    assert Hosts("fe80::1").allow("[fe80::1]")
    assert Hosts("::").allow("[fe80::1]")


# Pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS[:4])
@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "http://localhost", "http://localhost:9", "file://"],
)
def test_foreign_origins_are_refused(origin, path, site):
    answer = site.http.get(path, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "another page" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "HEAD", "PUT"])
def test_foreign_origins_are_refused_whatever_they_want(method, site):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = site.http.request(method, "api/analyses", headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_own_page_may_ask(name, site):
    host = with_port(site, name)
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    asked = site.request("the cat")
    assert site.http.post("api/analyses", json=asked, headers=headers).status_code == 202


@pytest.mark.parametrize("foreign", ["cross-site", "same-site"])
def test_what_a_browser_says_of_foreign_pages_counts(foreign, site):
    for path in PATHS:
        headers = {"Sec-Fetch-Site": foreign, "Sec-Fetch-Mode": "no-cors"}
        assert site.http.get(path, headers=headers).status_code == 403
    link = {"Sec-Fetch-Site": foreign, "Sec-Fetch-Mode": "navigate"}
    assert site.http.get("", headers=link).status_code == 200
    assert site.http.get("api/models", headers=link).status_code == 403
    assert site.http.post("", headers=link).status_code == 403


# Bodies ------------------------------------------------------------------------------------------

POST = "POST /api/analyses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_large_body_is_refused_by_its_announcement(site):
    size = Limits().body_bytes + 1
    status, body = exchange(site, f"{POST}Content-Length: {size}\r\n\r\n".encode())
    assert status == 413
    assert f"larger than {size - 1} bytes" in json.loads(body)["detail"]


def test_a_body_without_end_is_refused_when_it_is_too_large(site: Site) -> None:
    # No last chunk: an answer can only come while the body is still being sent.
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    count = Limits().body_bytes // 0x10000 + 1
    data = f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * count
    status, body = exchange(site, data)
    assert status == 413
    assert "larger" in json.loads(body)["detail"]


def test_a_chunked_body_within_the_limit_is_read(site):
    parts = iter(
        [json.dumps(site.request("the cat")).encode()[i : i + 7] for i in range(0, 200, 7)]
    )
    headers = {"Content-Type": "application/json"}
    answer = site.http.post("api/analyses", content=parts, headers=headers)
    assert answer.status_code == 202


def test_who_leaves_in_the_middle_asks_for_nothing(site, monkeypatch):
    submitted = []
    monkeypatch.setattr(site.jobs, "submit", lambda *job: submitted.append(job))
    whole = json.dumps(site.request("the cat")).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(site.url).port), 60) as raw:
        raw.sendall(f"{POST}Content-Length: {len(whole) + 1}\r\n\r\n".encode() + whole)
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(100) == b""
    assert submitted == []

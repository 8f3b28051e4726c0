"""Clients that keep the server waiting, and more clients than it can hold."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import httpx
import pytest
import uvicorn
from serving import ON_CPU, PATIENCE, Site
from test_serve_command import started

from normlens.serve.analyses import Limits, ServedModels
from normlens.serve.server import QuietServer, most_connections

HURRIED = Limits(connections=8, request_seconds=0.5, stall_seconds=0.5)


@contextmanager
def hurried(folder: str, limits: Limits = HURRIED) -> Iterator[Site]:
    with Site(ServedModels([folder], limits, loading=ON_CPU), limits) as site:
        yield site


def dial(url: str, received: int | None = None) -> socket.socket:
    """A connection; `received` is the room for what has not been read yet."""
    address = httpx.URL(url)
    connection = socket.socket()
    if received is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connection.settimeout(PATIENCE)
    connection.connect((address.host, address.port))
    return connection


def wait_for_end(connection: socket.socket) -> bytes:
    """What came before the server closed the connection."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def read_answer(connection: socket.socket) -> bytes:
    """One answer, its head and as much of a body as it announces."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(1 << 16)
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert length
    while len(body) < int(length[1]):
        body += connection.recv(1 << 16)
    return head


def reaches(url: str) -> bool:
    """Whether the server answers, at last: there may be no room for a moment."""
    last = time.monotonic() + PATIENCE
    while time.monotonic() < last:
        with httpx.Client(base_url=url, timeout=5, trust_env=False) as http:
            try:
                if http.get("api/models").status_code == 200:
                    return True
            except httpx.TransportError:
                pass
        time.sleep(0.1)
    return False


HEAD = b"POST /api/analyses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HT",
        HEAD + b'Content-Length: 1000\r\n\r\n{"model": ',
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ],
)
def test_a_request_that_does_not_end_is_dropped(folder, beginning):
    with hurried(folder) as site, dial(site.url) as connection:
        connection.sendall(beginning)
        assert wait_for_end(connection) == b""
        assert reaches(site.url)


@pytest.mark.parametrize(
    "beginning", [b"GET / HTTP/1.1\r\nX-Slow: ", HEAD + b"Content-Length: 9999"]
)
def test_a_trickle_does_not_keep_a_connection_open(folder, beginning):
    beginning += b"\r\n\r\n" if b"Content-Length" in beginning else b""
    with hurried(folder) as site, dial(site.url) as connection:
        connection.sendall(beginning)
        last = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < last
            try:
                connection.sendall(b"x")
            except (ConnectionResetError, BrokenPipeError):
                break
            time.sleep(0.05)
        assert reaches(site.url)


def test_a_connection_waits_for_the_next_request_for_longer(folder):
    """The time for a request begins with its first byte."""
    with hurried(folder) as site, dial(site.url) as connection:
        for _ in range(2):
            connection.sendall(b"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200 OK")
            time.sleep(2 * HURRIED.request_seconds)


def test_a_client_that_does_not_read_is_dropped(folder):
    with hurried(folder) as site, dial(site.url, received=4096) as connection:
        ask = b"GET /static/viewer.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        last = time.monotonic() + PATIENCE
        poll = select.poll()
        poll.register(connection, select.POLLHUP | select.POLLERR)
        # One answer fits into the system's buffers, so it asks for more of them.
        connection.setblocking(False)
        while not poll.poll(50):
            assert time.monotonic() < last
            try:
                connection.send(ask)
            except BlockingIOError:
                pass
            except (ConnectionResetError, BrokenPipeError):
                break
        assert reaches(site.url)


def test_more_connections_than_the_limit_are_turned_away(folder):
    with hurried(folder) as site, ExitStack() as stack:
        held = [stack.enter_context(dial(site.url)) for _ in range(HURRIED.connections)]
        extra = stack.enter_context(dial(site.url))
        answer = wait_for_end(extra)
        assert answer.startswith(b"HTTP/1.1 503 ")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"retry-after: 1\r\n" in head
        assert f"content-length: {len(body)}".encode() in head
        assert "too many connections" in json.loads(body)["detail"]
        for connection in held:  # they say nothing, and so make room
            assert wait_for_end(connection) == b""
        assert reaches(site.url)


def test_the_limit_leaves_descriptors_for_others(monkeypatch):
    used = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 100, used + 100))
    assert 0 < most_connections(Limits()) <= 100
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used, used))
    assert most_connections(Limits()) == 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert most_connections(Limits(connections=7)) == 7


def test_a_shortage_of_descriptors_is_one_line(caplog):
    loop = asyncio.new_event_loop()
    try:
        log = QuietServer(uvicorn.Config("")).complain
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many open files")
            log(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert len(caplog.records) == 1
        assert "ulimit -n" in caplog.text
        log(loop, {"message": "something else", "exception": ValueError("x")})
        assert "something else" in caplog.text
    finally:
        loop.close()


#: A server that may open few files, and thinks that it may open many.
FEW_FILES = """
import resource, sys
from normlens import cli
from normlens.serve import analyses, server

server.most_connections = lambda limits: 10_000
describe = analyses.ServedModels.describe

def describe_and_limit(self):
    describe(self)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

analyses.ServedModels.describe = describe_and_limit
"""


@pytest.mark.slow
def test_no_descriptor_left_writes_no_flood(folder):
    words: list[Any] = ["--port", "0", "--model", folder, "--no-example"]
    with started(FEW_FILES, *words) as (process, url), ExitStack() as stack:
        assert process.stderr is not None
        for _ in range(150):
            stack.enter_context(dial(url))
        time.sleep(2.5)  # asyncio tries again every second
        stack.close()
        assert reaches(url)  # it recovers
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert "ulimit -n" in errors
        assert len(errors.splitlines()) < 10, errors[:2000]


def test_the_last_attempt_after_a_shortage_is_silent_where_the_server_has_closed():
    """asyncio tries to accept again a second later, whether or not the socket is still there."""

    class Loop:
        said: ClassVar[list[object]] = []

        def default_exception_handler(self, context: dict[str, object]) -> None:
            self.said.append(context)

    class Handle:
        def __init__(self, name: str) -> None:
            self.name = name

        def __repr__(self) -> str:
            return f"<TimerHandle {self.name}>"

    log, late = QuietServer(uvicorn.Config("")).complain, ValueError("Invalid file descriptor: -1")
    log(Loop(), {"exception": late, "handle": Handle("_start_serving")})  # type: ignore[arg-type]
    assert not Loop.said
    log(Loop(), {"exception": late, "handle": Handle("other")})  # type: ignore[arg-type]
    assert len(Loop.said) == 1

"""Clients that keep the server waiting, and more clients than it can hold."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from serving import ON_CPU, PATIENCE, Site

from normlens.serve.analyses import Limits, ServedModels

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
        extra.sendall(b"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert wait_for_end(extra).startswith(b"HTTP/1.1 503 ")
        for connection in held:  # they say nothing, and so make room
            assert wait_for_end(connection) == b""
        assert reaches(site.url)

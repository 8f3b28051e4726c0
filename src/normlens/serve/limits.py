"""Who may talk to the server, how much they may say, and how much is kept."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# How much a visitor may ask for, and how much is kept.


# A character outside the basic plane takes two escapes of six bytes in JSON.
_BYTES_PER_CHARACTER = 12
_BYTES_AROUND = 4096


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, the queue and the memory may hold."""

    text_characters: int = 10_000  # of a text, of its pair, and of a target text
    tokens: int = 512
    connections: int = 256  # open at once; fewer where the system allows fewer
    request_seconds: float = 20.0  # for the whole of a request to arrive
    stall_seconds: float = 20.0  # in which a client must take some of its answer
    queue: int = 32  # analyses that wait; one more is worked on
    models: int = 2  # models in memory at once
    kept: int = 256  # finished analyses that can be asked for
    kept_bytes: int = 256 << 20  # their results, together
    kept_seconds: float = 30 * 60.0

    @property
    def body_bytes(self) -> int:
        """The largest body; three texts of the greatest length fit, however written."""
        return 3 * _BYTES_PER_CHARACTER * self.text_characters + _BYTES_AROUND


# Who may talk to the server, and how much they may say.
#
# A page anywhere on the web can send requests to 127.0.0.1 from its visitor's browser, and can
# give its own name that address (DNS rebinding). Neither gets through: the Host header must name
# this machine, and a page's requests must come from the page that this server sent.


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


@dataclass(frozen=True)
class Hosts:
    """Names of this server that a Host header may hold, whatever the port.

    The port is left open for tunnels (``ssh -L``); the Origin must match it exactly.
    """

    names: frozenset[str]
    any_address: bool = False

    @classmethod
    def of(cls, host: str, also: Iterable[str] = ()) -> Hosts:
        """Collect the names that fit the server's address, and others that were allowed."""
        names = {*LOOPBACK, *(_written(name) for name in also)}
        if not is_everywhere(host):
            return cls(frozenset(names | {_written(host)}))
        # A browser sends an address as Host only to a page it found there, so any will do.
        return cls(frozenset(names | {socket.gethostname().lower()}), any_address=True)

    def allow(self, name: str) -> bool:
        return name in self.names or (self.any_address and _is_address(name.strip("[]")))


def is_everywhere(host: str) -> bool:
    """Whether an address stands for all of the machine's."""
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _written(host: str) -> str:
    """Write a host as it appears in a URL."""
    return f"[{host.lower()}]" if ":" in host and "[" not in host else host.lower()


@dataclass(frozen=True)
class Refusal:
    status: int
    detail: str


class _Gone(Exception):
    """Raised when the client left before its request was complete."""


class Guard:
    """Refuses foreign hosts, foreign pages and large bodies; adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts, body_bytes: int):
        self._app, self._hosts, self._body_bytes = app, hosts, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets here, and nothing to do at start and end

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_headers(message["headers"])
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            try:
                body = await self._read(scope, receive)
            except _Gone:
                return
            if body is not None:
                await self._app(scope, _replay(body, receive), send_guarded)
                return
            refusal = Refusal(413, f"the request is larger than {self._body_bytes} bytes")
        await _refuse(refusal, send_guarded)

    def _refusal(self, scope: Scope) -> Refusal | None:
        hosts = _values(scope, b"host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return Refusal(400, "the request needs one Host header, such as localhost")
        if not self._hosts.allow(match["name"]):
            return Refusal(
                421,
                f"this server does not answer to the name {match['name']!r}; open it as "
                "127.0.0.1 or localhost, or start it with --allow-host",
            )
        this_server = {f"http://{hosts[0]}", f"https://{hosts[0]}"}
        if _is_foreign(scope) or not this_server.issuperset(_values(scope, b"origin")):
            return Refusal(403, "the request comes from another page than this server's own")
        return None

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the body; None as soon as it proves too large, whatever was announced."""
        declared = _values(scope, b"content-length")
        if any(value.isdigit() and int(value) > self._body_bytes for value in declared):
            return None
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            if len(body) > self._body_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _is_foreign(scope: Scope) -> bool:
    """Whether a browser says that another site asks; following a link to the page is fine."""
    site = _values(scope, b"sec-fetch-site")
    if not site or site[0] in ("same-origin", "none"):
        return False
    follows_link = _values(scope, b"sec-fetch-mode") == ["navigate"]
    return not (scope["method"] == "GET" and scope["path"] == "/" and follows_link)


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key == name]


def _with_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    guarded = ((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
    return [*given, *((name, value) for name, value in guarded if name not in names)]


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of a body is not waited for
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""Limits on the server's connections: their number, and how long each may keep it waiting.

A client that sends half a request, or does not take its answer, holds a descriptor for as long as
it likes; a few hundred of them would shut everybody else out. So connections are counted, and each
has to get on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normlens.serve.limits import Limits

_log = logging.getLogger("normlens.serve")
_FULL = b'{"detail": "there are too many connections; try again in a moment"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Descriptors that are left for models, pipes and files.
_RESERVE = 64
#: Bytes that a client has to take per second while an answer waits for it.
_SLOWEST = 1024
_SILENCE = 60.0  # seconds between two lines about the same shortage


def most_connections(limits: Limits) -> int:
    """Limit connections as set, to fewer where the process may not open that many descriptors."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = most - len(os.listdir("/proc/self/fd")) - _RESERVE
    except (ImportError, OSError):
        return limits.connections
    return max(1, min(limits.connections, free))


def protocol_class(limits: Limits) -> type[H11Protocol]:
    """Make the protocol class, as uvicorn takes it, of a server with these limits."""
    most = most_connections(limits)

    class LimitedProtocol(Connection):
        connections_limit = most
        request_seconds = limits.request_seconds
        stall_seconds = limits.stall_seconds

    return LimitedProtocol


class Connection(H11Protocol):
    """One client's connection, which ends when the client keeps the server waiting."""

    connections_limit: int
    request_seconds: float
    stall_seconds: float
    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.connections_limit:
            transport.write(_REFUSAL)
            transport.close()
            return
        # Any byte that the client does not take is noticed at once.
        transport.set_write_buffer_limits(high=0)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_request_timer")
        self._stop("_stall_timer")
        super().connection_lost(exc)

    # Requests: the whole of one within a time, however it trickles -------------------------------

    def data_received(self, data: bytes) -> None:
        if self._request_timer is None and self.conn.their_state is h11.IDLE:
            self._expect_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop("_request_timer")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        begun = bool(self.conn.trailing_data[0])  # came with the request before
        if begun and self._request_timer is None and self.conn.their_state is h11.IDLE:
            self._expect_request()

    def _expect_request(self) -> None:
        self._request_timer = self.loop.call_later(self.request_seconds, self.transport.abort)

    # Answers: some of what waits is taken in every while -----------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._expect_progress()

    def resume_writing(self) -> None:
        self._stop("_stall_timer")
        super().resume_writing()

    def _expect_progress(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_progress, waiting)

    def _check_progress(self, before: int) -> None:
        taken = before - self.transport.get_write_buffer_size()
        if taken < _SLOWEST * self.stall_seconds:
            self.transport.abort()
        else:
            self._expect_progress()

    def _stop(self, timer: str) -> None:
        handle = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)


class QuietServer(uvicorn.Server):
    """A server whose log stays short while descriptors are short."""

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(ShortageLog())
        await super().startup(sockets)


class ShortageLog:
    """An event loop's handler of errors: a shortage is one line a minute, not one per attempt.

    asyncio tries to accept over and over, and would write a traceback each time.
    """

    def __init__(self) -> None:
        self._said = -_SILENCE

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in repr(context.get("handle")):
            return  # the attempt after a shortage comes too late: the server has closed its socket
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now - self._said >= _SILENCE:
            self._said = now
            _log.warning(
                "no connection can be accepted (%s); close some, or raise `ulimit -n`",
                error.strerror,
            )

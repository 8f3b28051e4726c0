"""A page at an address: its socket, its connections, and the thread that answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from normlens.errors import InputError, NormLensError, is_out_of_memory, one_line
from normlens.serve.analyses import Jobs, Limits, ServedModels, Stopped, example_of
from normlens.serve.app import Hosts, create_app, is_everywhere

_log = logging.getLogger("normlens.serve")


# How long a client may keep the server waiting; uvicorn itself bounds the number of connections.
#
# A client that sends half a request, or does not take its answer, holds a connection for as long
# as it likes; a few hundred of them would shut everybody else out. So each has to get on.


class Connection(H11Protocol):
    """One client's connection, which ends when the client keeps the server waiting."""

    limits: Limits  # a server's subclass has them

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Any byte that the client does not take is noticed at once.
        transport.set_write_buffer_limits(high=0)
        self._request: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._expect_request(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_request(False)
        self._expect_reading(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Give the whole of a request its time, however it trickles."""
        super().handle_events()
        state, unread = self.conn.their_state, self.conn.trailing_data[0]
        self._expect_request(state is h11.SEND_BODY or (state is h11.IDLE and bool(unread)))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._expect_reading(None)
        super().resume_writing()

    def _expect_request(self, has_begun: bool) -> None:
        """Close the connection unless the request that has begun is there in time."""
        if has_begun and self._request is None:
            seconds = self.limits.request_seconds
            self._request = self.loop.call_later(seconds, self.transport.abort)
        elif not has_begun and self._request is not None:
            self._request.cancel()
            self._request = None

    def _expect_reading(self, waiting: int | None) -> None:
        """Close the connection unless the client takes some of the bytes that wait, in time."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if waiting is not None:
            seconds = self.limits.stall_seconds
            self._stall = self.loop.call_later(seconds, self._check_reading, waiting)

    def _check_reading(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._expect_reading(waiting)
        else:
            self.transport.abort()


# The page: bound, started, run until Ctrl-C, closed.


#: Seconds that an analysis has to come to its next layer when the server ends.
PATIENCE = 5.0
_UVICORN: dict[str, Any] = {
    "log_level": "error",  # uvicorn warns of every broken request, which anybody can send
    "backlog": 256,  # connections that wait to be accepted
    "access_log": False,
    "lifespan": "off",
    "ws": "none",
    "proxy_headers": False,
    "server_header": False,
    "timeout_graceful_shutdown": 3,
    "timeout_keep_alive": 75,  # longer than clients keep a connection: theirs is the first move
}


class PageServer:
    """The socket, the queue and the analysis thread of one page.

    One thread calls torch: OpenMP keeps a team of threads for every thread that calls it, and two
    teams on the same cores slow each other down. So analyses wait for each other, and loading a
    model is part of the first one.
    """

    def __init__(
        self,
        models: ServedModels,
        limits: Limits,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_hosts: Sequence[str] = (),
        example: bool = False,
    ):
        self._limits, self._host, self._example = limits, host, example
        self._hosts = Hosts(host, allow_hosts)
        # An address that cannot be had is known before anything slow begins.
        self._listener = bind(host, port)
        self.models, self.jobs = models, Jobs(limits)
        # A daemon: a layer or a download in work must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="normlens-analyses", daemon=True)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        shown = "127.0.0.1" if is_everywhere(self._host) else self._host
        shown = f"[{shown}]" if ":" in shown else shown
        return f"http://{shown}:{self._listener.getsockname()[1]}/"

    def start(self) -> None:
        """Read the models' configurations and begin to listen; `run` answers.

        An example is analysed meanwhile, so that the first page has something to show.
        """
        self.models.describe()
        described = self.models.descriptions
        self._thread.start()
        example = example_of(described.values()) if self._example else None
        if example is not None:
            self.jobs.submit(example, described[example.model].layers)

        class Limited(Connection):
            limits = self._limits

        app = create_app(self.models, self.jobs, self._limits, self._hosts, example)
        most = self._limits.connections + 1  # uvicorn refuses the one that reaches its limit
        config = uvicorn.Config(app, http=Limited, limit_concurrency=most, **_UVICORN)
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until Ctrl-C or `stop`."""
        # When uvicorn has closed its connections it passes the signal on.
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Have `run` return, from another thread."""
        self._server.should_exit = True

    def close(self) -> bool:
        """Let go of the address, cancel every analysis; return whether its thread has ended."""
        self._listener.close()
        self.jobs.close()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Answer one analysis after the other from the queue."""
        while (job := self.jobs.take()) is not None:
            try:
                result = self.models.answer(job.question, partial(self.jobs.progress, job))
            except Stopped:
                self.jobs.finish(job)
            except Exception as error:
                self.jobs.finish(job, error=_reason(error))
            else:
                self.jobs.finish(job, result)


def _reason(error: Exception) -> str:
    """Say in one line, for the visitor, why an analysis failed."""
    if isinstance(error, NormLensError):
        return one_line(str(error))
    if is_out_of_memory(error):
        return "there is not enough memory for this analysis; use a shorter text or a smaller model"
    _log.error("an analysis failed", exc_info=error)
    return f"the analysis failed ({type(error).__name__}); the server's terminal says more"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at the address; connections wait until the server answers."""
    try:
        family, *_, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"there is no address {host!r}; use --host 127.0.0.1") from error
    both, backlog = family == socket.AF_INET6, _UVICORN["backlog"]
    try:
        return socket.create_server(place[:2], family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        number, free = error.errno or 0, "choose another with --port (0 takes any free one)"
        problems = {
            errno.EADDRINUSE: f"port {port} is in use; {free}",
            errno.EACCES: f"port {port} may not be used by this user; {free}",
        }
        other = f"cannot listen at {host!r}: {os.strerror(number)}; use --host 127.0.0.1"
        raise InputError(problems.get(number, other)) from error
